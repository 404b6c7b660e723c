"""Running a contender: a scheduling group of its own, a time-out, and no process left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

TAIL_LINES = 15
"""Lines of output that are kept of a run that failed."""

AUTOGROUP_NICE = -19
"""The heaviest weight of a scheduling group, where the kernel and our rights allow it."""


SHARED = Path("/dev/shm")
LEFT_BEHIND = ("sem.mp-*", "psm_*", "torch_*")
"""Shared memory of `multiprocessing` and torch, which those who are killed do not remove."""


def descendants(pid: int) -> list[int]:
    """Processes that a process started, and theirs, parents first."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            # The name in the second field may hold spaces and brackets.
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(folder.name))
    found, open_ = [], [pid]
    while open_:
        mine = children.get(open_.pop(), [])
        found += mine
        open_ += mine
    return found


@dataclass
class Finished:
    """How a run ended."""

    seconds: float
    code: int | None
    """Exit code; None where it was stopped by us."""
    timed_out: bool
    tail: list[str] = field(default_factory=list)
    """Its last lines of output, errors included."""


def run(
    command: list[str],
    timeout: float,
    on_line: Callable[[str, float], bool] = lambda line, seconds: False,
    env: dict[str, str] | None = None,
    timed: bool = True,
) -> Finished:
    """Runs a command to its end, to its time-out, or until `on_line` has seen enough.

    A `timed` one goes before everything else on the machine.

    `on_line` gets each line of standard output and the seconds since the start, and says whether
    to stop. In the end everything that the command started is killed, and its shared memory freed.
    """
    before = shared_memory()
    started = time.perf_counter()
    child = subprocess.Popen(
        command,
        cwd=tempfile.gettempdir(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
        start_new_session=True,
        env={**os.environ, "PYTHONWARNINGS": "ignore", "PYTHONUNBUFFERED": "1", **(env or {})},
    )
    if timed:
        with contextlib.suppress(OSError):
            Path(f"/proc/{child.pid}/autogroup").write_text(f"{AUTOGROUP_NICE}")
    tail: deque[str] = deque(maxlen=TAIL_LINES)
    expired = threading.Event()

    def expire() -> None:
        expired.set()
        kill_tree(child)

    timer = threading.Timer(timeout, expire)
    timer.start()
    errors = threading.Thread(target=_drain, args=(child, tail), daemon=True)
    errors.start()
    stopped = False
    try:
        assert child.stdout is not None
        for line in child.stdout:
            tail.append(line.rstrip())
            if on_line(line.rstrip(), time.perf_counter() - started):
                stopped = True
                break
        if not stopped and not expired.is_set():
            child.wait()
    finally:
        seconds = time.perf_counter() - started
        timer.cancel()
        kill_tree(child)
        errors.join(timeout=5)
        for left in unused(shared_memory() - before):
            left.unlink(missing_ok=True)
    code = None if stopped or expired.is_set() else child.returncode
    return Finished(seconds, code, expired.is_set(), list(tail))


def kill_tree(child: subprocess.Popen[str]) -> None:
    """Kills a process, all that it started, and all that is left of its session."""
    for pid in [child.pid, *descendants(child.pid), *_session(child.pid)]:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    child.wait()


def shared_memory() -> set[Path]:
    """What processes share by names that tell of a library."""
    return {path for pattern in LEFT_BEHIND for path in SHARED.glob(pattern)}


def unused(paths: set[Path]) -> set[Path]:
    """Those that no living process has in its memory."""
    left = set(paths)
    for maps in Path("/proc").glob("[0-9]*/maps") if paths else ():
        with contextlib.suppress(OSError):
            text = maps.read_text()
            left -= {path for path in left if str(path) in text}
    return left


def _session(leader: int) -> list[int]:
    """Processes of a session, whose parents may be gone."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == leader:
                    found.append(int(folder.name))
    return found


def _drain(child: subprocess.Popen[str], tail: deque[str]) -> None:
    assert child.stderr is not None
    for line in child.stderr:
        tail.append(line.rstrip())


def leave_nothing_behind() -> None:
    """Makes a SIGTERM end this process as Ctrl-C does, so that `run` kills what it started."""

    def stop(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, stop)
