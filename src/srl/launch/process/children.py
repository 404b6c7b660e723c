"""The processes of a run on this host: children of the head or of an agent."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import msgspec

from srl.errors import RunError
from srl.launch.cluster.node import Exit
from srl.launch.process.failure_report import failure_path, failure_report
from srl.launch.process.reaper_client import ReaperClient, ReaperLost
from srl.launch.process.template import template_command

EXIT_SECONDS = 0.8
"""How long processes may take to end by themselves when a run ends. Then they are killed."""
TEMPLATE_VARIABLE = "SRL_TEMPLATE"
"""Environment variable: with the value `off`, commands start all workers, as outside of Linux."""
TEMPLATE_LOG = "template.log"
_OUTPUT_BYTES = 1 << 16
"""The most that one read takes of a process's output."""
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_PASSIVE_WAIT = {"OMP_WAIT_POLICY": "passive"}
"""A waiting OpenMP thread sleeps, so that actors can use its core."""


def use_templates() -> bool:
    """Whether workers are forked from templates; elsewhere commands start them."""
    return sys.platform == "linux" and os.environ.get(TEMPLATE_VARIABLE) != "off"


def single_threaded() -> dict[str, str]:
    """The environment variables of a process that computes, with one thread.

    A worker asks torch itself for the threads that its plan allows.
    """
    return {**_PASSIVE_WAIT, **os.environ, **dict.fromkeys(_THREAD_VARIABLES, "1")}


@dataclass
class Child:
    """A process of this host."""

    name: str
    incarnation: int
    number: int
    """The reaper's number for it."""
    stdin: IO[bytes]
    stdout: IO[bytes] | None
    """A pipe with its output; None if the output goes to a file."""
    pid: int = 0
    """Its process id; 0 while it is not known."""
    code: int | None = None
    """Its exit code, as `subprocess` defines it; None while it runs."""

    def say(self, line: bytes) -> None:
        """Writes to its standard input. Does nothing if it has ended: `exits` reports that."""
        with suppress(BrokenPipeError, ValueError):
            self.stdin.write(line)
            self.stdin.flush()

    def release(self) -> None:
        """Closes its standard input, which tells it to finish."""
        with suppress(OSError):
            self.stdin.close()


class Children:
    """The processes of this host: worker processes, and the bridge where there is one.

    A reaper starts them, and ends the processes that they leave behind. Processes that name the
    same modules are forked by one template, which has imported these.
    """

    def __init__(self, folder: Path, logs: Path | None) -> None:
        """Their output goes to files in `logs`; if that is None, to pipes that `output` reads."""
        self.folder = folder
        self._logs = logs
        self.living: dict[str, Child] = {}
        self._printed: list[tuple[str, bytes]] = []
        self._reaper: ReaperClient | None = None

    def start(
        self,
        name: str,
        incarnation: int,
        module: str,
        *arguments: str,
        modules: tuple[str, ...] = (),
    ) -> None:
        """Starts `python -P -m MODULE ARGUMENTS MODULES`, which will import MODULES.

        With `-P`, imports do not look into the current folder; only `resolve` does.
        """
        with suppress(FileNotFoundError):
            failure_path(self.folder, name).unlink()
        command = [sys.executable, "-P", "-m", module, *arguments]
        template = ",".join(modules)
        if template:
            command.append(template)
        if not use_templates():
            template = ""
        with ExitStack() as opened:
            source, stdin = _pipe(opened)
            if self._logs is None:
                stdout, output = _pipe(opened)
            else:
                stdout, output = -1, _open_log(self._logs / f"{name}.log", opened)
            number = self._spawn(command, template, source, output)
            child = Child(
                name,
                incarnation,
                number,
                os.fdopen(os.dup(stdin), "wb"),
                None if stdout < 0 else os.fdopen(os.dup(stdout), "rb", buffering=0),
            )
        if child.stdout is not None:
            os.set_blocking(child.stdout.fileno(), False)
        self.living[name] = child

    def _spawn(self, command: list[str], template: str, source: int, output: int) -> int:
        if self._reaper is not None:
            with suppress(ReaperLost):
                return self._order(self._reaper, command, template, source, output)
            self._lose_reaper()
        self._reaper = ReaperClient(self.folder, {**single_threaded(), "PYTHONUNBUFFERED": "1"})
        try:
            return self._order(self._reaper, command, template, source, output)
        except ReaperLost:
            raise RunError(
                f"the reaper ended while it started {command[3]!r}. The reaper is the process that "
                "starts all others. Look for what kills processes on this machine (`dmesg`), and "
                "start the run again."
            ) from None

    def _order(
        self,
        reaper: ReaperClient,
        command: list[str],
        template: str,
        source: int,
        output: int,
    ) -> int:
        """Orders the start of a process; adds the template that forks it, if there is none yet."""
        if template and template not in reaper.templates:
            log = Path(os.devnull) if self._logs is None else self._logs / TEMPLATE_LOG
            with log.open("ab") as messages:
                reaper.add_template(template, template_command(template), messages.fileno())
        return reaper.start(command, source, output, template)

    def tell(self, name: str, message: msgspec.Struct) -> None:
        """Writes a message to a process, as a line of JSON."""
        child = self.living.get(name)
        if child is not None:
            child.say(msgspec.json.encode(message) + b"\n")

    def kill(self, name: str) -> None:
        """Kills a process."""
        child = self.living.get(name)
        if child is not None and child.code is None and self._reaper is not None:
            with suppress(ReaperLost):
                self._reaper.kill(child.number)

    def exits(self) -> list[Exit]:
        """Processes that have ended since the last call."""
        self._receive_exits()
        found = []
        for child in list(self.living.values()):
            if child.code is None:
                continue
            self.forget(child.name)
            found.append(
                Exit(
                    process=child.name,
                    incarnation=child.incarnation,
                    pid=child.pid,
                    code=child.code,
                    failure=failure_report(self.folder, child.name),
                )
            )
        return found

    def forget(self, name: str) -> None:
        """Removes a process that has ended."""
        child = self.living.pop(name)
        child.release()
        self._read(child)
        if child.stdout is not None:
            child.stdout.close()
        if self._reaper is not None:
            self._reaper.pids.pop(child.number, None)

    def _receive_exits(self, timeout_seconds: float = 0.0) -> None:
        """Asks the reaper which processes have ended; waits for the first one until the timeout."""
        if self._reaper is None:
            return
        try:
            self._note_exits(self._reaper.ends(timeout_seconds))
        except ReaperLost:
            self._lose_reaper()

    def _note_exits(self, ends: list[tuple[int, int]]) -> None:
        assert self._reaper is not None
        codes = dict(ends)
        for child in self.living.values():
            child.pid = self._reaper.pids.get(child.number, child.pid)
            if child.code is None and child.number in codes:
                child.code = codes[child.number]

    def _lose_reaper(self) -> None:
        """Forgets a reaper that was killed, and waits for the end of its children.

        The system kills these children too, before this call or soon after.
        """
        assert self._reaper is not None
        self._reaper.close()
        self._reaper = None
        for child in self.living.values():
            if child.code is None:
                while child.pid and not _is_gone(child.pid):
                    time.sleep(0.001)
                child.code = -signal.SIGKILL

    def output(self) -> list[tuple[str, bytes]]:
        """What the processes have printed since the last call, if their output goes to pipes."""
        for child in self.living.values():
            self._read(child)
        found, self._printed = self._printed, []
        return found

    def _read(self, child: Child) -> None:
        if child.stdout is None:
            return
        data = child.stdout.read(_OUTPUT_BYTES)
        if data:
            self._printed.append((child.name, data))

    def is_alive(self, name: str) -> bool:
        """Whether a process runs, or will once its template is ready."""
        self._receive_exits()
        child = self.living.get(name)
        return child is not None and child.code is None

    def wait(self, name: str, seconds: float) -> bool:
        """Waits until a process has ended, or something else happens here; whether it has ended."""
        child = self.living[name]
        if child.code is None:
            self._receive_exits(seconds)
        return child.code is not None

    def release(self) -> None:
        """Closes the standard input of every process, which tells it to finish."""
        for child in self.living.values():
            child.release()

    def end(self, seconds: float) -> None:
        """Waits until all processes have ended, then kills the rest and everything they started."""
        self.release()
        deadline = time.monotonic() + seconds
        while any(child.code is None for child in self.living.values()):
            left = deadline - time.monotonic()
            if left <= 0 or self._reaper is None:
                break
            self._receive_exits(left)
        if self._reaper is not None:
            self._note_exits(self._reaper.end())
            self._reaper = None


def _pipe(opened: ExitStack) -> tuple[int, int]:
    """Makes a pipe: its reading and writing end, both closed at the end of the stack."""
    ends = os.pipe()
    for fd in ends:
        opened.callback(os.close, fd)
    return ends


def _open_log(path: Path, opened: ExitStack) -> int:
    return opened.enter_context(path.open("ab")).fileno()


def _is_gone(pid: int) -> bool:
    """Whether a process has ended. A process that was not reaped yet has ended too."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] in ("Z", "X")
