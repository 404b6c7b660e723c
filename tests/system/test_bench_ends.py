"""What `srl bench` started ends with it, however it ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from harness import LIMIT_SECONDS, runs, wait_for

pytestmark = pytest.mark.alone


def test_the_measured_run_ends_with_who_measures(shm: Path) -> None:
    command = "import sys; from srl.cli import main; sys.exit(main())"
    arguments = ("bench", "W1a", "--seconds", "6", "--json")
    bench = subprocess.Popen([sys.executable, "-c", command, *arguments])
    started: list[psutil.Process] = []
    try:
        wait_for(lambda: workers_of(bench.pid), "workers of the measured run")
        started = psutil.Process(bench.pid).children(recursive=True)
        bench.kill()
        bench.wait(LIMIT_SECONDS)
        _, alive = psutil.wait_procs(started, LIMIT_SECONDS)
        assert not alive
        assert not list(shm.iterdir())
    finally:
        bench.kill()
        for process in started:
            if process.is_running():
                process.kill()


def workers_of(pid: int) -> list[psutil.Process]:
    """Worker processes below a process."""
    below = psutil.Process(pid).children(recursive=True)
    return [process for process in below if runs(process, "srl.launch.process.worker")]
