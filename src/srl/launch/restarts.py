"""How often, and how soon, a process that ended is started again."""

from __future__ import annotations

from collections import defaultdict, deque

FIRST_BACKOFF_SECONDS = 0.5
MAX_BACKOFF_SECONDS = 30.0


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
