"""What other programs use of a machine is told from what our own processes use."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from srl.bench.machine import Others, tree_ticks

BURN = "import time; end = time.process_time() + 0.3\nwhile time.process_time() < end: pass"


def _own() -> int:
    return tree_ticks(os.getpid())[0]


def test_processes_that_we_started_are_ours_alive_and_ended() -> None:
    tick = 1 / os.sysconf("SC_CLK_TCK")
    before = _own()
    subprocess.run([sys.executable, "-c", BURN], check=True)
    ended = _own()
    assert (ended - before) * tick >= 0.28
    with subprocess.Popen(
        [sys.executable, "-c", f"{BURN}\nprint(flush=True)\ninput()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert (_own() - ended) * tick >= 0.28
        child.communicate(b"\n")


def test_work_of_a_process_that_is_not_ours_is_the_others() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as ours:
        others = Others(ours.pid)
        start, cpu = time.perf_counter(), time.process_time()
        while time.process_time() - cpu < 0.5:
            pass
        cores = os.cpu_count() or 1
        least = 0.5 / ((time.perf_counter() - start) * cores)
        assert others.share() >= 0.8 * least
        ours.communicate(b"\n")
