"""Who uses a machine is told apart: workers by kind, other programs, nobody."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from srl.bench.usage import LAUNCHER, Usage, ticks_of

BURN = "import time; end = time.process_time() + 0.3\nwhile time.process_time() < end: pass"


def _own() -> int:
    return ticks_of(os.getpid()).own.total()


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
        usage = Usage(ours.pid)
        start, cpu = time.perf_counter(), time.process_time()
        while time.process_time() - cpu < 0.5:
            pass
        cores = os.cpu_count() or 1
        least = 0.5 / ((time.perf_counter() - start) * cores)
        used = usage.so_far()
        assert used.others >= 0.8 * least
        assert used.idle <= 1.0 - 0.8 * least
        ours.communicate(b"\n")


def test_workers_are_told_by_kind() -> None:
    start = time.monotonic()
    usage = Usage(os.getpid())
    with subprocess.Popen(
        [
            *(sys.executable, "-c", f"{BURN}\nprint(flush=True)\ninput()"),
            *("srl.launch.process.worker", "actor-3"),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        used = usage.so_far()
        assert set(used.cores) == {"actor", LAUNCHER}
        assert used.cores["actor"] * (time.monotonic() - start) >= 0.28
        child.communicate(b"\n")
