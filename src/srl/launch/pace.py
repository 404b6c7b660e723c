"""How often the head does what it does for every worker: with thousands of them, less often."""

from __future__ import annotations

import time
from collections.abc import Callable

SHARE = 10
"""Each such thing takes about one part in so many of a core's time."""


class Pace:
    """Does something every so many seconds, or less often if it takes long."""

    def __init__(self, seconds: float = 0.0) -> None:
        self._seconds = seconds
        self._next = 0.0
        self._took = 0.0

    def step(self, do: Callable[[], None]) -> None:
        """Does it, if it is time."""
        now = time.monotonic()
        if now < self._next:
            return
        # Not the time on the clock: it is no reason to wait that others have the cores.
        begun = time.thread_time()
        do()
        took = time.thread_time() - begun
        # Once is no reason either: the first time makes files and imports what writes them.
        self._next = now + max(self._seconds, SHARE * min(took, self._took))
        self._took = took
