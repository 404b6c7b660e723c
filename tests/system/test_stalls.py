"""Workers that stall or die for a moment: what it costs the others."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from chaos import accounts
from harness import FAULTY, SMALL, Training, read_summary, wait_for

from srl.arena.shm import ShmArena
from srl.launch.process.process_state import is_stopped
from srl.launch.run.status import WorkerStatus, read_status
from srl.services.worker_stats import StatsTable, WorkerStats

Start = Callable[..., Training]
FOUR = ("--layout", "shared", "--steps", "1e9", *SMALL, "--set", "actor.count=4")


def status_of(training: Training, pid: int) -> WorkerStatus:
    (found,) = (w for w in read_status(training.run_dir).workers if w.pid == pid)
    return found


def end_well(training: Training, pid: int) -> dict[str, float]:
    """The one that stalled steps its environments again, as the process that it was, and every
    fragment is accounted for."""
    wait_for(lambda: status_of(training, pid).rate > 0, f"steps of {pid}")
    training.wait_for_updates(3)
    assert status_of(training, pid).restarts == 0
    assert training.stop() == 130
    kept = accounts(read_summary(training.run_dir))
    assert kept["lost"] == 0, kept
    return kept


def test_an_environment_that_stalls_costs_only_its_own_group(start: Start, tmp_path: Path) -> None:
    mark = tmp_path / "stalls"
    training = start(f"{FAULTY}:OnceStallingEnv", f"--env-arg=mark={mark}", *FOUR)
    pid = int(wait_for(lambda: mark.exists() and mark.read_text().strip(), "a stall"))

    training.wait_for_updates(30)
    assert status_of(training, pid).rate == 0, "it has stalled all the time"
    mark.with_suffix(".over").touch()

    kept = end_well(training, pid)
    assert kept["dropped.writer died"] == 0
    assert kept["dropped.too late"] >= 1, "what it had begun before all those updates"


def stop_outside_locks(pid: int) -> None:
    """Stops a process (SIGSTOP) at a moment at which it holds no lock, which others would wait
    for."""

    def stopped() -> bool:
        os.kill(pid, signal.SIGSTOP)
        wait_for(lambda: is_stopped(pid), "a stopped process")
        locks = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
        if not any(line[1] == "FLOCK" and line[-4] == str(pid) for line in locks):
            return True
        os.kill(pid, signal.SIGCONT)
        return False

    wait_for(stopped, f"{pid} outside of locks")


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="nothing says who holds a lock")
@pytest.mark.parametrize("trainers", [1, 2])
def test_an_actor_that_is_stopped_holds_nobody_up(start: Start, trainers: int) -> None:
    training = start(
        "CartPole-v1", *FOUR, "--set", f"trainer.count={trainers}",
        "--set", "stopped_seconds=1000", "--set", "silence_seconds=1000",
    )  # fmt: skip
    training.wait_for_updates(5)
    pid = training.workers()["actor-2"].pid

    stop_outside_locks(pid)
    training.wait_for_updates(20)
    assert is_stopped(pid), "it is neither killed nor waited for"
    os.kill(pid, signal.SIGCONT)

    end_well(training, pid)


class Standstills:
    """How long each actor went without a step, looked at all the time."""

    def __init__(self, rows: dict[str, WorkerStats]) -> None:
        self._rows = rows
        self.longest = {name: 0.0 for name in rows if name.startswith("actor/")}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        seen = {name: (0, time.monotonic()) for name in self.longest}
        while not self._over.wait(0.002):
            for name, (steps, since) in seen.items():
                now, counted = time.monotonic(), self._rows[name].get("count_env_steps")
                self.longest[name] = max(self.longest[name], now - since)
                if counted != steps:
                    seen[name] = (counted, now)

    def stop(self) -> dict[str, float]:
        self._over.set()
        self._thread.join()
        return self.longest


@pytest.mark.guard
def test_requests_of_a_policy_worker_that_dies_are_answered_by_another_within_a_second(
    start: Start, shm: Path
) -> None:
    """Each actor has one group, so one that waits for an answer takes no step."""
    training = start("CartPole-v1", *FOUR, "--set", "actor.groups=1", "--set", "inference.count=2")
    training.wait_for_updates(1)
    names = tuple(worker.name for worker in read_status(training.run_dir).workers)
    (folder,) = shm.glob("srl-*")
    rows = StatsTable(ShmArena(folder, "watcher"), names).rows
    policies = [rows[name] for name in names if name.startswith("policy/")]

    for name in ("policy-0", "policy-1", "policy-0"):
        answered = [row.get("count_requests") for row in policies]

        def both_answer(answered: list[int] = answered) -> bool:
            training.check_running()
            return all(
                row.activity != "starting" and row.get("count_requests") > before
                for row, before in zip(policies, answered, strict=True)
            )

        wait_for(both_answer, "two policy workers that answer")
        watch = Standstills(rows)
        training.workers()[name].kill()
        training.wait_for_updates(10)
        longest = watch.stop()
        assert max(longest.values()) < 1.0, longest
    assert training.stop() == 130
