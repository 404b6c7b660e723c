"""Whether CartPole is solved on three hosts, whatever the network between them does.

The hosts are network namespaces of this machine: the trainer on one, an actor on another, a policy
worker on the third. In turn: a good network; 20 ms each way and 20 Mbit/s; the actors' host cut off
for 10 s in the middle of the run; the policy worker's host lost for good. Each run must reach a
return of 475 with every fragment accounted for; on no host may a version go backwards, and no
process and no shared memory may be left. Where a run has other settings than the recipe, the table
says so: over the slow network more environments take fewer and larger steps. Needs root; without it
nothing is run and the exit code is 77. Leaves out: real machines and real switches.

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

from chaos import accounts
from harness import Training, read_summary
from test_hosts_network import ThreeHosts
from test_trainer_hosts import Versions

LIMIT_SECONDS = 600.0
CUT_SECONDS = 10.0
SKIPPED = 77
"""The exit code of a test that could not be run, as automake has it."""


@dataclass(frozen=True)
class Outcome:
    """One run."""

    case: str
    settings: str
    seconds: float
    env_steps: int
    problems: tuple[str, ...]

    def row(self) -> str:
        """Its line in the table."""
        problems = "; ".join(self.problems) or "none"
        settings = self.settings or "the recipe's"
        return (
            f"| {self.case} | {settings} | {self.seconds:.0f} | {self.env_steps:,} | {problems} |"
        )


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
        ("actor.envs=64", "algorithm.rollout_length=32"),
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
        versions = Versions(Path(shm))
        three = ThreeHosts(Path(folder), **link)
        training = three.train(*(part for setting in settings for part in ("--set", setting)))
        try:
            fault(three, training)
            code = training.wait(LIMIT_SECONDS)
            seconds = time.monotonic() - begun
        finally:
            training.kill()
            three.close()
            del os.environ[ROOT_VARIABLE]
        left = [path.name for path in Path(shm).iterdir()]
        problems = judge(code, training, versions.stop(), left)
        steps = read_summary(training.run_dir)["env_steps"]
        return Outcome(case, ", ".join(settings), seconds, steps, problems)


def judge(
    code: int, training: Training, versions: list[list[int]], left: list[str]
) -> tuple[str, ...]:
    """What went wrong, if anything."""
    summary = read_summary(training.run_dir)
    kept = accounts(summary)
    problems = []
    if code or not summary["reason"].startswith("reached"):
        problems.append(f"not solved: {summary['error'] or summary['reason']}")
    if kept["lost"] or not kept["consumed"]:
        problems.append(f"accounts do not add up: {kept}")
    problems += [f"a version went backwards: {seen}" for seen in versions if seen != sorted(seen)]
    if sum(len(seen) > 2 for seen in versions) < 2:
        problems.append(f"weights were not seen on several hosts: {versions}")
    if training.survivors():
        problems.append(f"{len(training.survivors())} processes left")
    if left:
        problems.append(f"shared memory left: {left}")
    return tuple(problems)


def main() -> int:
    """Runs every case, and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3, help="of each case")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        print("skipped: network namespaces need root; nothing was run", file=sys.stderr)
        return SKIPPED
    outcomes = []
    for case in CASES:
        for _ in range(arguments.runs):
            outcomes.append(run(case))
            print(outcomes[-1].row(), file=sys.stderr, flush=True)
    table = ["| network | settings | seconds | steps | problems |", "|---|---|---|---|---|"]
    lines = [*table, *(outcome.row() for outcome in outcomes)]
    print(write_result("soak_hosts", __doc__, lines), file=sys.stderr)
    return 1 if any(outcome.problems for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
