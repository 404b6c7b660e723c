"""Real-valued actions: Pendulum is swung up."""

from __future__ import annotations

from collections.abc import Callable

import srl


def test_pendulum_is_far_past_random(train: Callable[..., srl.Run]) -> None:
    run = train("pendulum", layout="inline", until="return>=-400")

    assert run.summary.reason == "reached return>=-400"
    assert run.evaluate(episodes=30).mean > -500
    assert run.evaluate(episodes=30, policies={"default": "random"}).mean < -1000
