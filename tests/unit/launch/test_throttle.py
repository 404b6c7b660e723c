"""What is done for every worker is done less often where there are many."""

from __future__ import annotations

import itertools
import time

import pytest

from srl.launch.run.throttle import SHARE, Throttle


class Clocks:
    """Time that passes when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.used = 0.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(time, "thread_time", lambda: self.used)


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        pytest.param(0.0, 1.0, id="cheap: as often as it is to be"),
        pytest.param(0.5, SHARE * 0.5, id="dear: at most its share"),
    ],
)
def test_it_takes_no_more_than_its_share(
    monkeypatch: pytest.MonkeyPatch, work: float, expected: float
) -> None:
    clocks = Clocks(monkeypatch)
    throttle = Throttle(1.0)
    done: list[float] = []

    def do() -> None:
        done.append(clocks.now)
        clocks.used += work

    for _ in range(200):
        throttle.step(do)
        clocks.now += 0.25
    gaps = {after - before for before, after in itertools.pairwise(done[1:])}
    assert gaps == {expected}


def test_what_takes_long_once_is_no_reason_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = Clocks(monkeypatch)
    throttle = Throttle(1.0)
    done: list[float] = []

    def do() -> None:
        clocks.used += 0.0 if done else 0.5
        done.append(clocks.now)

    for _ in range(12):
        throttle.step(do)
        clocks.now += 0.25
    assert done == [100.0, 101.0, 102.0]


def test_cores_that_others_have_are_no_reason_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = Clocks(monkeypatch)
    throttle = Throttle()
    done: list[float] = []

    def do() -> None:
        done.append(clocks.now)
        clocks.now += 60.0

    for _ in range(3):
        throttle.step(do)
    assert len(done) == 3
