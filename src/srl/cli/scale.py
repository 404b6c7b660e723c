"""`srl scale`: changes how many workers a running experiment has."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from srl.cli.options import Verbs, add_verb

_EXAMPLES = """
srl scale runs/pong actor=8
srl scale runs/pong actor=8 policy=2
srl train pong --layout shared --set actor.max_count=16     (keeps room for more)
srl resume runs/pong --set actor.max_count=16     (makes room in a run that has none)
"""
_WAIT_SECONDS = 10.0
"""A run whose status is older has ended. Also how long the command waits for the run's answer."""


def add_verbs(verbs: Verbs) -> None:
    """Adds `srl scale`."""
    parser = add_verb(verbs, "scale", "change how many workers a running experiment has", _EXAMPLES)
    parser.add_argument("directory", metavar="RUN", help="the run's folder")
    parser.add_argument(
        "counts",
        nargs="+",
        metavar="GROUP=N",
        help="the number of workers that a group should have; the run has room for at most "
        "actor.max_count, inference.max_count",
    )
    parser.set_defaults(run=_scale)


def _scale(args: argparse.Namespace) -> int:
    from srl.errors import ConfigError, RunError
    from srl.launch.run.scaling import ask_to_scale
    from srl.launch.run.status import read_status

    counts = {}
    for text in args.counts:
        group, _, number = text.partition("=")
        if not number.isdecimal():
            raise ConfigError(f"scale: expected GROUP=N like actor=8, got {text!r}.")
        counts[group] = int(number)
    run_dir = Path(args.directory)
    if time.time() - read_status(run_dir).written > _WAIT_SECONDS:
        raise RunError(f"{run_dir}: expected a running experiment, got one that has ended.")
    ask_to_scale(run_dir, counts, _WAIT_SECONDS)
    print(", ".join(f"{group}={count}" for group, count in counts.items()))
    return 0
