"""What the system says of processes that are silent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from srl.launch.process.process_state import Condition, ProcessStates, is_stopped

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc here")
LIMIT_SECONDS = 60.0
SLEEP = "import time; print(flush=True); time.sleep(600)"
SPIN = "print(flush=True)\nwhile True: pass"
CHILD = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SPIN!r}])"
Start = Callable[[str], int]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a process, and returns when it has printed a line."""
    begun: list[subprocess.Popen[bytes]] = []

    def start(code: str) -> int:
        process = subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True
        )
        begun.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return process.pid

    yield start
    for process in begun:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def becomes(conditions: ProcessStates, pid: int, expected: Condition) -> bool:
    deadline = time.monotonic() + LIMIT_SECONDS
    while conditions.of(pid) != expected and time.monotonic() < deadline:
        time.sleep(0.01)
    return conditions.of(pid) == expected


def test_a_process_that_sleeps_is_asleep_until_it_is_stopped(start: Start) -> None:
    conditions, pid = ProcessStates(), start(SLEEP)
    assert conditions.of(pid) == "working", "nothing is known yet"
    assert becomes(conditions, pid, "asleep")
    assert not is_stopped(pid)
    os.kill(pid, signal.SIGSTOP)
    assert becomes(conditions, pid, "stopped")
    assert is_stopped(pid)
    os.kill(pid, signal.SIGCONT)
    assert becomes(conditions, pid, "asleep")


@pytest.mark.parametrize("code", [SPIN, CHILD])
def test_a_process_that_computes_or_whose_child_does_is_at_work(start: Start, code: str) -> None:
    seconds = 0.0
    conditions, pid = ProcessStates(lambda: seconds), start(code)
    used = time.process_time()
    while time.process_time() < used + 0.2:
        # However the cores are shared, it is either running or waiting for one.
        seconds += 1.5
        assert conditions.of(pid) == "working"


def test_of_a_process_that_is_not_there_nothing_says_that_it_works() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert ProcessStates().of(gone.pid) == "asleep"
    assert not is_stopped(gone.pid)
