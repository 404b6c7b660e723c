"""What Ctrl-C, SIGTERM and SIGHUP do, from the start of a command to its end.

While a run starts, and in commands that train nothing, a signal interrupts the program at once.
While a run trains, a signal asks it to stop. While a run cleans up, signals do nothing more.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from srl.launch.process.descriptors import wait_readable

_HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PATIENCE_SECONDS = 0.2
_END = 0
"""Byte that ends the thread which repeats signals; no signal has this number."""


class Interrupted(BaseException):
    """A signal has arrived; the text is its name. Not an Exception, so that no user code catches
    it."""


class StopSignals:
    """Decides what a signal does at the moment; `reason` is the name of the first signal."""

    def __init__(self) -> None:
        self.reason = ""
        self._react: Callable[[], None] | None = None

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Handles signals inside of this context; does nothing outside of the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._handle) for number in _signals_to_handle()}
        try:
            with self._repeating():
                yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def _repeating(self) -> Iterator[None]:
        """Sends a signal again if the main thread does not react to it.

        Python only records a signal, and runs its handler between two instructions. A signal that
        comes just before a system call (or comes to another thread) does not end that call, so a
        sleeping main thread sleeps on. The recorded signal wakes the thread that is started here,
        and this thread repeats the signal.
        """
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        main = threading.main_thread().ident
        assert main is not None

        def repeat() -> None:
            while True:
                came = os.read(reading, 4096)
                if _END in came:
                    return
                while not self.reason and came[-1] in _HANDLED:
                    if wait_readable([reading], _PATIENCE_SECONDS):
                        break
                    if not self.reason:
                        signal.pthread_kill(main, came[-1])

        thread = threading.Thread(target=repeat, name="signals", daemon=True)
        thread.start()
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            os.write(writing, bytes([_END]))
            thread.join()
            os.close(reading)
            os.close(writing)

    @contextmanager
    def interrupting(self) -> Iterator[None]:
        """Inside, signals raise `Interrupted`; a signal that came before raises it at once."""
        with self.calling(self._raise):
            yield

    @contextmanager
    def calling(self, react: Callable[[], None]) -> Iterator[None]:
        """Inside, signals call `react`; a signal that came before calls it at once. Outside,
        signals are only recorded."""
        before, self._react = self._react, react
        try:
            if self.reason:
                react()
            yield
        finally:
            self._react = before

    @contextmanager
    def held(self) -> Iterator[None]:
        """Signals wait until this context ends."""
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


def interrupt_command() -> None:
    """Makes SIGTERM and SIGHUP raise `Interrupted`, so that the process cleans up; by default they
    end it at once."""

    def interrupt(number: int, frame: object) -> None:
        raise Interrupted(signal.Signals(number).name)

    handled = [number for number in _signals_to_handle() if number != signal.SIGINT]
    for number in handled:
        signal.signal(number, interrupt)
    _reset_after_fork(*handled)


@contextmanager
def ignored() -> Iterator[None]:
    """Inside, signals do nothing: for a command that cleans up."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _HANDLED}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _signals_to_handle() -> list[signal.Signals]:
    """The signals to handle. SIGHUP is left out if it is ignored, as under `nohup`."""
    ignores = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [number for number in _HANDLED if number != signal.SIGHUP or not ignores]


def _reset_after_fork(*numbers: int) -> None:
    """Restores the default signal handlers in forked processes, which user code may start."""

    def forget() -> None:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)

    os.register_at_fork(after_in_child=forget)


def leave_to_parent() -> None:
    """Ctrl-C and SIGTERM do nothing in this process: its parent tells it when to end.

    A terminal, Slurm or systemd sends a signal to every process of a run at once. It is meant for
    the run, and the run ends with a checkpoint that its workers write.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    _reset_after_fork(signal.SIGTERM)
