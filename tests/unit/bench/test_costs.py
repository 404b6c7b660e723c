"""Costs of a workload's parts from the pieces of measurements."""

from __future__ import annotations

import pytest

from srl.bench.bench import settled
from srl.bench.copies import CopyTiming
from srl.bench.costs import Timings, costs_of, group_sizes
from srl.bench.workloads import find_target
from srl.experiment import Experiment


def w2a(**settings: object) -> Experiment:
    return settled(find_target("W2a", "shared", settings))[0]


def pieces(sizes: tuple[int, ...], env_call: float, env_each: float) -> Timings:
    """Parts whose calls cost something by themselves, and something for each environment."""

    def taken(seconds: float) -> CopyTiming:
        return CopyTiming(walls=[seconds] * 3, cpus=[seconds] * 3, calls=3, seconds=3 * seconds)

    found = {f"env {n} 1": taken(env_call + n * env_each) for n in sizes}
    found |= {f"inference {n} 1": taken(n * 1e-4) for n in sizes}
    return {**found, "training:default 8 1": taken(1.024), "training:default 8 2": taken(0.6)}


@pytest.mark.parametrize(("count", "groups"), [(1, 1), (2, 1), (2, 2)])
def test_how_a_run_groups_its_environments_does_not_change_the_limit(
    count: int, groups: int
) -> None:
    experiment = w2a(**{"actor.count": count, "actor.groups": groups})
    sizes = group_sizes(experiment, 2)
    assert experiment.actor.envs // (count * groups) in sizes
    costs = costs_of(experiment, 2, pieces(sizes, env_call=8e-5, env_each=4e-4))
    assert costs.env == pytest.approx(4.1e-4)
    assert costs.inference == pytest.approx(1e-4)
    assert costs.training == pytest.approx(1e-3)
    assert costs.train_chain == pytest.approx(0.6 / 1024)


def test_two_measurements_count_together() -> None:
    experiment = w2a(**{"actor.count": 1, "actor.groups": 1})
    sizes = group_sizes(experiment, 2)
    before, after = pieces(sizes, 0.0, 4e-4), pieces(sizes, 0.0, 8e-4)
    assert costs_of(experiment, 2, before, after).env == pytest.approx(6e-4)
