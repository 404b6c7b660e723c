"""`srl worker`: joins a run from any machine, and runs there what the run asks for."""

from __future__ import annotations

import argparse
from pathlib import Path

from srl.cli.options import Verbs, add_verb

_EXAMPLES = """
srl worker --join 10.0.0.1:5555 --key-file join.key
srl worker --join 10.0.0.1:5555 --key-file join.key --name gpu-box --bind 10.0.0.2:5556
srl worker --join 10.0.0.1:5555 --key-file join.key --holds actor
"""


def add_verbs(verbs: Verbs) -> None:
    """Adds the verb."""
    parser = add_verb(verbs, "worker", "join a run and hold workers of it", _EXAMPLES)
    parser.add_argument(
        "--join", required=True, metavar="HOST:PORT", help="where the run listens (it says so)"
    )
    parser.add_argument(
        "--key-file", required=True, metavar="FILE", help="the run's join key (RUN/keys/join.key)"
    )
    parser.add_argument(
        "--name", default="", metavar="NAME", help="this host's name; by default the run gives one"
    )
    parser.add_argument(
        "--bind",
        default="",
        metavar="ADDRESS[:PORT]",
        help="this machine's address for the other hosts of the run; by default the one from which "
        "it reaches the run, and a port that is free",
    )
    parser.add_argument(
        "--holds",
        action="append",
        default=[],
        metavar="GROUP",
        help="a group of workers (actor, policy, ...) that may run here, where the run's `hosts` "
        "setting does not name this host; may be given several times",
    )
    parser.add_argument(
        "--wait",
        type=float,
        default=60.0,
        metavar="S",
        help="seconds to wait for the run to answer",
    )
    parser.set_defaults(run=_worker)


def _worker(args: argparse.Namespace) -> int:
    from srl.launch.agent import run_agent

    return run_agent(
        args.join,
        Path(args.key_file),
        name=args.name,
        bind=args.bind,
        holds=tuple(args.holds),
        wait_seconds=args.wait,
    )
