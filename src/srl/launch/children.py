"""The processes that this host runs for a run, as children of the launcher or of an agent."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import msgspec

from srl.launch.last_words import failure_path, last_words
from srl.launch.places import Exit

EXIT_SECONDS = 0.8
"""How long processes may take to leave when a run ends, before they are killed."""
_OUTPUT_BYTES = 1 << 16
"""What is read of a process's output at a time."""
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_WAIT_ASLEEP = {"OMP_WAIT_POLICY": "passive"}
"""A thread that waits for its fellows leaves the core to actors, who have work for it."""


def single_threaded() -> dict[str, str]:
    """The environment of a process that computes: threads are what a worker asks torch for."""
    return {**_WAIT_ASLEEP, **os.environ, **dict.fromkeys(_THREADS, "1")}


@dataclass
class Child:
    """A process of this host."""

    name: str
    incarnation: int
    process: subprocess.Popen[bytes]

    def say(self, line: bytes) -> None:
        """Writes to it; one that has ended is noticed elsewhere."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError, ValueError):
            self.process.stdin.write(line)
            self.process.stdin.flush()

    def release(self) -> None:
        """Closes its standard input, which tells it to finish."""
        assert self.process.stdin is not None
        with suppress(OSError):
            self.process.stdin.close()


class Children:
    """The processes of this host: worker processes, and the gate where there is one."""

    def __init__(self, folder: Path, logs: Path | None) -> None:
        """Their output goes to files in `logs`; without it, to pipes for `read_output`."""
        self.folder = folder
        self._logs = logs
        self.living: dict[str, Child] = {}
        self._printed: list[tuple[str, bytes]] = []

    def start(self, name: str, incarnation: int, module: str, *arguments: str) -> None:
        """Starts `python -m MODULE ARGUMENTS`."""
        with suppress(FileNotFoundError):
            failure_path(self.folder, name).unlink()
        command = [sys.executable, "-m", module, *arguments]
        environment = {**single_threaded(), "PYTHONUNBUFFERED": "1"}
        if self._logs is None:
            process = _spawn(command, environment, subprocess.PIPE)
            assert process.stdout is not None
            os.set_blocking(process.stdout.fileno(), False)
        else:
            with (self._logs / f"{name}.log").open("ab") as output:
                process = _spawn(command, environment, output)
        self.living[name] = Child(name, incarnation, process)

    def tell(self, name: str, message: msgspec.Struct) -> None:
        """Writes a message to a process, as a line of JSON."""
        child = self.living.get(name)
        if child is not None:
            child.say(msgspec.json.encode(message) + b"\n")

    def exits(self) -> list[Exit]:
        """Those that have ended since the last time."""
        found = []
        for child in list(self.living.values()):
            code = child.process.poll()
            if code is None:
                continue
            child.release()
            self._read(child)
            if child.process.stdout is not None:
                child.process.stdout.close()
            del self.living[child.name]
            found.append(
                Exit(
                    process=child.name,
                    incarnation=child.incarnation,
                    pid=child.process.pid,
                    code=code,
                    failure=last_words(self.folder, child.name),
                )
            )
        return found

    def output(self) -> list[tuple[str, bytes]]:
        """What the processes have printed since the last time, where it goes to pipes."""
        for child in self.living.values():
            self._read(child)
        found, self._printed = self._printed, []
        return found

    def _read(self, child: Child) -> None:
        if child.process.stdout is None:
            return
        data = child.process.stdout.read(_OUTPUT_BYTES)
        if data:
            self._printed.append((child.name, data))

    def is_alive(self, name: str) -> bool:
        """Whether a process runs."""
        child = self.living.get(name)
        return child is not None and child.process.poll() is None

    def release(self) -> None:
        """Tells every process to finish by itself."""
        for child in self.living.values():
            child.release()

    def end(self, seconds: float) -> None:
        """Waits for the processes to end, and kills those that do not."""
        self.release()
        deadline = time.monotonic() + seconds
        for child in self.living.values():
            with suppress(subprocess.TimeoutExpired):
                child.process.wait(max(0.0, deadline - time.monotonic()))
        for child in self.living.values():
            if child.process.poll() is None:
                child.process.kill()
            child.process.wait()


def _spawn(
    command: list[str], environment: dict[str, str], output: int | IO[bytes]
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=subprocess.STDOUT,
        env=environment,
        # Ctrl-C is for the parent; it tells the workers what to do.
        start_new_session=True,
    )


def is_stopped(pid: int) -> bool:
    """Whether the system has stopped a process; False where it is unknown."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] in ("T", "t")
