"""Limits the time of periodic tasks. The head repeats some for every worker; with thousands of
workers such a task runs less often."""

from __future__ import annotations

import time
from collections.abc import Callable

SHARE = 10
"""Each periodic task may use about 1/SHARE of a core."""


class Throttle:
    """Runs a task every `seconds`, or less often if the task takes long."""

    def __init__(self, seconds: float = 0.0) -> None:
        self._seconds = seconds
        self._next = 0.0
        self._took = 0.0

    def step(self, do: Callable[[], None]) -> None:
        """Runs the task, if it is due."""
        now = time.monotonic()
        if now < self._next:
            return
        # This thread's processor time, not wall time: if others use the cores, that is no reason to
        # run the task less often.
        begun = time.thread_time()
        do()
        took = time.thread_time() - begun
        # One long call is no reason either: the first call makes files and imports modules.
        self._next = now + max(self._seconds, SHARE * min(took, self._took))
        self._took = took
