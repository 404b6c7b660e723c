"""Ctrl-C and SIGTERM, from the first moment of a launch to its last.

While a run starts they interrupt whatever happens; while it trains they ask it to stop; while it
cleans up they do nothing more.
"""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_HANDLED = (signal.SIGINT, signal.SIGTERM)
_PATIENCE_SECONDS = 0.2
_ENOUGH = 0
"""No signal has this number."""


class Interrupted(BaseException):
    """A signal arrived before training began. Not an Exception, so that no user code keeps it."""


class StopSignals:
    """What a signal does at the moment; `reason` names the first that came."""

    def __init__(self) -> None:
        self.reason = ""
        self._react: Callable[[], None] | None = None

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Handles signals; elsewhere than in the main thread they are not ours."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._handle) for number in _HANDLED}
        try:
            with self._insisting():
                yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def _insisting(self) -> Iterator[None]:
        """Sends a signal again that does not get through.

        Python only notes a signal and looks at the note between two instructions. One that comes
        just before a call into the system (or to another thread) does not end that call: whoever
        sleeps then sleeps on. A thread that is woken by the note itself sees to it.
        """
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        main = threading.main_thread().ident
        assert main is not None

        def insist() -> None:
            while True:
                select.select([reading], [], [])
                came = os.read(reading, 4096)
                if _ENOUGH in came:
                    return
                while not self.reason and came[-1] in _HANDLED:
                    if select.select([reading], [], [], _PATIENCE_SECONDS)[0]:
                        break
                    if not self.reason:
                        signal.pthread_kill(main, came[-1])

        thread = threading.Thread(target=insist, name="signals", daemon=True)
        thread.start()
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            os.write(writing, bytes([_ENOUGH]))
            thread.join()
            os.close(reading)
            os.close(writing)

    @contextmanager
    def interrupting(self) -> Iterator[None]:
        """Signals raise `Interrupted`, one that came before at once."""
        with self.calling(self._raise):
            yield

    @contextmanager
    def calling(self, react: Callable[[], None]) -> Iterator[None]:
        """Signals call `react`, one that came before at once. Outside of this they only count."""
        before, self._react = self._react, react
        try:
            if self.reason:
                react()
            yield
        finally:
            self._react = before

    @contextmanager
    def held(self) -> Iterator[None]:
        """Signals wait until the end of this."""
        before, self._react = self._react, None
        try:
            yield
        finally:
            self._react = before
        if self.reason and before is not None:
            before()

    def _handle(self, number: int, frame: object) -> None:
        self.reason = self.reason or signal.Signals(number).name
        if self._react is not None:
            self._react()

    def _raise(self) -> None:
        raise Interrupted(self.reason)


def leave_to_parent() -> None:
    """Ctrl-C and SIGTERM do nothing in this process: its parent says how it ends.

    Whoever sends them to every process at once (a terminal, Slurm, systemd) means the run, and a
    run ends with a checkpoint, which its workers write.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    # What user code starts is to end as it expects.
    os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))
