"""Signals get through, whoever they come to."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
import threading
import time

import pytest

from srl.launch.run.signals import Interrupted, StopSignals

MOST = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
"""Descriptors that this system lets a process have."""


def test_a_signal_that_comes_to_another_thread_ends_a_sleep() -> None:
    """Python notes it there, and nothing wakes the main thread."""
    signals = StopSignals()

    def receive() -> None:
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    threads = set(threading.enumerate())
    with signals.installed():
        sender = threading.Timer(0.1, receive)
        sender.start()
        with pytest.raises(Interrupted), signals.interrupting():
            time.sleep(3600.0)  # Longer than a test may take: only the signal ends it.
        sender.join()
    assert signals.reason == "SIGTERM"
    assert signal.getsignal(signal.SIGTERM) is before
    assert set(threading.enumerate()) <= threads, "no thread of its own is left"


@pytest.mark.skipif(MOST != resource.RLIM_INFINITY and MOST < 1100, reason="too few descriptors")
def test_a_signal_gets_through_where_many_descriptors_are_open() -> None:
    code = (
        "import os, signal, threading, time\n"
        "from srl.launch.process.descriptors import raise_descriptor_limit\n"
        "from srl.launch.run.signals import Interrupted, StopSignals\n"
        "raise_descriptor_limit()\n"
        "while os.dup(0) < 1024: pass\n"
        "signals = StopSignals()\n"
        "def receive(): signal.pthread_kill(threading.get_ident(), signal.SIGTERM)\n"
        "try:\n"
        "    with signals.installed(), signals.interrupting():\n"
        "        threading.Timer(0.1, receive).start()\n"
        "        time.sleep(3600.0)\n"
        "except Interrupted as came: print(came)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.stdout.strip(), done.returncode) == ("SIGTERM", 0), done.stderr
    assert not done.stderr


def test_a_process_that_leaves_signals_to_its_parent_lives_on_but_its_children_do_not() -> None:
    code = (
        "import os, signal, time\n"
        "from srl.launch.run.signals import leave_to_parent\n"
        "leave_to_parent()\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
        "reading, writing = os.pipe()\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    os.write(writing, b'x')\n"
        "    time.sleep(3600.0)\n"
        "os.read(reading, 1)\n"
        "os.kill(child, signal.SIGTERM)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.stdout.strip(), done.returncode) == (str(-signal.SIGTERM), 0), done.stderr
