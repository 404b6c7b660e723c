"""Options that several verbs share, and how their values are read."""

from __future__ import annotations

import argparse
from typing import Any, Protocol

from srl.errors import ConfigError

LAYOUTS = ("auto", "serial", "inline", "shared", "remote")
LAUNCHERS = ("processes", "ray", "slurm", "manual")


class Verbs(Protocol):
    """The object that verbs are added to."""

    def add_parser(self, name: str, **options: Any) -> argparse.ArgumentParser:
        """Adds one verb and returns its parser."""
        ...


def add_verb(verbs: Verbs, name: str, summary: str, examples: str) -> argparse.ArgumentParser:
    """Adds a verb whose help says what it does and shows its options and examples."""
    lines = "\n".join(f"  {line.strip()}" for line in examples.strip().splitlines())
    return verbs.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=f"examples:\n{lines}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def number(text: str) -> int:
    """Reads a count such as 200_000, 1e6 or 2M."""
    from srl.overrides import parse_number

    try:
        return parse_number(text, "number")
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("number: ")) from None


def add_limits(parser: argparse.ArgumentParser) -> None:
    """Adds the options that say where and for how long to train."""
    parser.add_argument(
        "--layout",
        choices=LAYOUTS,
        help="serial: one thread; inline: a policy in each actor; shared: policy workers; "
        "remote: on several hosts; auto chooses by machine",
    )
    parser.add_argument(
        "--launcher",
        choices=LAUNCHERS,
        help="what starts the host agents: `processes` starts them on this machine, ray and slurm "
        "on theirs; with `manual` you run `srl worker` on each host",
    )
    parser.add_argument(
        "--listen",
        metavar="ADDRESS",
        help="this machine's address for other hosts, with or without a port (10.0.0.1:5555)",
    )
    parser.add_argument(
        "--address", metavar="CLUSTER", help="the Ray cluster, for --launcher ray (auto, HOST:PORT)"
    )
    parser.add_argument(
        "--wait", action="store_true", help="with --launcher slurm: return when the job has ended"
    )
    parser.add_argument(
        "--steps", type=number, metavar="N", help="environment steps to train on (200_000, 1e6, 2M)"
    )
    parser.add_argument("--seconds", type=float, metavar="S", help="seconds to train for")
    parser.add_argument(
        "--until",
        metavar="COND",
        help="a condition that ends the run, like 'return>=475' (the mean of the last 100 "
        "episodes), or 'return/POLICY>=475' where several policies learn; 'none' removes a "
        "recipe's",
    )
    parser.add_argument("--device", metavar="D", help="cpu, cuda, cuda:1, auto")


def add_env_args(parser: argparse.ArgumentParser) -> None:
    """Adds `--env-arg`."""
    parser.add_argument(
        "--env-arg",
        action="append",
        default=[],
        metavar="K=V",
        help="an argument for the environment's constructor; may be given several times",
    )


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Adds `--set`, which takes every other setting."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any setting by dotted key, like actor.envs=32 or algorithm.learning_rate=1e-3; may "
        "be given several times; `srl settings` lists all",
    )


def add_quiet(parser: argparse.ArgumentParser) -> None:
    """Adds `--quiet`."""
    parser.add_argument("--quiet", action="store_true", help="print only errors")


def add_trust(parser: argparse.ArgumentParser) -> None:
    """Adds `--trust`."""
    parser.add_argument(
        "--trust",
        action="store_true",
        help="import the code that a run names even if you did not make the run on this machine; "
        "without it, such code is listed and the command is refused",
    )
