"""`srl scale`, `srl checkpoint` and `srl stop`: ask something of a run that goes on."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from srl.cli.options import Verbs, add_verb

_SCALE_EXAMPLES = """
srl scale runs/pong actor=8
srl scale runs/pong actor=8 policy=2
srl train pong --layout shared --set actor.max_count=16     (keeps room for more)
srl resume runs/pong --set actor.max_count=16     (makes room in a run that has none)
"""
_CHECKPOINT_EXAMPLES = """
srl checkpoint runs/pong
"""
_STOP_EXAMPLES = """
srl stop runs/pong
srl resume runs/pong --set actor.count=4
"""
_WAIT_SECONDS = 10.0
"""A run whose status is older has ended. Also how long a command waits for the run's answer."""


def add_verbs(verbs: Verbs) -> None:
    """Adds `srl scale`, `srl checkpoint` and `srl stop`."""
    parser = add_verb(
        verbs, "scale", "change how many workers a running experiment has", _SCALE_EXAMPLES
    )
    parser.add_argument("directory", metavar="RUN", help="the run's folder")
    parser.add_argument(
        "counts",
        nargs="+",
        metavar="GROUP=N",
        help="the number of workers that a group should have; the run has room for at most "
        "actor.max_count, inference.max_count",
    )
    parser.set_defaults(run=_scale)

    text = "have a running experiment write a checkpoint now"
    parser = add_verb(verbs, "checkpoint", text, _CHECKPOINT_EXAMPLES)
    parser.add_argument("directory", metavar="RUN", help="the run's folder")
    parser.set_defaults(run=_checkpoint)

    text = "stop a running experiment, as Ctrl-C does: it writes a checkpoint and can be resumed"
    parser = add_verb(verbs, "stop", text, _STOP_EXAMPLES)
    parser.add_argument("directory", metavar="RUN", help="the run's folder")
    parser.set_defaults(run=_stop)


def _scale(args: argparse.Namespace) -> int:
    from srl.errors import ConfigError
    from srl.launch.run.requests import ask

    counts = {}
    for text in args.counts:
        group, _, number = text.partition("=")
        if not number.isdecimal():
            raise ConfigError(f"scale: expected GROUP=N like actor=8, got {text!r}.")
        counts[group] = int(number)
    ask(_running(args), "scale", _WAIT_SECONDS, counts)
    print(", ".join(f"{group}={count}" for group, count in counts.items()))
    return 0


def _checkpoint(args: argparse.Namespace) -> int:
    from srl.launch.run.requests import ask

    ask(_running(args), "checkpoint", _WAIT_SECONDS)
    print("the run writes a checkpoint")
    return 0


def _stop(args: argparse.Namespace) -> int:
    from srl.launch.run.requests import ask

    run_dir = _running(args)
    ask(run_dir, "stop", _WAIT_SECONDS)
    print(f"the run stops; go on: srl resume {run_dir}")
    return 0


def _running(args: argparse.Namespace) -> Path:
    """The folder of the run; raises if the run has ended."""
    from srl.errors import RunError
    from srl.launch.run.status import read_status

    run_dir = Path(args.directory)
    if time.time() - read_status(run_dir).written > _WAIT_SECONDS:
        raise RunError(f"{run_dir}: expected a running experiment, got one that has ended.")
    return run_dir
