"""What the system reports about a silent process: stopped, traced, asleep or working."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

Condition = Literal["stopped", "traced", "asleep", "working"]
"""`stopped`: by a signal (SIGSTOP). `traced`: held by a debugger. `asleep`: neither the process nor
its descendants use the processor. `working`: anything else, such as computing, waiting for a core,
or reading from a disk."""

WINDOW_SECONDS = 1.0
"""The shortest time over which the processor use of a process is measured."""
ASLEEP_SHARE = 0.02
"""A process that uses at most this share of a core is asleep; it may wake up now and then."""
_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_PROC = Path("/proc")
_STOPPED, _TRACED, _WORKING = "T", "t", {"R", "D"}


def is_stopped(pid: int) -> bool:
    """Whether a signal has stopped a process; False if that is unknown."""
    return _stat(pid)[0] == _STOPPED


class ProcessStates:
    """The conditions of this host's processes, from what each one does between two calls."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._measured: dict[int, tuple[float, float, Condition]] = {}
        """By process: time of the last measurement, core seconds used by then, and condition."""

    def of(self, pid: int) -> Condition:
        """The condition of a process.

        At the first call nothing is known about a process, so it counts as working. Where the
        system does not report states, every process counts as asleep.
        """
        state, _ = _stat(pid)
        if state == "":
            return "asleep"
        if state == _STOPPED:
            return "stopped"
        if state == _TRACED:
            return "traced"
        now = self._clock()
        measured_at, before, known = self._measured.get(pid, (float("-inf"), 0.0, "working"))
        if now - measured_at < WINDOW_SECONDS:
            return "working" if state in _WORKING else known
        states, seconds = _processor_use(pid)
        is_known = measured_at > float("-inf")
        sleeps = is_known and seconds - before <= ASLEEP_SHARE * (now - measured_at)
        condition: Condition = "asleep" if sleeps and not states & _WORKING else "working"
        self._measured[pid] = (now, seconds, condition)
        return condition

    def forget(self, pid: int) -> None:
        """Drops what is known about a process that has ended."""
        self._measured.pop(pid, None)


def _processor_use(pid: int) -> tuple[set[str], float]:
    """The states of a process and its descendants, and the core seconds that they have used."""
    states, ticks = set(), 0
    for process in _with_descendants(pid):
        state, used = _stat(process)
        states.add(state)
        ticks += used
    return states, ticks / _TICKS


def _with_descendants(pid: int) -> Iterator[int]:
    yield pid
    try:
        for task in os.listdir(_PROC / str(pid) / "task"):
            for child in (_PROC / str(pid) / "task" / task / "children").read_text().split():
                yield from _with_descendants(int(child))
    except OSError:
        # The process has ended, or the system does not list children.
        return


def _stat(pid: int) -> tuple[str, int]:
    """The state of a process as a letter, and the clock ticks that it has used.

    The ticks include those of its reaped children. ("", 0) if the system does not report them.
    """
    try:
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "", 0
    return fields[0], sum(int(field) for field in fields[11:15])
