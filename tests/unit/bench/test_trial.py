"""The window of a measured run: what is in it, when it is full, and what it shows."""

from __future__ import annotations

import pytest

from srl.bench.trial import Window
from srl.errors import RunError


def fed(window: Window, lines: list[dict[str, float]]) -> Window:
    for line in lines:
        window.add(line)
    return window


def at(seconds: float, steps: int, **more: float) -> dict[str, float]:
    return {"seconds": seconds, "env_steps": steps, **more}


def test_start_up_and_warm_up_are_left_out() -> None:
    slow = [at(t, 0) for t in range(10)] + [at(t, 10 * (t - 9)) for t in range(10, 13)]
    fast = [at(t, 30 + 1000 * (t - 12)) for t in range(13, 30)]
    window = fed(Window(warmup=3.0, seconds=5.0), slow + fast)
    assert window.full
    assert window.rate().steps_per_second == pytest.approx(1000)
    assert window.rate().seconds == pytest.approx(5.0)


def test_it_begins_and_ends_with_a_learner_step() -> None:
    """A batch that takes longer than a line must not be cut in two."""
    lines = [at(t / 2, 100 * (t // 10)) for t in range(200)]
    window = Window(warmup=1.0, seconds=12.0)
    for line in lines:
        if not window.full:
            window.add(line)
    assert window.rate().steps_per_second == pytest.approx(20)
    assert window.rate().seconds == pytest.approx(15.0)


def test_it_is_not_full_before_its_time() -> None:
    window = fed(Window(warmup=0.0, seconds=5.0), [at(t, 10 * t) for t in range(1, 6)])
    assert window.learning
    assert not window.full
    window.add(at(6.0, 60))
    assert window.full


def test_with_several_policies_the_slowest_counts() -> None:
    lines = [
        {**at(t, 100 * t), "policies.a.env_steps": 100 * t, "policies.b.env_steps": 50 * t}
        for t in range(1, 12)
    ]
    window = fed(Window(warmup=0.0, seconds=9.0), lines)
    assert window.rate().steps_per_second == pytest.approx(50)


def test_ages_are_means_over_the_window() -> None:
    lines = [at(t, 10 * t, policy_age_mean=t % 2) for t in range(1, 8)]
    rate = fed(Window(warmup=2.0, seconds=4.0), lines).rate()
    assert rate.policy_age_mean == pytest.approx(0.5)


def test_shares_are_right_where_an_update_is_longer_than_a_line() -> None:
    """A trainer adds to its times when an update is over, here every fifth line: 1.6 s of work and
    0.4 s of waiting. Two actors work for half of every line."""
    lines = []
    for t in range(101):
        updates = t // 5
        times = {
            "trainer.workers": 1.0,
            "trainer.busy": 1.6 * updates,
            "trainer.wait.samples": 0.4 * updates,
            "actor.workers": 2.0,
            "actor.busy": 0.4 * t,
            "actor.wait.slots": 0.4 * t,
        }
        line = at(0.4 * t, 100 * updates)
        lines.append({**line, **{f"worker_seconds.{key}": v for key, v in times.items()}})
    rate = fed(Window(warmup=3.0, seconds=10.0), lines).rate()
    assert rate.workers["trainer"] == pytest.approx({"busy": 0.8, "samples": 0.2})
    assert rate.workers["actor"] == pytest.approx({"busy": 0.5, "slots": 0.5})


def test_one_learner_step_is_not_a_rate() -> None:
    window = fed(Window(warmup=0.0, seconds=5.0), [at(1.0, 10)])
    with pytest.raises(RunError, match="--seconds"):
        window.rate()
