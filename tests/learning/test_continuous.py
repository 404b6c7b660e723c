"""Real-valued actions: Pendulum is swung up."""

from __future__ import annotations

from collections.abc import Callable

import srl


def test_pendulum_is_far_past_random(train: Callable[..., srl.Run]) -> None:
    # Seen over seeds 1 and 2: a return of -300 after 51,000 and 83,000 steps, of at most 200,000.
    run = train("pendulum", layout="inline", until="return>=-400")

    assert run.summary.reason == "reached return>=-400"
    assert run.evaluate(episodes=30).mean > -500
    assert run.evaluate(episodes=30, policies={"default": "random"}).mean < -1000
