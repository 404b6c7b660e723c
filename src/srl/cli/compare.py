"""`srl compare`: several seeds of each of two or more experiments, in a table and a picture."""

from __future__ import annotations

import argparse
from pathlib import Path

from srl.cli.options import Verbs, add_verb, number

_EXAMPLES = """
srl compare runs/ppo runs/dqn                       (folders of runs, as of --seeds 5)
srl compare runs/ppo runs/dqn --metric eval_return --output compare.png
srl compare 'runs/a-seed*' 'runs/b-seed*' --at 200_000
srl compare new=runs/2 old=runs/1 --json
"""
OUTPUT = "compare.png"


def add_verbs(verbs: Verbs) -> None:
    """Adds `srl compare`."""
    parser = add_verb(verbs, "compare", "compare groups of runs, several seeds of each", _EXAMPLES)
    parser.add_argument(
        "groups",
        nargs="+",
        metavar="[NAME=]RUNS",
        help="a folder of runs, one run, or a quoted pattern; all are compared with the first",
    )
    parser.add_argument(
        "--metric",
        default="",
        metavar="NAME",
        help="what is compared, named as for --until: return, eval_return, return/POLICY, "
        "train.loss (default: eval_return if all runs have it, else return)",
    )
    parser.add_argument(
        "--at",
        type=number,
        metavar="STEPS",
        help="environment steps at which scores are taken (default: as many as all runs have)",
    )
    parser.add_argument(
        "--output", default=OUTPUT, metavar="FILE", help=f"a PNG (default: {OUTPUT})"
    )
    parser.add_argument(
        "--json", action="store_true", help="print one line of JSON, and draw nothing"
    )
    parser.set_defaults(run=_compare)


def _compare(args: argparse.Namespace) -> int:
    import json

    from srl.comparison import compare

    named = [_named(text) for text in args.groups]
    names = [name for name, _ in named] if all(name for name, _ in named) else None
    found = compare(
        *(_paths(runs) for _, runs in named), metric=args.metric, at=args.at, names=names
    )
    if args.json:
        print(json.dumps(found.record()))
        return 0
    print(found.table())
    print(f"\nplot  {found.plot(args.output)}")
    return 0


def _named(text: str) -> tuple[str, str]:
    """Name and runs of `NAME=RUNS`; the name is empty if there is none."""
    name, equals, runs = text.partition("=")
    return (name, runs) if equals and not Path(text).exists() else ("", text)


def _paths(runs: str) -> list[Path]:
    """The folders that a pattern stands for; without one, the folder itself."""
    if Path(runs).exists() or not any(sign in runs for sign in "*?["):
        return [Path(runs)]
    import glob

    return [Path(path) for path in sorted(glob.glob(runs))] or [Path(runs)]
