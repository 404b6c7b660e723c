"""Environments that fail now and then cost only their own group, and are counted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import FAULTY, SMALL, Training, read_summary, wait_for

from srl.cli import main
from srl.launch.status import read_status

pytestmark = pytest.mark.runs


@pytest.mark.parametrize("layout", ["serial", "shared"])
def test_environments_that_crash_now_and_then_are_made_anew(
    layout: str, start: Callable[..., Training]
) -> None:
    training = start(
        f"{FAULTY}:RarelyCrashingEnv", "--env-arg=every=400", "--layout", layout, *SMALL,
        "--steps", "12_000", "--set", "env.failure_steps=500",
    )  # fmt: skip
    assert training.wait() == 0, training.printed
    summary = read_summary(training.run_dir)
    assert summary["status"] == "finished"
    books = {k: v for k, v in summary["metrics"].items() if k.startswith("samples.default.")}
    # No fragment is lost: each is begun again in its slot.
    assert books["samples.default.dropped.writer died"] == 0
    assert summary["metrics"]["env_failures"] >= 2
    log = (training.run_dir / "logs" / "controller.log").read_text()
    assert "crashes now and then" in log
    assert "Made anew (2 failures so far)" in log


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
        "--set", "env.step_timeout_seconds=1", "--set", "env.failure_steps=500",
    )  # fmt: skip

    def restarted() -> bool:
        training.check_running()
        if not (training.run_dir / "status.json").exists():
            return False
        return sum(w.restarts for w in read_status(training.run_dir).workers) == 1

    wait_for(restarted, 60.0, "a restarted actor")
    training.wait_for_updates(3)
    assert training.stop() == 130
    log = (training.run_dir / "logs" / "controller.log").read_text()
    assert "in step() for" in log
    assert "starting it again" in log
