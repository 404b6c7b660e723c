"""What was measured on, and what: the machine, the commit, the versions."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import subprocess
import time
from pathlib import Path

from srl.launch.plan import available_cores

PACKAGES = ("torch", "numpy", "gymnasium", "envpool", "ale-py", "mujoco", "mpe2")


def machine() -> str:
    """The machine in a few words: processor, cores, memory."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.exists() else ():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{model}, {available_cores()} cores, {memory:.0f} GiB"


def commit() -> str:
    """The commit that was measured, marked if the source differs from it; empty without git."""
    head = _git("rev-parse", "--short", "HEAD")
    return head + (" (with changes)" if head and _git("status", "--porcelain", ".") else "")


class Others:
    """How much of the machine others use, from now on: processes that a given one has not started,
    and the host of a virtual machine where that says so.

    From the times of processes, which are exact: the busy time of cores is sampled, and too high
    where processes sleep and wake often.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._start = time.monotonic()
        self._used = self._ticks()

    def share(self) -> float:
        """Of all cores' time; 0 where it is not known."""
        ticks = (time.monotonic() - self._start) * os.sysconf("SC_CLK_TCK") * (os.cpu_count() or 1)
        return max(0.0, (self._ticks() - self._used) / ticks)

    def _ticks(self) -> int:
        own, everything = tree_ticks(self._pid)
        return everything - own + _stolen()


def tree_ticks(pid: int) -> tuple[int, int]:
    """Ticks that a process and those it started have run, and that all have; ended ones, too."""
    ran: dict[int, int] = {}
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The name in the second field may hold spaces and brackets.
            fields = path.read_text().rpartition(")")[2].split()
            one = int(path.parent.name)
            # Its own, and those of its children that it has waited for.
            ran[one] = sum(int(ticks) for ticks in fields[11:15])
            children.setdefault(int(fields[1]), []).append(one)
    own, open_ = 0, [pid]
    while open_:
        one = open_.pop()
        own += ran.get(one, 0)
        open_ += children.get(one, [])
    return own, sum(ran.values())


def _stolen() -> int:
    """Ticks in which a virtual core could have run and was not let; 0 if the system is silent."""
    try:
        return int(Path("/proc/stat").read_text().split("\n", 1)[0].split()[8])
    except (OSError, ValueError, IndexError):
        return 0


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that decide speed."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _git(*arguments: str) -> str:
    folder = Path(__file__).parents[1]
    try:
        done = subprocess.run(
            ["git", *arguments], capture_output=True, text=True, cwd=folder, check=False
        )
    except OSError:
        return ""
    return done.stdout.strip()
