"""Environments that fail now and then cost only their own group, and are counted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import FAULTY, SMALL, Training, read_summary, wait_for

from srl.cli import main
from srl.launch.run.status import read_status

pytestmark = pytest.mark.runs


def log_of(training: Training) -> str:
    path = training.run_dir / "logs" / "controller.log"
    return path.read_text() if path.exists() else ""


def wait_for_log(training: Training, text: str) -> None:
    """Waits until the run's log says something."""

    def said() -> bool:
        training.check_running()
        return text in log_of(training)

    wait_for(said, f"{text!r}: {training.printed}")


@pytest.mark.parametrize("layout", ["serial", "shared"])
def test_environments_that_crash_now_and_then_are_made_anew(
    layout: str, start: Callable[..., Training]
) -> None:
    training = start(
        f"{FAULTY}:RarelyCrashingEnv", "--env-arg=every=400", "--layout", layout, *SMALL,
        "--steps", "1e9", "--set", "env.failure_steps=500",
    )  # fmt: skip
    wait_for_log(training, "Environments replaced (2 failures so far)")
    training.wait_for_updates(2)
    assert training.stop() == 130, training.printed
    summary = read_summary(training.run_dir)
    assert summary["status"] == "stopped"
    accounts = {k: v for k, v in summary["metrics"].items() if k.startswith("samples.default.")}
    # No fragment is lost: each is begun again in its slot.
    assert accounts["samples.default.dropped.writer died"] == 0
    assert summary["metrics"]["env_failures"] >= 2
    assert "crashes now and then" in log_of(training)


def test_environments_that_crash_too_often_end_the_run(
    tmp_path: Path, shm: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code = main(
        ["train", f"{FAULTY}:RarelyCrashingEnv", "--env-arg=every=100", "--layout", "serial",
         *SMALL, "--steps", "20_000", "--run-dir", str(tmp_path / "run"), "--quiet"]
    )  # fmt: skip
    assert code == 1
    assert "crashes now and then" in capfd.readouterr().err
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "failed"


def test_an_environment_that_hangs_once_costs_one_restart(
    start: Callable[..., Training], tmp_path: Path
) -> None:
    training = start(
        f"{FAULTY}:OnceHangingEnv", f"--env-arg=mark={tmp_path / 'hangs'}", "--layout", "shared",
        *SMALL, "--steps", "1e9", "--set", "actor.count=2",
        # A step of the others never takes so long, however busy the machine is.
        "--set", "env.step_timeout_seconds=8", "--set", "env.failure_steps=500",
    )  # fmt: skip
    wait_for_log(training, "in step() for")
    wait_for_log(training, "starting it again")

    def restarts() -> int:
        training.check_running()
        return sum(w.restarts for w in read_status(training.run_dir).workers)

    wait_for(restarts, "a restarted actor")
    training.wait_for_updates(3)
    assert restarts() == 1
    assert training.stop() == 130
