"""Whether CartPole is solved on three hosts, whatever the network between them does.

The hosts are network namespaces of this machine: the trainer on one, an actor on another, a policy
worker on the third. In turn: a good network; 20 ms each way and 20 Mbit/s; the actors' host cut off
for 10 s in the middle of the run; the policy worker's host lost for good. Each run must reach a
return of 475 with every fragment accounted for, and leave no process and no shared memory. Needs
root. Leaves out: real machines and real switches.

    python benchmarks/soak_hosts.py [--runs 3]
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from results import write_result

from srl.arena.shm import ROOT_VARIABLE, shm_root

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "system"))

from harness import Training, read_summary
from test_hosts_network import ThreeHosts

LIMIT_SECONDS = 600.0
CUT_SECONDS = 10.0


@dataclass(frozen=True)
class Outcome:
    """One run."""

    case: str
    seconds: float
    env_steps: int
    problems: tuple[str, ...]

    def row(self) -> str:
        """Its line in the table."""
        problems = "; ".join(self.problems) or "none"
        return f"| {self.case} | {self.seconds:.0f} | {self.env_steps:,} | {problems} |"


def leave_alone(three: ThreeHosts, training: Training) -> None:
    """Nothing happens."""


def cut_off(three: ThreeHosts, training: Training) -> None:
    """The actors' host is off the network for a while."""
    training.wait_for_updates(10)
    three.network.cut("actors")
    time.sleep(CUT_SECONDS)
    three.network.mend("actors")


def lose(three: ThreeHosts, training: Training) -> None:
    """The policy worker's host is gone for good."""
    training.wait_for_updates(10)
    three.network.cut("policies")


Fault = Callable[[ThreeHosts, Training], None]
CASES: dict[str, tuple[dict[str, float], tuple[str, ...], Fault]] = {
    "good network": ({}, (), leave_alone),
    "20 ms, 20 Mbit/s": (
        {"delay_seconds": 0.02, "mbit": 20.0},
        ("--set", "actor.envs=64", "--set", "algorithm.rollout_length=32"),
        leave_alone,
    ),
    "cut off for 10 s": ({}, (), cut_off),
    "a host is lost": ({}, (), lose),
}


def run(case: str) -> Outcome:
    """One run to its end."""
    link, settings, fault = CASES[case]
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryDirectory(prefix="srl-soak-", dir=shm_root()) as shm,
    ):
        os.environ[ROOT_VARIABLE] = shm
        begun = time.monotonic()
        three = ThreeHosts(Path(folder), **link)
        training = three.train(*settings)
        try:
            fault(three, training)
            code = training.wait(LIMIT_SECONDS)
            seconds = time.monotonic() - begun
        finally:
            training.kill()
            three.close()
            del os.environ[ROOT_VARIABLE]
        left = [path.name for path in Path(shm).iterdir()]
        return judge(case, seconds, code, training, left)


def judge(case: str, seconds: float, code: int, training: Training, left: list[str]) -> Outcome:
    """What went wrong, if anything."""
    summary = read_summary(training.run_dir)
    metrics, at = summary["metrics"], "samples.default."
    books = {key.removeprefix(at): n for key, n in metrics.items() if key.startswith(at)}
    gone = sum(n for key, n in books.items() if key in ("dropped.reader died", "consumed"))
    problems = []
    if code or not summary["reason"].startswith("reached"):
        problems.append(f"not solved: {summary['error'] or summary['reason']}")
    if books["produced"] != gone + books["in_flight"] + books.get("dropped.out of turn", 0):
        problems.append(f"books do not add up: {books}")
    if training.survivors():
        problems.append(f"{len(training.survivors())} processes left")
    if left:
        problems.append(f"shared memory left: {left}")
    return Outcome(case, seconds, summary["env_steps"], tuple(problems))


def main() -> int:
    """Runs every case, and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3, help="of each case")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        print("network namespaces need root; nothing was run", file=sys.stderr)
        return 0
    outcomes = []
    for case in CASES:
        for _ in range(arguments.runs):
            outcomes.append(run(case))
            print(outcomes[-1].row(), file=sys.stderr, flush=True)
    table = ["| network | seconds | steps | problems |", "|---|---|---|---|"]
    lines = [*table, *(outcome.row() for outcome in outcomes)]
    print(write_result("soak_hosts", __doc__, lines), file=sys.stderr)
    return 1 if any(outcome.problems for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
