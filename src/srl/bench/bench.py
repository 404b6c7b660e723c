"""Measures the speed of a workload in three ways, and the limit of the machine for it."""

from __future__ import annotations

import dataclasses
import os
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from srl.bench.costs import Timings, costs_of, env_only, measure_parts, rollout_length
from srl.bench.limit import Costs, Limit, limit_of
from srl.bench.machine import commit, machine, versions
from srl.bench.trial import Rate, run_trial
from srl.bench.usage import Usage
from srl.envs.registry import probe
from srl.experiment import Experiment
from srl.launch.plan.build import (
    algorithm_settings,
    available_cores,
    choose_device,
    make_plan,
    network_settings,
    resolve_settings,
)

T = TypeVar("T")

COST_SECONDS = 2.0
"""The cost of each part is measured for this long before training, and again after it."""
SHORTER, MAX_SECONDS = 3, 10.0
"""Environments alone, and environments with inference, are each measured for 1 / SHORTER of the
window, but at most for MAX_SECONDS."""
MAX_DISAGREEMENT = 0.15
"""A result is doubtful if the limits before and after training differ by more than this."""

MAX_OTHER_LOAD = 0.05
"""A result is doubtful if other programs used a larger share of the machine."""

Parts = Literal["all", "limit", "none"]
"""What is measured beside training: everything, only the limit, or nothing."""


@dataclass(frozen=True, kw_only=True)
class Bound:
    """The limit of the machine, from costs before and after training."""

    costs: Costs
    limit: Limit
    """From both measurements together."""
    before: float
    """The limit from the first measurement alone."""
    after: float
    """The limit from the second measurement alone."""

    @property
    def disagreement(self) -> float:
        """How far the two limits differ, as a share of the smaller one; 0 where they agree."""
        return max(self.before, self.after) / min(self.before, self.after) - 1.0


@dataclass(frozen=True, kw_only=True)
class Round:
    """One round of all measurements. A field is None if that was not measured."""

    training: Rate
    """The whole system; it counts the steps that went through an update."""
    env_only: float | None = None
    """Environment steps per second, if actors did nothing else."""
    with_inference: float | None = None
    """The same with policies and streams. Fragments are made, and discarded without training."""
    bound: Bound | None = None
    other_load: float
    """Share of the machine that other programs used; the largest over the parts of the round."""

    @property
    def share(self) -> float | None:
        """The training rate as a share of the limit."""
        if self.bound is None:
            return None
        return self.training.steps_per_second / self.bound.limit.steps_per_second


@dataclass(frozen=True, kw_only=True)
class BenchResult:
    """A workload, its settings in this run, and its rounds."""

    workload: str
    experiment: Experiment
    """With the layout and the counts that it ran with."""
    cores: int
    parameters: int
    """Of all policies together."""
    rounds: tuple[Round, ...]

    @property
    def middle(self) -> Round:
        """The round whose training rate is the median (of two middle ones the lower)."""
        ranked = sorted(self.rounds, key=lambda r: r.training.steps_per_second)
        return ranked[(len(ranked) - 1) // 2]


def settled(experiment: Experiment) -> tuple[Experiment, str]:
    """The experiment with every open setting decided for this machine, and its device."""
    device = choose_device(experiment.trainer.device)
    return resolve_settings(experiment, available_cores(), device), device


def measure(
    workload: str,
    experiment: Experiment,
    *,
    seconds: float,
    warmup: float,
    rounds: int,
    say: Callable[[str], None],
    parts: Parts = "all",
) -> BenchResult:
    """Measures an experiment `rounds` times."""
    ready, device = settled(experiment)
    if parts != "none":
        rollout_length(ready)
    found = []
    for number in range(rounds):
        head = f"{workload} {ready.layout}" + (f" round {number + 1}" if rounds > 1 else "")
        found.append(_Measurement(ready, device, head, say).round(seconds, warmup, parts))
    return BenchResult(
        workload=workload,
        experiment=ready,
        cores=available_cores(),
        parameters=num_parameters(ready, device),
        rounds=tuple(found),
    )


class _Measurement:
    """Measures one round, and notes the load of other programs in each of its parts."""

    def __init__(
        self, ready: Experiment, device: str, head: str, say: Callable[[str], None]
    ) -> None:
        self._ready, self._device = ready, device
        self._head, self._tell = head, say
        self._cores = available_cores()
        self._loads: list[float] = []

    def round(self, seconds: float, warmup: float, parts: Parts) -> Round:
        """Measures costs, environments alone, with inference, training, and costs again."""
        cost_seconds = min(COST_SECONDS, seconds / 4)
        before = None if parts == "none" else self._pieces(cost_seconds)
        alone = inferred = None
        if parts == "all":
            short = min(seconds / SHORTER, MAX_SECONDS)
            self._say("environments alone")
            alone = self._with_load(lambda: env_only(self._ready, self._device, short))
            self._say(f"environments alone {alone:,.0f} steps/s; with inference")
            hook = "srl.bench.discard:without_training"
            inferred = self._trial(short, warmup, hook).steps_per_second
            self._say(f"with inference {inferred:,.0f} steps/s")
        self._say("training")
        trained = self._trial(seconds, warmup)
        self._say(f"training {trained.steps_per_second:,.0f} steps/s")
        bound = None if before is None else self._bound(before, self._pieces(cost_seconds))
        return Round(
            training=trained,
            env_only=alone,
            with_inference=inferred,
            bound=bound,
            other_load=max(self._loads),
        )

    def _say(self, text: str) -> None:
        self._tell(f"{self._head}: {text}")

    def _trial(self, seconds: float, warmup: float, dataflow: str = "") -> Rate:
        rate = run_trial(self._ready, seconds=seconds, warmup=warmup, dataflow=dataflow)
        self._loads.append(rate.other_load)
        return rate

    def _pieces(self, seconds: float) -> Timings:
        return self._with_load(
            lambda: measure_parts(self._ready, self._device, self._cores, seconds, self._say)
        )

    def _bound(self, before: Timings, after: Timings) -> Bound:
        def limit(*measured: Timings) -> Limit:
            return limit_of(costs_of(self._ready, self._cores, *measured), self._cores)

        return Bound(
            costs=costs_of(self._ready, self._cores, before, after),
            limit=limit(before, after),
            before=limit(before).steps_per_second,
            after=limit(after).steps_per_second,
        )

    def _with_load(self, part: Callable[[], T]) -> T:
        """Runs a part of the round and notes the load of other programs."""
        usage = Usage(os.getpid())
        found = part()
        self._loads.append(usage.so_far().others)
        return found


def num_parameters(experiment: Experiment, device: str) -> int:
    """Parameters of all policies together."""
    _, modules = make_plan(experiment, probe(experiment.env), device)
    return sum(p.numel() for module in modules.values() for p in module.parameters())


def as_record(result: BenchResult) -> dict[str, Any]:
    """The result as one JSON object, with medians over the rounds and every round."""
    middle = result.middle
    experiment = result.experiment
    rounds = [_round_record(one) for one in result.rounds]

    def known(key: str) -> list[float]:
        return [value for one in rounds if (value := one[key]) is not None]

    def median(key: str, digits: int = 1) -> float | None:
        values = known(key)
        return round(statistics.median(values), digits) if values else None

    return {
        "workload": result.workload,
        "layout": experiment.layout,
        "steps_per_second": median("steps_per_second"),
        "env_only": median("env_only"),
        "with_inference": median("with_inference"),
        "limit": median("limit"),
        "share_of_limit": median("share_of_limit", 4),
        "policy_age_mean": median("policy_age_mean", 3),
        "limit_binds": middle.bound.limit.binds if middle.bound else None,
        "limit_disagreement": max(known("limit_disagreement"), default=None),
        "doubtful": doubts(result),
        "costs_microseconds": costs_record(middle.bound.costs) if middle.bound else None,
        "core_microseconds": {
            kind: round(seconds * 1e6, 3) for kind, seconds in middle.training.core_seconds.items()
        },
        "idle_cores": round(middle.training.idle_cores, 3),
        "seconds": round(middle.training.seconds, 1),
        "rounds": rounds,
        "workers": {
            kind: {what: round(share, 3) for what, share in shares.items()}
            for kind, shares in middle.training.workers.items()
        },
        "bottleneck": middle.training.bottleneck,
        "bottleneck_setting": middle.training.setting,
        "other_load": max(known("other_load")),
        "cores": result.cores,
        "parameters": result.parameters,
        "env": experiment.env.id,
        "counts": counts(experiment),
        "algorithm": algorithm_settings(experiment),
        "network": network_settings(experiment),
        "machine": machine(),
        "commit": commit(),
        "versions": versions(),
    }


def _round_record(one: Round) -> dict[str, float | None]:
    def rounded(value: float | None, digits: int = 1) -> float | None:
        return None if value is None else round(value, digits)

    bound = one.bound
    return {
        "steps_per_second": rounded(one.training.steps_per_second),
        "env_only": rounded(one.env_only),
        "with_inference": rounded(one.with_inference),
        "limit": rounded(bound.limit.steps_per_second if bound else None),
        "limit_before": rounded(bound.before if bound else None),
        "limit_after": rounded(bound.after if bound else None),
        "limit_disagreement": rounded(bound.disagreement if bound else None, 3),
        "share_of_limit": rounded(one.share, 4),
        "policy_age_mean": rounded(one.training.policy_age_mean, 3),
        "other_load": rounded(one.other_load, 3),
    }


def costs_record(costs: Costs) -> dict[str, float]:
    """Costs in microseconds."""
    return {
        name: round(cost * 1e6, 3)
        for name, cost in dataclasses.asdict(costs).items()
        if name != "overlaps"
    }


def doubts(result: BenchResult) -> list[str]:
    """Reasons not to quote a result; empty where there are none."""
    found = []
    load = max(one.other_load for one in result.rounds)
    if load > MAX_OTHER_LOAD:
        found.append(f"other programs used {load:.0%} of the machine")
    apart = max((one.bound.disagreement for one in result.rounds if one.bound), default=0.0)
    if apart > MAX_DISAGREEMENT:
        found.append(f"the limits before and after training differ by {apart:.0%}")
    return found


def counts(experiment: Experiment) -> dict[str, int]:
    """The counts of a settled experiment, by the names that `--set` takes."""
    return {
        "actor.envs": experiment.actor.envs,
        "actor.count": experiment.actor.count,
        "actor.groups": experiment.actor.groups,
        "inference.count": experiment.inference.count,
        "inference.threads": experiment.inference.threads,
        "trainer.threads": experiment.trainer.threads,
    }
