"""What was measured on, and what: the machine, the commit, the versions."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import subprocess
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
    """How much of the machine other programs use, from now on.

    That is all time in which cores were not idle, less what a process and those it started used.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._busy, self._all = _ticks()
        self._own = tree_ticks(pid)

    def share(self) -> float:
        """Of all cores' time; 0 where it is not known."""
        busy, everything = _ticks()
        if everything == self._all:
            return 0.0
        others = busy - self._busy - (tree_ticks(self._pid) - self._own)
        return max(0.0, others / (everything - self._all))


def tree_ticks(pid: int) -> int:
    """Ticks that a process and those it started have run, those that have ended included."""
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
    total, open_ = 0, [pid]
    while open_:
        one = open_.pop()
        total += ran.get(one, 0)
        open_ += children.get(one, [])
    return total


def _ticks() -> tuple[int, int]:
    """(busy, all) ticks of all cores since the system started; (0, 0) where it does not say."""
    try:
        ticks = [int(n) for n in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    except (OSError, ValueError):
        return 0, 0
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)


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
