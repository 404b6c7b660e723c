"""Ctrl-C, SIGTERM and SIGHUP: checkpoint, summary, gone, and nothing left."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness import FAULTY, SMALL, Training, checkpoints, read_summary, wait_for

from srl.cli import main

pytestmark = pytest.mark.ends

Start = Callable[..., Training]


def assert_gone(training: Training, shm: Path) -> None:
    assert training.survivors() == []
    assert list(shm.iterdir()) == []
    assert "Traceback" not in training.printed


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("layout", ["serial", "inline", "shared"])
def test_a_signal_ends_a_run_well_and_it_goes_on_later(
    layout: str, number: signal.Signals, start: Start, shm: Path
) -> None:
    training = start("CartPole-v1", "--layout", layout, "--steps", "1e9", *SMALL)
    training.wait_for_updates(3)

    assert training.stop(number) == 128 + number

    assert_gone(training, shm)
    before = read_summary(training.run_dir)
    assert before["status"] == "stopped"
    assert before["reason"] == number.name
    manifest = json.loads((checkpoints(training.run_dir)[-1] / "manifest.json").read_text())
    # Also of those that ended in the last moment.
    assert manifest["episodes"] == before["episodes"]
    assert 0 < manifest["seconds"] <= before["seconds"]
    if number is not signal.SIGINT:
        return  # All signals leave the same behind; once is enough to go on from it.

    lines = len((training.run_dir / "metrics.jsonl").read_text().splitlines())
    # CartPole ends after 500 steps at the latest, so each of the eight ends at least once.
    steps = before["env_steps"] + 8 * 512
    arguments = ["resume", str(training.run_dir), "--quiet", "--steps", str(steps)]
    assert main(arguments) == 0
    after = read_summary(training.run_dir)
    assert after["status"] == "finished"
    assert after["env_steps"] >= steps
    assert after["policy_version"] > before["policy_version"]
    assert after["episodes"] >= before["episodes"] + 8
    assert after["seconds"] > manifest["seconds"]
    # Not a moment that the checkpoint knows of is lost.
    first = (training.run_dir / "metrics.jsonl").read_text().splitlines()[lines]
    assert json.loads(first)["seconds"] == pytest.approx(manifest["seconds"])


@pytest.mark.guard
@pytest.mark.parametrize("layout", ["serial", "inline", "shared"])
def test_a_run_ends_within_seconds_of_a_signal(layout: str, start: Start) -> None:
    training = start("CartPole-v1", "--layout", layout, "--steps", "1e9", *SMALL)
    training.wait_for_updates(3)
    training.workers()
    told = time.monotonic()
    assert training.stop() == 130
    assert time.monotonic() - told < 5.0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("layout", ["serial", "shared"])
def test_a_signal_ends_a_run_that_has_not_begun(
    layout: str, number: signal.Signals, start: Start, shm: Path
) -> None:
    training = start("CartPole-v1", "--layout", layout, "--steps", "1e9", *SMALL)
    begun = training.run_dir / ".lock" if layout == "serial" else training.run_dir / "logs"
    wait_for(begun.exists, "the launch to begin")
    if layout == "shared":
        wait_for(training.workers, "a worker process")

    assert training.stop(number) == 128 + number

    assert_gone(training, shm)
    assert read_summary(training.run_dir)["status"] == "stopped"


@pytest.mark.parametrize("layout", ["serial", "inline", "shared"])
def test_a_hanging_environment_does_not_hold_up_the_end(
    layout: str, start: Start, shm: Path, tmp_path: Path
) -> None:
    mark = tmp_path / "hangs"
    training = start(
        f"{FAULTY}:MarkedHangingEnv", "--env-arg", f"mark={mark}", "--env-arg", "at_step=100",
        "--layout", layout, "--steps", "1e9", *SMALL,
    )  # fmt: skip
    wait_for(mark.exists, f"the environment to hang: {training.printed}")

    assert training.stop(signal.SIGINT) == 130

    assert_gone(training, shm)
    assert read_summary(training.run_dir)["status"] == "stopped"
    assert checkpoints(training.run_dir)


@pytest.mark.parametrize("as_of_the_shell", [signal.default_int_handler, signal.SIG_IGN])
def test_an_environment_that_hangs_while_it_is_made_can_be_interrupted(
    start: Start, shm: Path, tmp_path: Path, as_of_the_shell: Any
) -> None:
    """In the background too, where a shell has SIGINT ignored."""
    mark = tmp_path / "hangs"
    before = signal.signal(signal.SIGINT, as_of_the_shell)
    try:
        training = start(f"{FAULTY}:HangingInitEnv", "--env-arg", f"mark={mark}")
    finally:
        signal.signal(signal.SIGINT, before)
    wait_for(mark.exists, "the environment to hang")

    assert training.stop(signal.SIGINT) == 130

    assert_gone(training, shm)


@pytest.mark.parametrize("layout", ["inline", "shared"])
def test_workers_of_a_killed_parent_end_by_themselves(layout: str, start: Start, shm: Path) -> None:
    training = start("CartPole-v1", "--layout", layout, "--steps", "1e9", *SMALL)
    training.wait_for_updates(2)
    workers = training.workers()
    assert workers

    training.process.kill()
    training.process.wait()

    wait_for(lambda: not training.survivors(), "all workers to end")
    steps = training.metrics()["env_steps"] + 1000
    arguments = ["resume", str(training.run_dir), "--quiet", "--steps", str(steps)]
    assert main(arguments) == 0
    assert list(shm.iterdir()) == []


def test_workers_of_a_parent_that_is_killed_while_it_starts_end_by_themselves(
    start: Start, shm: Path
) -> None:
    training = start("CartPole-v1", "--layout", "shared", "--steps", "1e9", *SMALL)
    wait_for(lambda: len(training.workers()) == 3, "worker processes")

    training.process.kill()
    training.process.wait()

    wait_for(lambda: not training.survivors(), "all workers to end")


def test_workers_that_hang_in_an_environment_end_with_their_parent(
    start: Start, tmp_path: Path
) -> None:
    mark = tmp_path / "hangs"
    training = start(
        f"{FAULTY}:MarkedHangingEnv", "--env-arg", f"mark={mark}", "--env-arg", "at_step=10",
        "--layout", "shared", "--steps", "1e9", *SMALL,
    )  # fmt: skip
    wait_for(mark.exists, f"the environment to hang: {training.printed}")
    training.workers()

    training.process.kill()
    training.process.wait()

    wait_for(lambda: not training.survivors(), "all workers to end")
