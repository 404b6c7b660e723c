"""Workers that are killed or stopped while a run goes on."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from chaos import Versions
from harness import FAULTY, SMALL, Training, checkpoints, read_summary, runs, wait_for

from srl.cli import main
from srl.launch.process.process_state import is_stopped

Start = Callable[..., Training]


def assert_books_add_up(run_dir: Path) -> dict[str, float]:
    metrics = read_summary(run_dir)["metrics"]
    at = "samples.default."
    accounts = {key.removeprefix(at): n for key, n in metrics.items() if key.startswith(at)}
    # What died with its writer was never committed.
    reasons = ("reader died", "out of turn", "host lost", "too late")
    dropped = sum(accounts[f"dropped.{reason}"] for reason in reasons)
    assert accounts["produced"] == accounts["consumed"] + dropped + accounts["in_flight"]
    assert accounts["consumed"] > 0
    return accounts


def replaced(training: Training, name: str, pid: int) -> bool:
    training.check_running()
    worker = training.workers().get(name)
    return worker is not None and worker.pid != pid


def test_a_trainer_that_is_killed_before_it_has_orders_is_replaced(start: Start) -> None:
    training = start("CartPole-v1", "--layout", "shared", "--steps", "1e9", *SMALL)
    trainer = wait_for(lambda: training.workers().get("trainer-0"), "a trainer")
    trainer.kill()
    training.wait_for_updates(2)
    assert training.workers()["trainer-0"].pid != trainer.pid
    assert training.stop(signal.SIGINT) == 130
    assert_books_add_up(training.run_dir)


def below(training: Training, word: str) -> list[psutil.Process]:
    """Processes of a run with a word in their command line."""
    found = psutil.Process(training.process.pid).children(recursive=True)
    training.seen.update({process.pid: process for process in found})
    return [process for process in found if runs(process, word)]


def test_a_plan_is_made_also_if_its_maker_is_killed(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker = tmp_path / "maker"
    monkeypatch.setenv("FIRST_MAKER", str(maker))
    training = start(
        "CartPole-v1", "--layout", "shared", "--steps", "1e9", *SMALL,
        "--set", f"network.name={FAULTY}:PolicyThatHangsFirst",
    )  # fmt: skip
    wait_for(lambda: maker.exists() and maker.read_text().endswith("."), "a planner")
    planner = psutil.Process(int(maker.read_text()[:-1]))
    assert runs(planner, "srl.launch.process.planning")
    planner.kill()
    training.wait_for_updates(2)
    assert training.stop(signal.SIGINT) == 130


def test_killed_templates_are_replaced_when_a_worker_needs_them(start: Start, shm: Path) -> None:
    training = start("CartPole-v1", "--layout", "shared", "--steps", "1e9", *SMALL)
    training.wait_for_updates(2)
    before = below(training, "srl.launch.process.template")
    assert len(before) == 2, "one with torch, one without"
    for template in before:
        template.kill()
    # Nobody else notices.
    training.wait_for_updates(2)
    for name in ("actor-0", "policy-0", "trainer-0"):
        worker = training.workers()[name]
        worker.kill()
        wait_for(lambda n=name, pid=worker.pid: replaced(training, n, pid), f"a new {name}")
        training.wait_for_updates(2)
    after = below(training, "srl.launch.process.template")
    assert len(after) == 2
    assert not {one.pid for one in before} & {one.pid for one in after}
    assert training.stop(signal.SIGINT) == 130
    assert training.survivors() == []
    assert list(shm.iterdir()) == []


def test_killed_and_stopped_workers_are_replaced_and_the_run_goes_on(start: Start) -> None:
    training = start(
        "srl.testing.envs:SlowEnv", "--layout", "shared", "--steps", "1e9", *SMALL,
        "--env-arg", "seconds=0.002", "--set", "actor.count=2", "--set", "inference.count=1",
        # Slow actors that wait for no version are always in the middle of a fragment.
        "--set", "algorithm.max_policy_age=null",
    )  # fmt: skip
    training.wait_for_updates(2)

    for name in ("actor-0", "policy-0"):
        pid = training.workers()[name].pid
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda name=name, pid=pid: replaced(training, name, pid), f"a new {name}")
        training.wait_for_updates(3)

    # A process that is stopped for a moment is left alone ...
    pid = training.workers()["actor-1"].pid
    os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: training.workers()["actor-1"].status() == "stopped", "a stopped actor")
    os.kill(pid, signal.SIGCONT)
    training.wait_for_updates(3)
    assert training.workers()["actor-1"].pid == pid

    # ... and one that stays so is killed for certain before its slots are taken back.
    old = training.workers()["actor-1"]
    os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: replaced(training, "actor-1", pid), "a new actor-1")
    assert not old.is_running()
    training.wait_for_updates(3)

    assert training.stop(signal.SIGINT) == 130
    accounts = assert_books_add_up(training.run_dir)
    assert accounts["dropped.writer died"] >= 1
    log = (training.run_dir / "logs" / "controller.log").read_text()
    assert "was killed (SIGKILL)" in log
    assert "starting it again" in log
    assert "stopped for" in log


def kill_too_often(training: Training, name: str) -> None:
    """Kills a worker once more than a run with max_restarts=1 forgives."""
    training.wait_for_updates(2)
    pid = training.workers()[name].pid
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: replaced(training, name, pid), f"a new {name}")
    training.wait_for_updates(2)
    os.kill(training.workers()[name].pid, signal.SIGKILL)


def test_too_many_deaths_end_the_run_with_the_cause_the_last_lines_and_a_checkpoint(
    start: Start,
) -> None:
    training = start(
        f"{FAULTY}:TalkingEnv", "--layout", "shared", "--steps", "1e9", *SMALL,
        "--set", "max_restarts=1", "--set", "checkpoint.every_seconds=1000",
    )  # fmt: skip
    log = training.run_dir / "logs" / "actor-0.log"
    # Another actor's episodes may be learned from before this one has begun any.
    wait_for(lambda: log.exists() and "begins" in log.read_text(), "what actor-0 says")
    kill_too_often(training, "actor-0")
    version = training.metrics()["policy_version"]

    assert training.wait() == 1
    assert "actor/0 was killed (SIGKILL)" in training.printed
    assert "after 1 restarts" in training.printed
    assert "raise max_restarts" in training.printed
    summary = read_summary(training.run_dir)
    assert summary["status"] == "failed"
    assert "max_restarts" in summary["error"]
    assert_books_add_up(training.run_dir)

    _, _, lines = training.printed.partition("Last lines of logs/actor-0.log:\n")
    assert lines.startswith("    an episode begins\n")
    # None was due, so the only one is of what was learned when the worker died.
    (checkpoint,) = checkpoints(training.run_dir)
    kept = json.loads((checkpoint / "manifest.json").read_text())["policy_versions"]["default"]
    assert kept >= version
    assert kept >= summary["policy_version"] - 1, "one that was under way is given up"
    again = start("", "--steps", str(summary["env_steps"] + 1000), verb="resume")
    assert again.wait() == 0, again.printed


def test_a_last_checkpoint_that_cannot_be_written_is_told_beside_the_cause(start: Start) -> None:
    training = start(
        "CartPole-v1", "--layout", "shared", "--steps", "1e9", *SMALL,
        "--set", "max_restarts=1", "--set", "checkpoint.every_seconds=1000",
    )  # fmt: skip
    training.wait_for_updates(1)
    folder = training.run_dir / "checkpoints"
    folder.rmdir()
    folder.touch()
    kill_too_often(training, "actor-0")

    assert training.wait() == 1
    assert "actor/0 was killed (SIGKILL), after 1 restarts" in training.printed
    log = (training.run_dir / "logs" / "controller.log").read_text()
    assert "the last checkpoint failed: " in log


def test_a_killed_trainer_goes_on_from_the_checkpoint_under_higher_numbers(
    start: Start, shm: Path
) -> None:
    versions = Versions(shm)
    training = start("CartPole-v1", "--layout", "shared", "--steps", "1e9", *SMALL)
    training.wait_for_updates(2)
    wait_for(lambda: checkpoints(training.run_dir), "a checkpoint")
    training.wait_for_updates(3)
    steps = training.metrics()["env_steps"]
    pid = training.workers()["trainer-0"].pid

    os.kill(pid, signal.SIGKILL)

    wait_for(lambda: replaced(training, "trainer-0", pid), "a new trainer-0")
    training.wait_for_updates(3)
    assert training.metrics()["env_steps"] > steps, "what was consumed stays counted"
    assert training.stop(signal.SIGINT) == 130
    seen = versions.stop()
    assert seen == sorted(seen)
    assert_books_add_up(training.run_dir)
    metrics = read_summary(training.run_dir)["metrics"]
    log = (training.run_dir / "logs" / "controller.log").read_text()
    assert "trainer/0: was killed (SIGKILL)" in log
    if metrics["updates.default.lost"]:
        assert "updates were lost with a trainer" in log
    assert list(shm.iterdir()) == []


def test_a_trainer_that_is_killed_too_often_ends_the_run_and_it_can_be_resumed(
    start: Start, shm: Path
) -> None:
    training = start(
        "CartPole-v1", "--layout", "shared", "--steps", "1e9", *SMALL, "--set", "max_restarts=0"
    )
    training.wait_for_updates(2)
    wait_for(lambda: checkpoints(training.run_dir), "a checkpoint")

    os.kill(training.workers()["trainer-0"].pid, signal.SIGKILL)

    assert training.wait() == 1
    assert "trainer/0 was killed (SIGKILL)" in training.printed
    assert "raise max_restarts" in training.printed
    assert training.survivors() == []
    assert list(shm.iterdir()) == []
    summary = read_summary(training.run_dir)
    assert summary["status"] == "failed"
    assert "trainer/0" in summary["error"]
    assert checkpoints(training.run_dir)

    steps = summary["env_steps"] + 1000
    arguments = ["resume", str(training.run_dir), "--quiet", "--steps", str(steps)]
    assert main(arguments) == 0
    assert read_summary(training.run_dir)["status"] == "finished"


def test_an_inline_actor_that_is_killed_is_replaced(start: Start) -> None:
    training = start("CartPole-v1", "--layout", "inline", "--steps", "1e9", *SMALL)
    training.wait_for_updates(2)
    pid = training.workers()["actor-0"].pid

    os.kill(pid, signal.SIGKILL)

    wait_for(lambda: replaced(training, "actor-0", pid), "a new actor-0")
    training.wait_for_updates(3)
    assert training.stop(signal.SIGTERM) == 143
    assert_books_add_up(training.run_dir)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has subreapers")
def test_a_trainer_that_dies_under_a_stopped_reaper_is_replaced(start: Start) -> None:
    training = start("CartPole-v1", "--layout", "shared", "--steps", "1e9", *SMALL)
    training.wait_for_updates(2)
    trainer = training.workers()["trainer-0"]

    os.kill(trainer.ppid(), signal.SIGSTOP)
    trainer.kill()

    wait_for(lambda: replaced(training, "trainer-0", trainer.pid), "a new trainer-0")
    training.wait_for_updates(2)
    assert training.stop(signal.SIGINT) == 130


def stop_within_lock(pid: int, path: Path) -> None:
    """Stops a process (SIGSTOP) at a moment at which it holds a lock."""
    inode = str(path.stat().st_ino)

    def stopped_inside() -> bool:
        os.kill(pid, signal.SIGSTOP)
        while not is_stopped(pid):
            time.sleep(0)
        for line in Path("/proc/locks").read_text().splitlines():
            _, kind, *_, holder, file, _, _ = line.split()
            if (kind, holder, file.split(":")[-1]) == ("FLOCK", str(pid), inode):
                return True
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.002)  # It is to get on to somewhere else.
        return False

    wait_for(lambda: any(stopped_inside() for _ in range(20)), f"{pid} in {path.name}")


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="nothing says who holds a lock")
def test_a_worker_that_is_stopped_within_a_lock_holds_nobody_up_for_long(
    start: Start, shm: Path
) -> None:
    """The launcher, which alone can end it, does not wait for that lock itself."""
    training = start(
        "CartPole-v1", "--layout", "shared", "--steps", "1e9", *SMALL,
        "--set", "actor.count=2", "--set", "inference.count=2", "--set", "silence_seconds=2",
    )  # fmt: skip
    training.wait_for_updates(2)
    stopped, killed = (training.workers()[name].pid for name in ("policy-0", "policy-1"))
    (lock,) = shm.glob("srl-*/inference+default.lock")

    stop_within_lock(stopped, lock)
    os.kill(killed, signal.SIGKILL)

    wait_for(lambda: replaced(training, "policy-0", stopped), "a new policy-0")
    wait_for(lambda: replaced(training, "policy-1", killed), "a new policy-1")
    training.wait_for_updates(3)
    assert training.stop(signal.SIGINT) == 130
    assert_books_add_up(training.run_dir)
    log = (training.run_dir / "logs" / "controller.log").read_text()
    assert log.count("; killed") == 1, "who waits for the stopped one is left alone"
    assert "policy/0: stopped for" in log


def test_a_trainer_that_computes_for_long_is_told_of_and_left_alone(start: Start) -> None:
    training = start(
        "CartPole-v1", "--layout", "shared", "--steps", "1e9", *SMALL,
        "--set", f"algorithm.name={FAULTY}:OnceSlowLearner", "--set", "silence_seconds=1",
    )  # fmt: skip
    training.wait_for_updates(2)
    pid = training.workers()["trainer-0"].pid
    log = training.run_dir / "logs" / "controller.log"
    wait_for(lambda: "still working; it is not killed" in log.read_text(), "a note")
    training.wait_for_updates(3)
    assert training.workers()["trainer-0"].pid == pid
    assert training.stop(signal.SIGINT) == 130
    assert "; killed" not in log.read_text()
