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
