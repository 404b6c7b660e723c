"""The layouts give the same learning: CartPole is solved in each of them.

The full statement, five seeds and the steps that each needs, is `benchmarks/bench_learning.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

import srl
from srl.recipes import find_recipe
from srl.services.metrics import read_metrics

MOST_STEPS = 160_000
"""Seen over seeds 1 to 5 in every layout: 56,000 to 84,000 steps."""


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("layout", ["serial", "inline", "shared", "remote"])
def test_cartpole_is_solved(train: Callable[..., srl.Run], layout: str, seed: int) -> None:
    run = train("cartpole", layout=layout, seed=seed, until="return>=475")

    assert run.summary.reason == "reached return>=475"
    assert run.summary.env_steps <= MOST_STEPS
    if seed == 1:
        assert run.evaluate(episodes=20).mean >= 450


def test_cartpole_is_solved_without_kernels(train: Callable[..., srl.Run]) -> None:
    plain = {"network.kernels": "reference"}
    run = train("cartpole", layout="serial", seed=1, until="return>=475", set=plain)

    assert run.summary.reason == "reached return>=475"
    assert run.summary.env_steps <= MOST_STEPS


def test_appo_learns_from_data_that_is_many_versions_old(train: Callable[..., srl.Run]) -> None:
    # Seen over seeds 1 to 6: solved after 80,000 to 145,000 steps, at a mean age of 8 versions.
    settings = find_recipe("cartpole")().algorithm
    run = train(
        "cartpole",
        layout="inline",
        until="return>=475",
        set={
            **{f"algorithm.{key}": value for key, value in settings.items()},
            "algorithm.name": "appo",
            "algorithm.max_policy_age": 8,
            "algorithm.learning_rate": 1e-3,
            "sample.slots": 16,
        },
    )

    assert run.summary.reason == "reached return>=475"
    ages = [line.get("policy_age_mean") or 0.0 for line in read_metrics(run.path)]
    assert max(ages) > 4.0
