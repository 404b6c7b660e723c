"""Contenders that crash, hang, or leave processes behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from compare import measure
from processes import SHARED, descendants, run

SPEED = "print('{\"steps_per_second\": 7}', flush=True)"
CHILD = "import subprocess, sys; c = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=-1)"


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def is_gone(pid: int) -> bool:
    """Whether a process ends: killed ones may take a moment to be reaped."""
    for _ in range(12_000):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    return False


def test_a_result_is_kept() -> None:
    record = measure(python(SPEED), timeout=120)
    assert record["ok"]
    assert record["result"] == {"steps_per_second": 7}
    assert record["tail"] == []


def test_a_crash_is_recorded_with_its_last_lines() -> None:
    record = measure(python("print('started'); raise ValueError('no such game')"), timeout=120)
    assert not record["ok"]
    assert record["reason"] == "exit code 1"
    assert "ValueError: no such game" in record["tail"]


def test_a_hang_is_stopped_at_the_time_out() -> None:
    # Longer than a test may take: only the time-out ends it.
    code = "import time; print('waiting', flush=True); time.sleep(3600)"
    record = measure(python(code), 3.0)
    assert not record["ok"]
    assert record["reason"] == "timed out"
    assert record["tail"] == ["waiting"]


def test_a_hung_contenders_children_are_killed() -> None:
    pids: list[int] = []
    code = f"{CHILD}; print(c.pid, flush=True); input()"

    def note(line: str, seconds: float) -> bool:
        pids.append(int(line))
        return True

    finished = run([sys.executable, "-c", code.replace("; input()", "; c.wait()")], 120, note)
    assert finished.code is None
    assert not finished.timed_out
    assert is_gone(pids[0])


def test_an_orphan_is_killed_too() -> None:
    """Its parent is gone by then, but not its session."""
    pids: list[int] = []
    finished = run(
        python(f"{CHILD}; print(c.pid, flush=True)"),
        120,
        lambda line, _: bool(pids.append(int(line))),
    )
    assert finished.code == 0
    assert is_gone(pids[0])


def test_descendants_are_found() -> None:
    started: list[list[int]] = []
    code = "import sys; print(1, flush=True); sys.stdin.read(); import time; time.sleep(60)"

    def look(line: str, seconds: float) -> bool:
        started.append(descendants(os.getpid()))
        return True

    run(python(code), 120, look)
    assert len(started[0]) >= 1


def test_shared_memory_that_a_killed_contender_leaves_is_freed_and_that_of_others_is_not() -> None:
    hold = (
        "import time, multiprocessing.shared_memory as m, multiprocessing.resource_tracker as t\n"
        "t.register = lambda *_: None\n"
        "held = m.SharedMemory(create=True, size=64)\n"
        "print(held.name, flush=True)\n"
        "time.sleep(600)"
    )
    names: list[str] = []

    def note_both(line: str, seconds: float) -> bool:
        other = subprocess.Popen(python(hold), stdout=subprocess.PIPE, text=True)
        others.append(other)
        assert other.stdout is not None
        names.extend([line, other.stdout.readline().strip()])
        return True

    others: list[subprocess.Popen[str]] = []
    try:
        run(python(hold), 120, note_both)
        assert not (SHARED / names[0]).exists()
        assert (SHARED / names[1]).exists()
    finally:
        for other in others:
            other.kill()
            other.communicate()
        for name in names:
            (SHARED / name).unlink(missing_ok=True)
