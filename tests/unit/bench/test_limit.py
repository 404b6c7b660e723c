"""The limit of a workload from what its parts cost."""

from __future__ import annotations

import dataclasses

import pytest

from srl.bench.limit import Costs, limit_of

COSTS = Costs(
    env=100e-6, inference=200e-6, training=700e-6, collect_chain=50e-6, train_chain=400e-6
)


def test_cores_set_the_limit_where_chains_are_short() -> None:
    found = limit_of(COSTS, cores=2)
    assert found.steps_per_second == pytest.approx(2_000)
    assert found.binds == "cores"


def test_the_chain_of_updates_sets_it_where_cores_are_many() -> None:
    found = limit_of(COSTS, cores=8)
    assert found.steps_per_second == pytest.approx(2_500)
    assert found.binds == "training"


def test_the_chain_of_ticks_sets_it_where_environments_are_few() -> None:
    found = limit_of(dataclasses.replace(COSTS, collect_chain=1e-3), cores=8)
    assert found.steps_per_second == pytest.approx(1_000)
    assert found.binds == "collecting"


def test_without_overlap_both_chains_follow_each_other() -> None:
    found = limit_of(dataclasses.replace(COSTS, overlaps=False), cores=8)
    assert found.steps_per_second == pytest.approx(1 / 450e-6)
    assert found.binds == "collecting, then training"
