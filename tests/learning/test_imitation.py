"""Behaviour cloning acts as well as the expert whose episodes it has seen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import srl

pytest.importorskip("h5py", reason="needs the extra `datasets`")

from experts import record_rule, rule_run

STEPS = 60_000
"""Seen over seeds 1 to 5: 500 each time with the whole episodes, 105 to 168 with the short one."""


@pytest.mark.parametrize("layout", ["serial", "shared"])
def test_cloning_reaches_the_expert(
    train: Callable[..., srl.Run], tmp_path: Path, layout: str
) -> None:
    dataset = str(record_rule(tmp_path / "whole", episodes=10))
    settings = {"algorithm.dataset": dataset, "evaluator.count": 0}
    run = train("CartPole-v1", algorithm="bc", layout=layout, steps=STEPS, set=settings)
    assert run.evaluate(20).mean >= 475


def test_cloning_a_part_of_one_episode_does_not(
    train: Callable[..., srl.Run], tmp_path: Path
) -> None:
    dataset = str(record_rule(tmp_path / "short", episodes=1, steps=60))
    settings = {"algorithm.dataset": dataset, "evaluator.count": 0}
    run = train("CartPole-v1", algorithm="bc", layout="serial", steps=STEPS, set=settings)
    assert run.evaluate(20).mean < 300


@pytest.mark.parametrize(("layout", "beta_steps"), [("serial", 0), ("shared", 2000)])
def test_dagger_reaches_the_expert_without_a_recorded_step(
    train: Callable[..., srl.Run], tmp_path: Path, layout: str, beta_steps: int
) -> None:
    """Without a step that the expert played, only what it says of the learner's can be learned."""
    expert = rule_run(tmp_path / "expert")
    run = train(
        "CartPole-v1",
        algorithm="dagger",
        layout=layout,
        steps=8_000,
        set={"algorithm.expert": str(expert), "algorithm.beta_steps": beta_steps},
    )
    assert run.evaluate(20).mean >= 475
