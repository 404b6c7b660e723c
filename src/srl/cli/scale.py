"""`srl scale`: lets workers join or leave a running experiment."""

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


def add_verbs(verbs: Verbs) -> None:
    """Adds the verb."""
    parser = add_verb(verbs, "scale", "change how many workers a running experiment has", _EXAMPLES)
    parser.add_argument("directory", metavar="RUN", help="the run's folder")
    parser.add_argument(
        "counts",
        nargs="+",
        metavar="GROUP=N",
        help="workers of a group that are to run, at most as many as the run has room for "
        "(actor.max_count, inference.max_count)",
    )
    parser.set_defaults(run=_scale)


def _scale(args: argparse.Namespace) -> int:
    from srl.errors import ConfigError, RunError
    from srl.launch.scaling import ask_to_scale
    from srl.launch.status import read_status

    counts = {}
    for text in args.counts:
        group, _, number = text.partition("=")
        if not number.isdecimal():
            raise ConfigError(f"scale: expected GROUP=N like actor=8, got {text!r}.")
        counts[group] = int(number)
    run_dir = Path(args.directory)
    if time.time() - read_status(run_dir).written > _WAIT_SECONDS:
        raise RunError(f"{run_dir}: expected a run that goes on, got one that has ended.")
    ask_to_scale(run_dir, counts, _WAIT_SECONDS)
    print(", ".join(f"{group}={count}" for group, count in counts.items()))
    return 0
