"""Runs in which nothing gets on end as failed, and say why; slow ones go on."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import FAULTY, SMALL, Training, read_summary, wait_for

import srl
from srl.errors import RunError
from srl.launch.run import serial

RATIONED = Path(__file__).with_name("rationed.py")
Start = Callable[..., Training]


@pytest.mark.parametrize(
    "layout", ["serial", "inline", "shared", pytest.param("remote", marks=pytest.mark.machines)]
)
def test_a_worker_that_drops_fragments_ends_the_run_with_who_waits_for_what(
    start: Start, layout: str
) -> None:
    training = start(
        "CartPole-v1", *SMALL, "--layout", layout, "--steps", "1e9",
        "--set", f"dataflow={RATIONED}:halving", "--set", "stall_seconds=3",
    )  # fmt: skip
    assert training.wait() == 1
    printed = training.printed
    assert "nothing makes progress" in printed
    assert "actor/0 waits for newer weights (policy_age)" in printed
    assert re.search("ration/0 waits for fragments of 'default'[,.]", printed)
    assert "trainer/0 waits for fragments of 'default/ration'" in printed
    assert "Let it do so, declare another ratio, or remove the bound" in printed
    summary = read_summary(training.run_dir)
    assert summary["status"] == "failed"
    assert "nothing makes progress" in summary["error"]
    assert training.survivors() == []


class Clock:
    """Stands in for `time`: it goes on only while the run sleeps."""

    def __init__(self, permit: Path, after: float) -> None:
        """The file `permit` is there after so many seconds."""
        self.now = 0.0
        self.permit, self.after = permit, after

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.now >= self.after:
            self.permit.touch()


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Clock]:
    """Trains in a serial run, in which time passes only while everyone waits."""

    def train(dataflow: str, stall_seconds: float, after: float = math.inf) -> Clock:
        clock = Clock(tmp_path / "run" / "permit", after)
        monkeypatch.setattr(serial, "time", clock)
        settings = {
            **{"actor.envs": 8, "algorithm.rollout_length": 32, "stall_seconds": stall_seconds},
            "dataflow": f"{RATIONED}:{dataflow}",
        }
        srl.train(
            "CartPole-v1", layout="serial", steps=1000, run_dir=tmp_path / "run", quiet=True,
            set=settings,
        )  # fmt: skip
        return clock

    return train


@pytest.mark.parametrize(("stall_seconds", "after"), [(0, 100.0), (60, 50.0)])
def test_a_serial_run_waits_for_what_a_worker_waits_for_outside_of_it(
    train: Callable[..., Clock], stall_seconds: float, after: float
) -> None:
    assert train("permitted", stall_seconds, after).now == after


def test_a_serial_run_waits_for_something_outside_of_it_no_longer_than_stall_seconds(
    train: Callable[..., Clock],
) -> None:
    with pytest.raises(RunError, match=r"nothing makes progress for 60 s.*waits for permission"):
        train("permitted", stall_seconds=60)


def test_a_serial_run_in_which_all_wait_for_each_other_ends_at_once(
    train: Callable[..., Clock],
) -> None:
    with pytest.raises(RunError, match="nothing makes progress: "):
        train("halving", stall_seconds=0)


@pytest.mark.parametrize("layout", ["serial", "inline", "shared"])
def test_a_worker_that_multiplies_fragments_is_said_to_break_the_bound_on_age(
    start: Start, layout: str
) -> None:
    training = start(
        "CartPole-v1", *SMALL, "--layout", layout, "--steps", "20_000",
        "--set", f"dataflow={RATIONED}:multiplying", "--set", "algorithm.max_policy_age=1",
    )  # fmt: skip
    assert training.wait() == 0
    log = (training.run_dir / "logs" / "controller.log").read_text()
    assert re.search(r"learned from data of \d+ versions ago, expected at most 1", log)
    assert read_summary(training.run_dir)["metrics"]["updates.default.too_old"] > 1


@pytest.mark.parametrize(
    ("layout", "dataflow"), [("serial", "declared_halving"), ("shared", "declared_doubling")]
)
def test_a_declared_ratio_keeps_the_bound_on_age(start: Start, layout: str, dataflow: str) -> None:
    training = start(
        "CartPole-v1", *SMALL, "--layout", layout, "--steps", "5000", "--set", "actor.groups=2",
        "--set", f"dataflow={RATIONED}:{dataflow}", "--set", "algorithm.max_policy_age=1",
    )  # fmt: skip
    assert training.wait() == 0
    summary = read_summary(training.run_dir)
    assert summary["policy_version"] > 5
    assert summary["metrics"]["updates.default.too_old"] == 0


def test_an_environment_that_is_slower_than_stall_seconds_is_no_stall(
    start: Start, tmp_path: Path
) -> None:
    """One step takes three times as long by the run's own clock, while everyone else waits."""
    mark = tmp_path / "slow"
    training = start(
        f"{FAULTY}:OnceStallingEnv", *SMALL, "--layout", "shared", "--steps", "2000",
        "--env-arg", f"mark={mark}", "--env-arg", "at_step=100", "--set", "actor.count=1",
        "--set", "stall_seconds=3",
    )  # fmt: skip
    wait_for(mark.exists, "a slow step")
    begun = training.metrics().get("seconds", 0.0)

    def has_lasted() -> bool:
        training.check_running()
        return training.metrics().get("seconds", 0.0) > begun + 9.0

    wait_for(has_lasted, "the run's clock")
    mark.with_suffix(".over").touch()
    assert training.wait() == 0
    assert read_summary(training.run_dir)["metrics"]["updates.default.too_old"] == 0
