"""Teams: the two-step game tells a sum of values from a mixture, and three agents spread out."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import srl


@pytest.mark.parametrize(("algorithm", "best"), [("vdn", 7.0), ("qmix", 8.0)])
def test_a_sum_ends_at_7_and_a_mixture_at_8(
    train: Callable[..., srl.Run], algorithm: str, best: float
) -> None:
    run = train(f"two_step_{algorithm}", layout="serial")

    score = run.evaluate(episodes=10)
    assert {row["mean"] for row in score.table().values()} == {best}


def test_three_agents_spread_out(train: Callable[..., srl.Run]) -> None:
    run = train("simple_spread_vdn", layout="inline", steps=30_000)

    # Seen in `serial` over seeds 1 to 4: -18.9 to -17.6; at random -25.3.
    assert run.evaluate(episodes=60).mean > -21
    assert run.evaluate(episodes=60, policies={"default": "random"}).mean < -23
