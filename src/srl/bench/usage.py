"""How the machine's cores are used in a measurement: by its processes, by others, or not at all.

This is computed from the times of processes, which are exact. The busy time of cores is sampled,
and it is too high where processes sleep and wake often.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from srl.launch.cluster.local_node import WORKER_MODULE

LAUNCHER = "launcher"
"""The kind of all processes that run no worker; in `serial` these are the whole run."""


@dataclass(frozen=True, kw_only=True)
class Used:
    """How the time of all cores was used."""

    cores: dict[str, float]
    """Cores that the processes of each worker kind kept busy."""
    others: float
    """Share of the machine that other programs used, or that a virtual machine's host withheld."""
    idle: float
    """Share of the machine that was not used."""


class Usage:
    """Measures, from now on, the use by a process and by the processes that it starts."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._start = time.monotonic()
        self._before = ticks_of(pid)

    def so_far(self) -> Used:
        """The use since this object was made; all 0 where the system does not report it."""
        ticks = (time.monotonic() - self._start) * os.sysconf("SC_CLK_TCK")
        capacity = ticks * (os.cpu_count() or 1)
        before, now = self._before, ticks_of(self._pid)
        if not now.all_processes:
            return Used(cores={}, others=0.0, idle=0.0)
        # A process that has ended counts for the process that waited for it, no longer as a worker.
        own = {kind: max(0, now.own[kind] - before.own[kind]) for kind in now.own}
        return Used(
            cores={kind: added / ticks for kind, added in own.items()},
            others=max(0.0, (now.others - before.others) / capacity),
            idle=max(0.0, 1.0 - (now.all_processes - before.all_processes) / capacity),
        )


class Ticks(NamedTuple):
    """The use of the cores since the machine was started, in ticks of its clock."""

    own: Counter[str]
    """By worker kind."""
    all_processes: int
    """Of all processes, and what a virtual machine's host has withheld."""

    @property
    def others(self) -> int:
        """Of all but the measured processes."""
        return self.all_processes - self.own.total()


def ticks_of(pid: int) -> Ticks:
    """Ticks of a process and those that it started, and of all processes; ended ones count, too."""
    ran: dict[int, int] = {}
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The name in the second field may hold spaces and brackets.
            fields = path.read_text().rpartition(")")[2].split()
            one = int(path.parent.name)
            # Its own ticks, and those of the children that it has waited for.
            ran[one] = sum(int(ticks) for ticks in fields[11:15])
            children.setdefault(int(fields[1]), []).append(one)
    own: Counter[str] = Counter()
    pending = [pid]
    while pending:
        one = pending.pop()
        own[_kind(one)] += ran.get(one, 0)
        pending += children.get(one, [])
    return Ticks(own, sum(ran.values()) + _stolen())


def _kind(pid: int) -> str:
    """The kind of worker that a process was started for, from its command line."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        return words[words.index(WORKER_MODULE) + 1].rpartition("-")[0]
    return LAUNCHER


def _stolen() -> int:
    """Ticks that the host of a virtual machine has withheld; 0 if the system does not report it."""
    try:
        return int(Path("/proc/stat").read_text().split("\n", 1)[0].split()[8])
    except (OSError, ValueError, IndexError):
        return 0
