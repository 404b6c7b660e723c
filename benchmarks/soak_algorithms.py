"""Whether every registered algorithm learns, survives and goes on in every layout.

Each trains a small task (`TASKS` in `tests/system/algorithm_runs.py`) with two actors, with one
trainer and, where several can learn together, with two. One process of each kind is killed (-9);
in `serial` the run itself. Then the run is stopped and resumed, until its return is far above that
of random actions. Fragments must be accounted for, and no process and no shared memory may be left.
The layout `remote` has its hosts on this machine.

    python benchmarks/soak_algorithms.py [--algorithms dqn sac] [--layouts serial remote] [--write]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest
from results import write_result

from srl.algorithms.registry import ALGORITHMS
from srl.arena.shm import ROOT_VARIABLE, shm_root

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "system"))

from algorithm_runs import LAYOUTS, Trial, combinations

ROOT = shm_root()


@dataclass(frozen=True)
class Outcome:
    """One algorithm in one layout."""

    algorithm: str
    layout: str
    trainers: int
    seconds: float
    killed: list[str]
    score: float
    problem: str

    def row(self) -> str:
        """Its line in the table."""
        return (
            f"| {self.algorithm} | {self.layout} | {self.trainers} | {self.seconds:.0f} | "
            f"{', '.join(self.killed)} | {self.score:.2f} | {self.problem or 'none'} |"
        )


def run(name: str, layout: str, trainers: int) -> Outcome:
    """One trial from its start to its evaluation."""
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryDirectory(prefix="srl-soak-", dir=ROOT) as shm,
    ):
        os.environ[ROOT_VARIABLE] = shm
        begun = time.monotonic()
        trial = Trial(name, layout, trainers, Path(folder), say=lambda step: report(f"    {step}"))
        problem = ""
        try:
            trial.run()
            if left := sorted(path.name for path in Path(shm).iterdir()):
                problem = f"shared memory is left: {left}"
        except (Exception, pytest.fail.Exception) as error:
            report(f"{type(error).__name__}: {error}")
            problem = f"{type(error).__name__}: {error}".splitlines()[0].replace("|", "/")[:200]
        seconds = time.monotonic() - begun
        return Outcome(name, layout, trainers, seconds, trial.killed, trial.score, problem)


def report(line: str) -> None:
    """Shows how far it is."""
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--algorithms", nargs="+", default=list(ALGORITHMS), choices=ALGORITHMS)
    parser.add_argument("--layouts", nargs="+", default=list(LAYOUTS), choices=LAYOUTS)
    parser.add_argument("--write", action="store_true", help="write into benchmarks/results")
    options = parser.parse_args()
    planned = [
        (name, layout, trainers)
        for name, layout, trainers in combinations()
        if name in options.algorithms and layout in options.layouts
    ]
    outcomes = []
    for number, (name, layout, trainers) in enumerate(planned, 1):
        report(f"{number}/{len(planned)}: {name}, {layout}, trainers: {trainers}")
        outcomes.append(run(name, layout, trainers))
        report(outcomes[-1].row())
    failed = [outcome for outcome in outcomes if outcome.problem]
    lines = [
        f"{len(outcomes)} runs, {sum(len(o.killed) for o in outcomes)} kills, "
        f"{len(failed)} runs with a problem.",
        "",
        "| algorithm | layout | trainers | seconds | killed | return | problem |",
        "|---|---|--:|--:|---|--:|---|",
        *(outcome.row() for outcome in outcomes),
    ]
    if options.write:
        report(str(write_result("soak_algorithms", __doc__, lines)))
    report("\n".join(lines))
    print(json.dumps({"soak": "soak_algorithms", "runs": [asdict(o) for o in outcomes]}))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
