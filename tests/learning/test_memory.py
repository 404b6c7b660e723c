"""A task that needs memory is solved with it and not without it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import srl

CHANCE = 0.25
"""Seen over seeds 1, 2 and 3: solved after 38,000 to 54,000 steps, of at most 400,000; without
memory the mean of the last 100 episodes was 0.20 to 0.26 after 60,000."""


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_a_recurrent_policy_recalls_the_cue(train: Callable[..., srl.Run], kind: str) -> None:
    run = train("memory", layout="inline", set={"network.recurrent": kind})

    assert run.summary.reason == "reached return>=0.95"
    assert run.evaluate(episodes=100).mean >= 0.9


def test_a_policy_without_memory_stays_at_chance(train: Callable[..., srl.Run]) -> None:
    run = train(
        "memory", layout="inline", steps=60_000, until="none", set={"network.recurrent": "none"}
    )

    # A mean of 100 episodes is 0.25 with a standard deviation of 0.04.
    assert run.summary.episode_return_mean is not None
    assert run.summary.episode_return_mean < CHANCE + 0.2
    assert run.evaluate(episodes=400, explore=True).mean < CHANCE + 0.1
