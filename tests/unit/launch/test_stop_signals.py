"""Signals get through, whoever they come to."""

from __future__ import annotations

import signal
import subprocess
import sys
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
    threads = set(threading.enumerate())
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
    assert set(threading.enumerate()) <= threads, "no thread of its own is left"


def test_a_process_that_leaves_signals_to_its_parent_lives_on_but_its_children_do_not() -> None:
    code = (
        "import os, signal, time\n"
        "from srl.launch.signals import leave_to_parent\n"
        "leave_to_parent()\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
        "reading, writing = os.pipe()\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    os.write(writing, b'x')\n"
        "    time.sleep(60.0)\n"
        "os.read(reading, 1)\n"
        "os.kill(child, signal.SIGTERM)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.stdout.strip(), done.returncode) == (str(-signal.SIGTERM), 0), done.stderr
