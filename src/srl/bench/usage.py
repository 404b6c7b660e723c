"""Who uses the machine's cores while something is measured: its processes, others, or nobody.

From the times of processes, which are exact: the busy time of cores is sampled, and too high where
processes sleep and wake often.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from srl.launch.local import WORKER_MODULE

LAUNCHER = "launcher"
"""What processes that are no worker's are called together; in `serial` that is the whole run."""


@dataclass(frozen=True, kw_only=True)
class Used:
    """What became of all cores' time."""

    cores: dict[str, float]
    """How many cores the processes of each worker kind kept busy."""
    others: float
    """Share of the machine that processes of others used, and a virtual machine's host."""
    idle: float
    """Share of the machine that nobody used."""


class Usage:
    """Counts from now on; the processes are a given one and those that it starts."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._start = time.monotonic()
        self._before = ticks_of(pid)

    def so_far(self) -> Used:
        """Since it was made; all 0 where the system does not say."""
        ticks = (time.monotonic() - self._start) * os.sysconf("SC_CLK_TCK")
        whole = ticks * (os.cpu_count() or 1)
        before, now = self._before, ticks_of(self._pid)
        if not now.everybody:
            return Used(cores={}, others=0.0, idle=0.0)
        # A process that has ended is counted where it was waited for, and no longer as a worker.
        own = {kind: max(0, now.own[kind] - before.own[kind]) for kind in now.own}
        return Used(
            cores={kind: added / ticks for kind, added in own.items()},
            others=max(0.0, (now.others - before.others) / whole),
            idle=max(0.0, 1.0 - (now.everybody - before.everybody) / whole),
        )


class Ticks(NamedTuple):
    """What has run since the machine was started, in ticks of its clock."""

    own: Counter[str]
    """By worker kind."""
    everybody: int
    """With what a virtual machine's host has withheld."""

    @property
    def others(self) -> int:
        """Of everybody but us."""
        return self.everybody - self.own.total()


def ticks_of(pid: int) -> Ticks:
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
    own: Counter[str] = Counter()
    open_ = [pid]
    while open_:
        one = open_.pop()
        own[_kind(one)] += ran.get(one, 0)
        open_ += children.get(one, [])
    return Ticks(own, sum(ran.values()) + _stolen())


def _kind(pid: int) -> str:
    """Of the worker that a process was started for, by its command line."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        return words[words.index(WORKER_MODULE) + 1].rpartition("-")[0]
    return LAUNCHER


def _stolen() -> int:
    """Ticks in which a virtual core could have run and was not let; 0 if the system is silent."""
    try:
        return int(Path("/proc/stat").read_text().split("\n", 1)[0].split()[8])
    except (OSError, ValueError, IndexError):
        return 0
