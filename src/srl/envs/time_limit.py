"""Limits how long it may take to make an environment, where no controller watches yet."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from srl.envs.protocol import EnvConfig
from srl.errors import EnvError


@contextmanager
def time_limit(config: EnvConfig) -> Iterator[None]:
    """Raises an EnvError if an environment is not made in time; works only in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: object) -> None:
        raise EnvError(
            f"{config.id}: expected the environment to be made within "
            f"{config.reset_timeout_seconds:g} s, but it was not. Find out why it hangs, or raise "
            "the limit with --set env.reset_timeout_seconds=..."
        )

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, config.reset_timeout_seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
