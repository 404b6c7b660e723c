"""Signals get through, whoever they come to."""

from __future__ import annotations

import signal
import threading
import time

import pytest

from srl.launch.signals import Interrupted, StopSignals


def test_a_signal_that_comes_to_another_thread_ends_a_sleep() -> None:
    """Python notes it there, and nothing wakes the main thread."""
    signals = StopSignals()

    def receive() -> None:
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    begun = time.monotonic()
    with signals.installed():
        sender = threading.Timer(0.1, receive)
        sender.start()
        with pytest.raises(Interrupted), signals.interrupting():
            time.sleep(30.0)
        sender.join()
    assert time.monotonic() - begun < 10.0
    assert signals.reason == "SIGTERM"
    assert signal.getsignal(signal.SIGTERM) is before
    assert threading.active_count() == 1
