"""How often, and how soon, a process that ended is started again."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable

from srl.errors import RunError

FIRST_BACKOFF_SECONDS = 0.5
MAX_BACKOFF_SECONDS = 30.0
AGENT_RESTARTS = 6
AGENT_WINDOW_SECONDS = 300.0


class Restarts:
    """Restarts of each process: at most so many within a window, each later than the one before."""

    def __init__(self, window_seconds: float) -> None:
        self._window_seconds = window_seconds
        self._times: dict[str, deque[float]] = defaultdict(deque)
        self.total: dict[str, int] = defaultdict(int)
        """Since the run began, by process."""

    def recent(self, process: str, now: float) -> int:
        """Restarts of a process within the window."""
        times = self._times[process]
        while times and times[0] < now - self._window_seconds:
            times.popleft()
        return len(times)

    def add(self, process: str, now: float) -> float:
        """Counts a restart; the seconds to wait before it. The first comes at once."""
        before = self.recent(process, now)
        self._times[process].append(now)
        self.total[process] += 1
        if not before:
            return 0.0
        return min(FIRST_BACKOFF_SECONDS * 2.0 ** (before - 1), MAX_BACKOFF_SECONDS)


class AgentRestarts:
    """Agents that ended although the run goes on: when each is started again, and the end of the
    run where one ends too often. What was long ago does not count."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._restarts = Restarts(AGENT_WINDOW_SECONDS)
        self._due: dict[str, float] = {}

    def waits(self, name: str) -> bool:
        """Whether a host's agent has ended and is still to be started."""
        return name in self._due

    def ended(self, name: str, how: str, last_lines: str = "") -> str:
        """Notes the end of a host's agent; what is to be said of it."""
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
        """Hosts whose agents are to be started now, each told once."""
        now = self._clock()
        found = [name for name, when in self._due.items() if now >= when]
        for name in found:
            del self._due[name]
        return found

    def forget(self, name: str) -> None:
        """A host's agent is not wanted any more."""
        self._due.pop(name, None)
