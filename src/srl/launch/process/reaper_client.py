"""The parent's side of the reaper: starts processes through it and receives their exit codes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from srl.launch.process import reaper
from srl.launch.process.descendants import KILL_SECONDS, ORPHAN_SECONDS

PATIENCE_SECONDS = 1.0
END_SECONDS = ORPHAN_SECONDS + KILL_SECONDS + 5.0
"""The longest wait for the end of a reaper."""


class ReaperLost(Exception):
    """The reaper was killed, and all processes that it had started with it."""


class ReaperClient:
    """Controls one reaper process, which ends with this process."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        """Starts a reaper. Its children get this `environment`.

        The reaper removes `folder` if this process is killed.
        """
        self._socket, reaper_end = socket.socketpair()
        with reaper_end:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", reaper.__file__, str(folder)],
                stdin=reaper_end.fileno(),
                stdout=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
            )
        self.templates: set[str] = set()
        """Names of the templates that were added."""
        self.pids: dict[int, int] = {}
        """The process ids of processes that have started, by their numbers."""
        self._count = 0
        self._received = b""
        self._ended: list[tuple[int, int]] = []

    def add_template(self, name: str, command: list[str], output: int) -> None:
        """Starts a template, which can fork processes once it has imported its modules."""
        self._send_order("template", name, *command, fds=[output])
        self.templates.add(name)

    def start(self, command: list[str], source: int, output: int, template: str = "") -> int:
        """Starts a process with these descriptors as standard input and output; returns its number.

        The process is forked by a template if one is named and works, and is started by its command
        otherwise. `pids` has its process id once it runs.
        """
        self._count += 1
        self._send_order("start", str(self._count), template, *command, fds=[source, output])
        return self._count

    def kill(self, number: int) -> None:
        """Kills a process whose end was not reported yet, also if it does not run yet."""
        self._send_order("kill", str(number))

    def ends(self, timeout_seconds: float = 0.0) -> list[tuple[int, int]]:
        """Numbers of the processes that have ended since the last call, each with its exit code.

        Waits for the first report if there is a timeout.
        """
        if not self._ended:
            self._receive(timeout_seconds)
        found, self._ended = self._ended, []
        return found

    def end(self) -> list[tuple[int, int]]:
        """Ends the reaper and all processes below it; returns exits that were not reported yet."""
        deadline = time.monotonic() + END_SECONDS
        with suppress(ReaperLost):
            self._send_order("end")
            while time.monotonic() < deadline:
                self._receive(PATIENCE_SECONDS)
        self.close()
        return self._ended

    def close(self) -> None:
        """Ends a reaper that reports nothing more; all that it started ends with it."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(PATIENCE_SECONDS)
        self._process.kill()
        self._process.wait()
        self._socket.close()

    def _continue(self) -> None:
        """Continues a reaper that a signal has stopped; its caller would wait for ever."""
        self._process.send_signal(signal.SIGCONT)

    def _send_order(self, *words: str, fds: list[int] | None = None) -> None:
        text = b"\0".join(os.fsencode(word) for word in words)
        order = len(text).to_bytes(reaper.LENGTH_BYTES, "big") + text
        self._continue()
        try:
            self._socket.settimeout(None)
            if fds:
                order = order[socket.send_fds(self._socket, [order], fds) :]
            self._socket.sendall(order)
        except OSError as error:
            raise ReaperLost from error

    def _receive(self, timeout_seconds: float | None) -> None:
        """Receives reports of the reaper; raises ReaperLost if the reaper has ended."""
        self._continue()
        try:
            self._socket.settimeout(timeout_seconds)
            data = self._socket.recv(1 << 16)
        except (BlockingIOError, TimeoutError):
            return
        except OSError as error:
            raise ReaperLost from error
        if not data:
            raise ReaperLost
        *lines, self._received = (self._received + data).split(b"\n")
        for line in lines:
            word, *numbers = line.decode().split()
            if word == "started":
                self.pids[int(numbers[0])] = int(numbers[1])
            else:
                self._ended.append((int(numbers[0]), int(numbers[1])))
