"""What V-trace is worth: learning from data of a forced age, with and without correction.

A worker between actors and trainer holds fragments back, so in `serial` every batch is a known
number of policy versions old. CartPole is trained until a mean return of 475 over the last 100
episodes. `none` is IMPALA without importance weights: the plain policy gradient. Equal settings
give equal numbers on any machine with the same torch, however busy.

    python benchmarks/bench_policy_age.py [--seeds 5] [--ages 0 5 20] [--write]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import torch
from results import write_result

import srl
from srl.algorithms.appo.config import APPOConfig
from srl.algorithms.appo.learner import APPO
from srl.algorithms.impala.config import IMPALAConfig
from srl.algorithms.impala.learner import IMPALA
from srl.algorithms.learning.one_pass import TargetInputs, Targets
from srl.services.metrics import read_metrics
from srl.testing.delay import delayed

STEPS = 200_000


@dataclass(frozen=True, kw_only=True)
class DelayedConfig(IMPALAConfig):
    """Settings of IMPALA, and the age of its data."""

    age: int = 0

    def dataflow(self, graph: srl.Graph, policy: str) -> srl.Graph:
        return delayed(graph, policy, self.age) if self.age else graph


class Delayed(IMPALA):
    """IMPALA on data of a known age."""

    Config = DelayedConfig


class Uncorrected(Delayed):
    """The same without importance weights."""

    def targets(self, ticks: TargetInputs, counts: torch.Tensor) -> Targets:
        return super().targets(ticks._replace(behaviour_log_prob=ticks.log_prob), counts)


@dataclass(frozen=True, kw_only=True)
class DelayedAPPOConfig(APPOConfig):
    """Settings of APPO, and the age of its data."""

    age: int = 0

    def dataflow(self, graph: srl.Graph, policy: str) -> srl.Graph:
        return delayed(graph, policy, self.age) if self.age else graph


class DelayedAPPO(APPO):
    """APPO on data of a known age."""

    Config = DelayedAPPOConfig


IMPALA_SETTINGS = {"rollout_length": 16, "learning_rate": 3e-3, "entropy_coefficient": 0.0}
APPO_SETTINGS = {
    **{"rollout_length": 64, "epochs": 4, "learning_rate": 1e-3, "entropy_coefficient": 0.0},
    **{"gamma": 0.98, "gae_lambda": 0.9},
}
KINDS = {
    "impala": ("Delayed", IMPALA_SETTINGS),
    "none": ("Uncorrected", IMPALA_SETTINGS),
    "appo": ("DelayedAPPO", APPO_SETTINGS),
}


@dataclass(frozen=True)
class Outcome:
    """One run."""

    kind: str
    age: int
    seed: int
    reached: bool
    env_steps: int
    episode_return: float
    policy_age: float


def experiment(kind: str, age: int, seed: int) -> srl.Experiment:
    """CartPole with data of a known age."""
    name, settings = KINDS[kind]
    return srl.Experiment(
        name=kind,
        env=srl.EnvConfig(id="CartPole-v1"),
        actor=srl.ActorConfig(envs=16),
        algorithm={"name": f"{__file__}:{name}", "age": age, **settings},
        network={"name": "actor_critic", "normalize_obs": True},
        layout="serial",
        steps=STEPS,
        until="return>=475",
        seed=seed,
    )


def measure(kinds: list[str], ages: list[int], seeds: int) -> Iterator[Outcome]:
    for kind in kinds:
        for age in ages:
            for seed in range(1, seeds + 1):
                with tempfile.TemporaryDirectory() as folder:
                    run = srl.train(experiment(kind, age, seed), run_dir=folder, quiet=True)
                    lines, summary = read_metrics(run.path), run.summary
                outcome = Outcome(
                    kind=kind,
                    age=age,
                    seed=seed,
                    reached=summary.reason.startswith("reached"),
                    env_steps=summary.env_steps,
                    episode_return=round(summary.episode_return_mean or 0.0, 1),
                    policy_age=max(line.get("policy_age_mean") or 0.0 for line in lines),
                )
                print(f"{outcome}", file=sys.stderr, flush=True)
                yield outcome


def table(outcomes: list[Outcome]) -> list[str]:
    """A line for each kind and age."""
    lines = [
        "| targets | age | solved | steps to 475 (median) | return at the end (median) |",
        "|---|--:|--:|--:|--:|",
    ]
    for kind, age in dict.fromkeys((o.kind, o.age) for o in outcomes):
        mine = [o for o in outcomes if (o.kind, o.age) == (kind, age)]
        solved = [o.env_steps for o in mine if o.reached]
        # A run that did not solve it counts as longer than all that did.
        steps = sorted(o.env_steps if o.reached else STEPS + 1 for o in mine)[len(mine) // 2]
        lines.append(
            f"| {kind} | {age} | {len(solved)} of {len(mine)} | "
            f"{'not reached' if steps > STEPS else f'{steps:,}'} | "
            f"{statistics.median(o.episode_return for o in mine):.0f} |"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--ages", nargs="+", type=int, default=[0, 5, 20])
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--write", action="store_true", help="write into benchmarks/results")
    options = parser.parse_args()
    outcomes = list(measure(options.kinds, options.ages, options.seeds))
    lines = table(outcomes)
    if options.write:
        print(write_result("policy_age", __doc__, lines), file=sys.stderr)
    print("\n".join(lines), file=sys.stderr)
    print(json.dumps({"benchmark": "policy_age", "runs": [asdict(o) for o in outcomes]}))


if __name__ == "__main__":
    main()
