"""A limit on how long an environment may take to be made, where no controller watches yet."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from srl.envs.protocol import EnvConfig
from srl.errors import EnvError


@contextmanager
def time_limit(config: EnvConfig) -> Iterator[None]:
    """Interrupts an environment that cannot be made in time; in the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: object) -> None:
        raise EnvError(
            f"{config.id}: it could not be made within {config.reset_timeout_seconds:g} s. Find "
            "out why it hangs, or raise it with --set env.reset_timeout_seconds=..."
        )

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, config.reset_timeout_seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
