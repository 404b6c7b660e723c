"""Algorithms with a replay learn real tasks. Five seeds and more tasks: `soak_learning.py`."""

from __future__ import annotations

from collections.abc import Callable

import srl


def test_dqn_balances_the_pole(train: Callable[..., srl.Run]) -> None:
    # At random it is 22.
    run = train("cartpole_dqn", layout="serial", until="return>=195")

    assert run.summary.reason == "reached return>=195"
    assert run.evaluate(episodes=20).mean >= 150


def test_sac_swings_the_pendulum_up(train: Callable[..., srl.Run]) -> None:
    # At random it is about -1200.
    run = train("pendulum_sac", layout="serial", steps=8000)

    assert run.evaluate(episodes=20).mean > -400


def test_a_recurrent_dqn_recalls_the_cue(train: Callable[..., srl.Run]) -> None:
    # Without memory it is 0.25.
    run = train("memory_r2d2", layout="serial", until="return>=0.8")

    assert run.summary.reason == "reached return>=0.8"
    assert run.evaluate(episodes=100).mean >= 0.8
