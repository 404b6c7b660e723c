"""Measuring a workload three ways side by side, beside what the machine could do at most."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from srl.bench.costs import env_only, measure_costs
from srl.bench.limit import Costs, Limit, limit_of
from srl.bench.machine import commit, load, machine, versions
from srl.bench.trial import Rate, run_trial
from srl.experiment import Experiment
from srl.launch.plan import (
    algorithm_settings,
    available_cores,
    choose_device,
    network_settings,
    settle,
)

COST_SECONDS = 2.0
"""How long each part is run for its cost, if the window is not shorter."""
SHARE = 3
"""Environments alone, and with inference, are measured for a third of the window each."""


@dataclass(frozen=True, kw_only=True)
class Round:
    """One measurement of everything."""

    env_only: float
    """Environment steps per second, if actors did nothing else."""
    with_inference: float
    """The same with policies, streams and fragments, which are then thrown away."""
    training: Rate
    """The whole system: steps that went through an update."""
    costs: Costs
    limit: Limit
    other_load: float
    """Share of the machine that other programs used, the most that was seen between two parts."""

    @property
    def share(self) -> float:
        """Of the limit that was reached."""
        return self.training.steps_per_second / self.limit.steps_per_second


@dataclass(frozen=True, kw_only=True)
class Result:
    """A workload, as it was run, and its rounds."""

    workload: str
    experiment: Experiment
    """Settled: with the layout and the counts that it ran with."""
    cores: int
    rounds: tuple[Round, ...]

    @property
    def middle(self) -> Round:
        """The round whose training rate is the median (the lower one of two)."""
        ranked = sorted(self.rounds, key=lambda r: r.training.steps_per_second)
        return ranked[(len(ranked) - 1) // 2]


def settled(experiment: Experiment) -> tuple[Experiment, str]:
    """The experiment as this machine runs it, and its device."""
    device = choose_device(experiment.trainer.device)
    return settle(experiment, available_cores(), device), device


def measure(
    workload: str,
    experiment: Experiment,
    *,
    seconds: float,
    warmup: float,
    rounds: int,
    say: Callable[[str], None],
) -> Result:
    """Measures an experiment `rounds` times."""
    ready, device = settled(experiment)
    cores = available_cores()
    found = []
    for number in range(rounds):
        head = f"{workload} {ready.layout}" + (f" round {number + 1}" if rounds > 1 else "")

        def tell(text: str, head: str = head) -> None:
            say(f"{head}: {text}")

        loads = [load()]
        tell("environments alone")
        alone = env_only(ready, device, seconds / SHARE)
        tell(f"environments alone {alone:,.0f} steps/s; with inference")
        loads.append(load())
        hook = "srl.bench.discard:without_training"
        inferred = run_trial(ready, seconds=seconds / SHARE, warmup=warmup, dataflow=hook)
        tell(f"with inference {inferred.steps_per_second:,.0f} steps/s; training")
        loads.append(load())
        trained = run_trial(ready, seconds=seconds, warmup=warmup)
        tell(f"training {trained.steps_per_second:,.0f} steps/s")
        loads.append(load())
        costs = measure_costs(ready, device, cores, min(COST_SECONDS, seconds), tell)
        found.append(
            Round(
                env_only=alone,
                with_inference=inferred.steps_per_second,
                training=trained,
                costs=costs,
                limit=limit_of(costs, cores),
                other_load=max(loads),
            )
        )
    return Result(workload=workload, experiment=ready, cores=cores, rounds=tuple(found))


def as_record(result: Result) -> dict[str, Any]:
    """The result as one JSON object: medians over the rounds, and every round."""
    middle = result.middle
    experiment = result.experiment

    def median(values: list[float], digits: int = 1) -> float:
        return round(statistics.median(values), digits)

    rounds = result.rounds
    return {
        "workload": result.workload,
        "layout": experiment.layout,
        "steps_per_second": median([r.training.steps_per_second for r in rounds]),
        "env_only": median([r.env_only for r in rounds]),
        "with_inference": median([r.with_inference for r in rounds]),
        "limit": median([r.limit.steps_per_second for r in rounds]),
        "share_of_limit": median([r.share for r in rounds], 4),
        "policy_age_mean": median([r.training.policy_age_mean for r in rounds], 3),
        "limit_binds": middle.limit.binds,
        "costs_microseconds": {
            name: round(cost * 1e6, 3)
            for name, cost in dataclasses.asdict(middle.costs).items()
            if name != "at_once"
        },
        "seconds": round(middle.training.seconds, 1),
        "rounds": [
            {
                "steps_per_second": round(r.training.steps_per_second, 1),
                "env_only": round(r.env_only, 1),
                "with_inference": round(r.with_inference, 1),
                "limit": round(r.limit.steps_per_second, 1),
                "policy_age_mean": round(r.training.policy_age_mean, 3),
            }
            for r in rounds
        ],
        "workers": {
            kind: {what: round(share, 3) for what, share in shares.items()}
            for kind, shares in middle.training.workers.items()
        },
        "bottleneck": middle.training.bottleneck,
        "bottleneck_setting": middle.training.setting,
        "other_load": median([r.other_load for r in rounds], 3),
        "cores": result.cores,
        "env": experiment.env.id,
        "counts": counts(experiment),
        "algorithm": algorithm_settings(experiment),
        "network": network_settings(experiment),
        "machine": machine(),
        "commit": commit(),
        "versions": versions(),
    }


def counts(experiment: Experiment) -> dict[str, int]:
    """How a settled experiment is spread over the machine, by the names that `--set` takes."""
    return {
        "actor.envs": experiment.actor.envs,
        "actor.count": experiment.actor.count,
        "actor.groups": experiment.actor.groups,
        "inference.count": experiment.inference.count,
        "inference.threads": experiment.inference.threads,
        "trainer.threads": experiment.trainer.threads,
    }
