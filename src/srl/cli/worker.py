"""`srl worker`: the host agent, which joins a run and starts its workers on this machine."""

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
    """Adds `srl worker`."""
    parser = add_verb(
        verbs, "worker", "join a run and run workers of it on this machine", _EXAMPLES
    )
    parser.add_argument(
        "--join",
        required=True,
        metavar="HOST:PORT",
        help="the address at which the run listens (the run prints it)",
    )
    parser.add_argument(
        "--key-file", required=True, metavar="FILE", help="the run's join key (RUN/keys/join.key)"
    )
    parser.add_argument(
        "--name",
        default="",
        metavar="NAME",
        help="the name of this host; by default the run chooses it",
    )
    parser.add_argument(
        "--bind",
        default="",
        metavar="ADDRESS[:PORT]",
        help="the address of this machine for the other hosts of the run; by default the address "
        "from which it reaches the run, and a free port",
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
    from srl.launch.cluster.host_agent import run_agent

    return run_agent(
        args.join,
        Path(args.key_file),
        name=args.name,
        bind=args.bind,
        holds=tuple(args.holds),
        wait_seconds=args.wait,
    )
