"""The runs of trials: `srl train` on this machine, or jobs of Slurm."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from srl.errors import SrlError
from srl.experiment import Experiment
from srl.launch.backends.backend import srl_command
from srl.launch.backends.slurm_job import ask_slurm, wait_for_job
from srl.launch.directory.run_dir import LOCK_FILE
from srl.launch.process.descendants import signal_at_parents_death
from srl.run import submit_job

STOP_SECONDS = 20.0
"""How long a run may take to write its last checkpoint. Then it is killed."""
_LOG_TAIL_BYTES = 2000


class TrialRun(Protocol):
    """One run of a trial, while it goes on."""

    def ended(self) -> str | None:
        """None while it goes on; then what a run that could not start printed, or nothing."""
        ...

    def stop(self) -> None:
        """Asks it to end; does not wait."""
        ...

    def close(self) -> None:
        """Waits for its end, and kills it if that takes too long."""
        ...


def is_training(run_dir: Path) -> bool:
    """Whether a process holds the run's lock, such as the last run of a killed sweep."""
    try:
        fd = os.open(run_dir / LOCK_FILE, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


class LocalRun:
    """A process of this machine, bound to some cores. It stops when the sweep dies."""

    def __init__(self, words: Sequence[str], run_dir: Path, cores: Sequence[int]) -> None:
        self._log = run_dir.with_name(f"{run_dir.name}.log")
        self._log.parent.mkdir(parents=True, exist_ok=True)
        sweep = os.getpid()

        def prepare() -> None:
            if hasattr(os, "sched_setaffinity"):
                os.sched_setaffinity(0, cores)
            # It then writes a checkpoint and ends its workers, as after Ctrl-C.
            signal_at_parents_death(signal.SIGTERM)
            if os.getppid() != sweep:
                os._exit(1)

        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                srl_command(*words, "--run-dir", str(run_dir), "--quiet"),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Ctrl-C in the terminal is for the sweep, which then stops its runs.
                start_new_session=True,
                preexec_fn=prepare,
            )

    def ended(self) -> str | None:
        """None while it goes on; then what it printed last."""
        if self._process.poll() is None:
            return None
        with self._log.open("rb") as log:
            log.seek(max(0, self._log.stat().st_size - _LOG_TAIL_BYTES))
            return log.read().decode(errors="replace").strip()

    def stop(self) -> None:
        """Asks it to end with a checkpoint."""
        self._process.terminate()

    def close(self) -> None:
        """Waits for its end, and kills it if that takes too long."""
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            with suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


class SlurmRun:
    """A job of Slurm. It goes on without the sweep; `job` is its number."""

    def __init__(self, experiment: Experiment, run_dir: Path, job: str = "") -> None:
        self.job = job or submit_job(experiment, run_dir)
        self._problem: str | None = None
        self._thread = threading.Thread(target=self._wait, daemon=True)
        self._thread.start()

    def _wait(self) -> None:
        try:
            wait_for_job(self.job)
        except SrlError as error:
            self._problem = str(error)

    def ended(self) -> str | None:
        """None while the job waits or runs; then why it is not known how it ended, or nothing."""
        return None if self._thread.is_alive() else self._problem or ""

    def stop(self) -> None:
        """Cancels the job."""
        with suppress(SrlError):
            ask_slurm("scancel", self.job)

    def close(self) -> None:
        """Waits for the end of a cancelled job."""
        deadline = time.monotonic() + STOP_SECONDS
        while self._thread.is_alive() and time.monotonic() < deadline:
            time.sleep(0.2)


def core_sets(parallel: int) -> list[list[int]]:
    """The cores of each of several trials at once: its own ones, if there are enough."""
    known = (
        sorted(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else list(range(os.cpu_count() or 1))
    )
    each = len(known) // parallel
    if not each:
        return [[known[index % len(known)]] for index in range(parallel)]
    return [known[index * each : (index + 1) * each] for index in range(parallel)]
