"""Whether each algorithm learns a real task, for several seeds.

Each run is in `serial`, so equal seeds give equal numbers with the same torch. `goal` is a mean
return that random actions are far from. A row marked `no` must stay below it: the same task without
the memory that it needs.

    python benchmarks/soak_learning.py [--seeds 5] [--tasks cartpole_dqn pendulum_td3] [--write]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from results import write_result

import srl


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is trained, and which mean return it must reach."""

    target: str
    goal: float
    steps: int
    algorithm: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    reaches: bool = True
    """Whether the goal must be reached, or must not."""


_NO_MEMORY = {
    "network.recurrent": "none",
    "algorithm.sequence_length": 1,
    "algorithm.batch_size": 256,
}
TASKS = {
    "cartpole_impala": Task(target="cartpole_impala", goal=450, steps=400_000),
    "cartpole_appo": Task(target="cartpole_appo", goal=450, steps=400_000),
    "cartpole_a2c": Task(target="CartPole-v1", algorithm="a2c", goal=400, steps=400_000),
    "cartpole_dqn": Task(target="cartpole_dqn", goal=400, steps=100_000),
    "pendulum_sac": Task(target="pendulum_sac", goal=-300, steps=10_000),
    "pendulum_td3": Task(target="pendulum_td3", goal=-300, steps=10_000),
    "memory_r2d2": Task(target="memory_r2d2", goal=0.8, steps=60_000),
    "memory_dqn": Task(
        target="memory_r2d2", goal=0.4, steps=20_000, settings=_NO_MEMORY, reaches=False
    ),
}


@dataclass(frozen=True)
class Outcome:
    """One run."""

    task: str
    seed: int
    env_steps: int
    updates: int
    seconds: float
    score: float
    good: bool

    def row(self) -> str:
        """Its line in the table."""
        task = TASKS[self.task]
        return (
            f"| {self.task} | {self.seed} | {self.env_steps:,} | {self.updates:,} | "
            f"{self.seconds:.0f} | {self.score:.2f} | {task.goal:g} | "
            f"{'yes' if task.reaches else 'no'} | {'as it must' if self.good else 'WRONG'} |"
        )


def run(name: str, seed: int) -> Outcome:
    """One training and its greedy evaluation."""
    task = TASKS[name]
    given: dict[str, Any] = {"algorithm": task.algorithm} if task.algorithm else {}
    if not task.reaches:
        given["until"] = "none"
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        trained = srl.train(
            task.target,
            layout="serial",
            steps=task.steps,
            seed=seed,
            run_dir=folder,
            fresh=True,
            quiet=True,
            set=task.settings,
            **given,
        )
        summary = trained.summary
        score = trained.evaluate(episodes=50).mean
    return Outcome(
        task=name,
        seed=seed,
        env_steps=summary.env_steps,
        updates=summary.policy_version,
        seconds=time.monotonic() - begun,
        score=score,
        good=(score >= task.goal) == task.reaches,
    )


def measure(names: list[str], seeds: int) -> Iterator[Outcome]:
    """All runs, with a line on stderr for each."""
    for name in names:
        for seed in range(1, seeds + 1):
            outcome = run(name, seed)
            print(outcome.row(), file=sys.stderr, flush=True)
            yield outcome


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    parser.add_argument("--write", action="store_true", help="write into benchmarks/results")
    options = parser.parse_args()
    outcomes = list(measure(options.tasks, options.seeds))
    wrong = [outcome for outcome in outcomes if not outcome.good]
    lines = [
        f"{len(outcomes)} runs, {len(wrong)} of them wrong.",
        "",
        "| task | seed | env steps | updates | seconds | return | goal | must reach it | result |",
        "|---|--:|--:|--:|--:|--:|--:|---|---|",
        *(outcome.row() for outcome in outcomes),
    ]
    if options.write:
        print(write_result("soak_learning", __doc__, lines), file=sys.stderr)
    print("\n".join(lines), file=sys.stderr)
    print(json.dumps({"soak": "soak_learning", "runs": [asdict(o) for o in outcomes]}))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
