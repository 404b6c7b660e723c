"""A template process, as the reaper sees it: one that has imported modules, and forks workers.

The reaper sends it one job at a time: the words of a command, and three descriptors (the new
process's input and output, and a pipe). The template answers with the process id of the new
process, whose parent is the reaper. The new process waits on the pipe until the reaper knows it and
sends its mark.

This file imports little, and only from the standard library, because the reaper needs it.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

JOB_SECONDS = 300.0
"""A template that has not forked a process for so long is killed. Then a command starts it. An
import from a slow file system may take minutes."""
READY = 0
"""What a template sends once it has imported its modules, in the place of a process id."""
PID_BYTES = 4
MAX_MESSAGE = 1 << 16


class Job:
    """A process to be started: its number, its command, and its standard input and output."""

    def __init__(self, number: int, words: list[bytes], source: int, output: int) -> None:
        self.number = number
        self.words = words
        self.source = source
        self.output = output
        self.deadline = time.monotonic() + JOB_SECONDS
        self.cancelled = False

    def close(self) -> None:
        """Closes the descriptors, which the started process has now."""
        os.close(self.source)
        os.close(self.output)


class TemplateProcess:
    """One template: it is started when a job needs it, and again if it was killed after that."""

    def __init__(self, start: Callable[[int], int]) -> None:
        """`start` starts the process, with a socket as its standard input; returns its pid."""
        self._start = start
        self.pid = 0
        """0 while it does not run."""
        self.failed = False
        """Whether it ended before it was ready. It would fail again, so it is not started again."""
        self._jobs: deque[Job] = deque()
        """The first one is under way while there is a mark pipe."""
        self._socket: socket.socket | None = None
        self._ready = False
        self._mark_pipe = -1

    def open(self) -> None:
        """Starts the process, unless it runs."""
        if self.pid:
            return
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.pid = self._start(theirs.fileno())

    def fileno(self) -> int:
        """The descriptor to wait on; -1 if the process does not run."""
        return -1 if self._socket is None else self._socket.fileno()

    @property
    def num_jobs(self) -> int:
        """Jobs that it has not done."""
        return len(self._jobs)

    @property
    def is_forking(self) -> bool:
        """Whether a job is under way."""
        return self._mark_pipe >= 0

    def add(self, job: Job) -> None:
        """Takes a job."""
        self.open()
        self._jobs.append(job)
        self._ask()

    def cancel(self, number: int) -> Job | None:
        """Takes back a job. None if there is none, or if the process is being forked: then it will
        be marked as cancelled."""
        for position, job in enumerate(self._jobs):
            if job.number == number:
                if position == 0 and self._mark_pipe >= 0:
                    job.cancelled = True
                    return None
                del self._jobs[position]
                return job
        return None

    def _ask(self) -> None:
        """Asks for the process of the oldest job, if the template has nothing else to do."""
        if self._socket is None or not self._ready or self._mark_pipe >= 0 or not self._jobs:
            return
        job = self._jobs[0]
        reading, self._mark_pipe = os.pipe()
        message = b"\0".join(job.words)
        # If the template has ended, `ended` will return the job.
        with suppress(OSError):
            socket.send_fds(self._socket, [message], [job.source, job.output, reading])
        os.close(reading)

    def answer(self) -> tuple[Job, int] | None:
        """Takes an answer: a job, and the process id of its process. None if there is neither."""
        assert self._socket is not None
        try:
            data = self._socket.recv(PID_BYTES)
        except OSError:
            data = b""
        if not data:
            # A process that hears nothing more is of no use. Its end will be noticed.
            self.kill()
            self._socket.close()
            self._socket = None
            return None
        pid = int.from_bytes(data, "big")
        if pid == READY:
            self._ready = True
            self._ask()
            return None
        return self._jobs.popleft(), pid

    def send_mark(self, mark: str) -> None:
        """Sends the new process its mark, so that it runs on; asks for the next process."""
        # Nobody waits there if the process was killed meanwhile.
        with suppress(BrokenPipeError):
            os.write(self._mark_pipe, mark.encode())
        self._close_mark_pipe()
        self._ask()

    def urge(self) -> None:
        """Continues the template if a signal has stopped it; kills it if it does not answer."""
        if self.pid and self._jobs:
            late = time.monotonic() > self._jobs[0].deadline
            os.kill(self.pid, signal.SIGKILL if late else signal.SIGCONT)

    def ended(self) -> list[Job]:
        """Notes that the process has ended; returns the jobs that it has not done."""
        self.failed = not self._ready
        self.pid, self._ready = 0, False
        self._close_mark_pipe()
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        left = list(self._jobs)
        self._jobs.clear()
        return left

    def kill(self) -> None:
        """Kills the process. It is not reaped yet, so no other one can have its process id."""
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)

    def _close_mark_pipe(self) -> None:
        if self._mark_pipe >= 0:
            os.close(self._mark_pipe)
            self._mark_pipe = -1
