"""Restarts of processes that have ended: how often, and after which delay."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable

from srl.errors import RunError

FIRST_BACKOFF_SECONDS = 0.5
MAX_BACKOFF_SECONDS = 30.0
SETTLED_SECONDS = 15.0
"""A process that ran for at least this long is started again at once: its end has nothing to do
with its start."""
AGENT_RESTARTS = 6
AGENT_WINDOW_SECONDS = 300.0


class Restarts:
    """Counts the restarts of each process within a window, and sets the delay before each one. If a
    process keeps ending soon after its start, each delay is longer than the one before."""

    def __init__(self, window_seconds: float) -> None:
        self._window_seconds = window_seconds
        self._times: dict[str, deque[float]] = defaultdict(deque)
        self.total: dict[str, int] = defaultdict(int)
        """Restarts of each process since the run began."""
        self._started: dict[str, float] = {}
        """Time of each process's last restart."""
        self._early: dict[str, int] = {}
        """How often in a row each process has ended soon after its start."""

    def recent(self, process: str, now: float) -> int:
        """Restarts of a process within the window."""
        times = self._times[process]
        while times and times[0] < now - self._window_seconds:
            times.popleft()
        return len(times)

    def seconds_since(self, process: str) -> float | None:
        """Seconds since the last restart of a process; None if there was none."""
        times = self._times.get(process)
        return time.monotonic() - times[-1] if times else None

    def add(self, process: str, now: float) -> float:
        """Counts a restart, and returns the seconds to wait before it: 0, unless the process was
        started again before and soon ended."""
        before = self.recent(process, now)
        self._times[process].append(now)
        self.total[process] += 1
        early = before and now - self._started.get(process, now) < SETTLED_SECONDS
        count = self._early.get(process, 0) + 1 if early else 0
        delay = min(FIRST_BACKOFF_SECONDS * 2.0 ** (count - 1), MAX_BACKOFF_SECONDS)
        self._early[process] = count
        self._started[process] = now + (delay if count else 0.0)
        return delay if count else 0.0


class AgentRestarts:
    """Restarts of host agents that end while the run goes on. Raises RunError if one ends too often
    within a window."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._restarts = Restarts(AGENT_WINDOW_SECONDS)
        self._due: dict[str, float] = {}

    def waits(self, name: str) -> bool:
        """Whether a host's agent has ended and is still to be started."""
        return name in self._due

    def ended(self, name: str, how: str, last_lines: str = "") -> str:
        """Records the end of a host's agent, and returns a note for the user about it."""
        now = self._clock()
        count = self._restarts.recent(name, now)
        if count >= AGENT_RESTARTS:
            raise RunError(
                f"the agent of host {name!r} ended {count + 1} times within "
                f"{AGENT_WINDOW_SECONDS:.0f} s ({how}).{last_lines}"
            )
        delay = self._restarts.add(name, now)
        self._due[name] = now + delay
        when = f" in {delay:g} s" if delay else ""
        return f"the agent of host {name} ended ({how}); starting it again{when}"

    def due(self) -> list[str]:
        """Hosts whose agents are to be started now; each is returned once."""
        now = self._clock()
        found = [name for name, when in self._due.items() if now >= when]
        for name in found:
            del self._due[name]
        return found

    def forget(self, name: str) -> None:
        """Forgets a host whose agent is not wanted any more."""
        self._due.pop(name, None)
