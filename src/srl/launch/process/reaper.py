"""The reaper: a small process that starts the workers of a host and ends what they leave behind.

`python -I -S reaper.py FOLDER`, with a socket to its parent (the head or an agent) as standard
input. On Linux the reaper is a child subreaper: the system gives it all orphans below it. So every
process that a worker starts stays below the reaper. This holds for a process in its own session,
for one that was forked twice, and for one without an environment.

The reaper starts a process by a command, or has a template fork it; in both cases the reaper is its
parent. When a worker has ended, the reaper ends what that worker left behind. When the run ends, or
the parent is gone for any reason, the reaper ends everything else. Stopped processes are ended too.

It imports little, and only from the standard library: all other processes wait until it has
started.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

if __name__ == "__main__":
    # Started by its path and without other packages, because that is fast.
    sys.path.append(os.path.abspath(f"{os.path.dirname(__file__)}/../../.."))

from srl.launch.process.descendants import (
    ORPHAN_SECONDS,
    POLL_SECONDS,
    Process,
    SharedFiles,
    adopt_orphans,
    end_descendants,
    read_bytes,
    signal_at_parents_death,
)
from srl.launch.process.template_process import Job, TemplateProcess

PARENT_SECONDS = 2.0
"""How long workers may take to finish by themselves when the parent is gone."""
URGE_SECONDS = 0.5
"""Time between two looks at a template that has not done its jobs."""
LENGTH_BYTES = 4
MARK = "SRL_REAPER_MARK"
"""Environment variable that says from which worker a process descends."""


class _Child:
    """A process that was started here: the number of its job, and its mark."""

    def __init__(self, number: int, mark: str) -> None:
        self.number = number
        self.mark = mark


class _Reaper:
    """The loop of the reaper process, its children, and what ended children have left behind."""

    def __init__(self, parent: socket.socket, folder: str) -> None:
        self._parent = parent
        self._folder = folder
        self._files = SharedFiles()
        self._received = bytearray()
        self._fds: list[int] = []
        """Received descriptors that no order has used yet."""
        self._children: dict[int, _Child] = {}
        """The running processes that were started here, by process id."""
        self._templates: dict[str, TemplateProcess] = {}
        self._unknown: dict[int, int] = {}
        """Wait statuses of ended processes that a template may still report, by process id."""
        self._orphans: list[tuple[float, int, str]] = []
        """By ended child: when to end its orphans, and the session and mark that identify them."""
        self._count = 0
        # The descriptors of waiting jobs are held here.
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._max_jobs = sys.maxsize if limit == resource.RLIM_INFINITY else limit // 4

    def run(self) -> None:
        """Obeys the orders of the parent until it orders the end or is gone."""
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        os.set_blocking(writing, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        watched = _watched_parent()
        while True:
            templates = {one.fileno(): one for one in self._templates.values() if one.pid}
            poll = select.poll()
            for fd in (self._parent.fileno(), reading, *watched, *templates):
                if fd >= 0:
                    poll.register(fd, select.POLLIN)
            ready = {fd for fd, _ in poll.poll(self._poll_timeout_ms())}
            if reading in ready:
                with suppress(BlockingIOError):
                    os.read(reading, 4096)
            self._reap()
            self._end_orphans()
            for fd in ready & templates.keys():
                # Its end may have been noticed a moment ago.
                if templates[fd].fileno() == fd:
                    self._hear(templates[fd])
            for template in self._templates.values():
                template.urge()
            if ready & {self._parent.fileno(), *watched} and not self._handle_orders():
                return

    def _poll_timeout_ms(self) -> float | None:
        """Milliseconds until orphans must be ended or a template urged; None if there are none."""
        waits = [URGE_SECONDS for one in self._templates.values() if one.num_jobs]
        if self._orphans:
            waits.append(max(0.0, self._orphans[0][0] - time.monotonic()))
        return min(waits) * 1000.0 if waits else None

    def _handle_orders(self) -> bool:
        """Reads and carries out orders of the parent; False when the reaper must end."""
        try:
            data, fds, _, _ = socket.recv_fds(self._parent, 1 << 16, 16, socket.MSG_DONTWAIT)
        except OSError:
            # There is nothing to read: the parent has ended, and that woke the reaper.
            data, fds = b"", []
        if not data:
            self._end_without_parent()
            return False
        for fd in fds:
            os.set_inheritable(fd, False)
        self._fds += fds
        self._received += data
        for order, *words in self._orders():
            if order == b"start":
                self._start(words)
            elif order == b"template":
                self._add_template(words)
            elif order == b"kill":
                self._kill(int(words[0]))
            else:
                self._end_all(0.0)
                return False
        return True

    def _orders(self) -> Iterator[list[bytes]]:
        """The words of each complete order. The length of an order is sent before it."""
        while len(self._received) >= LENGTH_BYTES:
            end = LENGTH_BYTES + int.from_bytes(self._received[:LENGTH_BYTES], "big")
            if len(self._received) < end:
                return
            words = bytes(self._received[LENGTH_BYTES:end]).split(b"\0")
            del self._received[:end]
            yield words

    def _end_all(self, seconds: float) -> None:
        """Kills everything below the reaper; children have some `seconds` to finish first."""
        deadline = time.monotonic() + seconds
        for template in self._templates.values():
            template.kill()
            for job in template.ended():
                job.close()
        self._templates.clear()
        while self._children and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
            self._reap()
        for pid in list(self._children):
            self._kill_child(pid)
        end_descendants(self._files, ORPHAN_SECONDS, self._reap)

    # -- starting ----------------------------------------------------------------------------------

    def _add_template(self, words: list[bytes]) -> None:
        """Starts a template, which imports modules while nobody needs it yet."""
        name, *command = words
        output = self._fds.pop(0)
        template = TemplateProcess(lambda source: self._run(command, source, output, self._mark()))
        self._templates[name.decode()] = template
        template.open()

    def _start(self, words: list[bytes]) -> None:
        """Starts a process, with the two oldest descriptors as its standard input and output."""
        number, name, *command = words
        job = Job(int(number), command, *self._fds[:2])
        del self._fds[:2]
        template = self._templates.get(name.decode())
        if template is None or template.failed or template.num_jobs >= self._max_jobs:
            self._start_command(job)
        else:
            template.add(job)

    def _start_command(self, job: Job) -> None:
        mark = self._mark()
        self._note_started(job, self._run(job.words, job.source, job.output, mark), mark)

    def _hear(self, template: TemplateProcess) -> None:
        """Takes what a template says: it may have forked a process, which waits for its mark."""
        answer = template.answer()
        if answer is None:
            return
        job, pid = answer
        mark = self._mark()
        self._note_started(job, pid, mark)
        if pid in self._unknown:
            self._note_end(pid, self._unknown[pid])
        elif job.cancelled:
            self._kill_child(pid)
        self._unknown.clear()
        template.send_mark(mark)

    def _mark(self) -> str:
        """A new mark. All have the same length, so that a forked process can replace its own."""
        self._count += 1
        return f"{os.getpid():010}.{self._count:010}"

    def _run(self, words: list[bytes], source: int, output: int, mark: str) -> int:
        """Runs a command in a new process, and returns its process id."""
        reaper = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                _run_command(words, source, output, mark, reaper)
            finally:
                os._exit(127)
        return pid

    def _note_started(self, job: Job, pid: int, mark: str) -> None:
        job.close()
        self._children[pid] = _Child(job.number, mark)
        self._report(f"started {job.number} {pid}\n")

    # -- ending ------------------------------------------------------------------------------------

    def _kill(self, number: int) -> None:
        """Kills the process of a job, or takes the job back if it has none yet."""
        for template in self._templates.values():
            job = template.cancel(number)
            if job is not None:
                job.close()
                self._report(f"ended {number} {-signal.SIGKILL}\n")
        for pid, child in self._children.items():
            if child.number == number:
                self._kill_child(pid)
                return

    def _kill_child(self, pid: int) -> None:
        # It was not reaped yet, so no other process can have this process id.
        self._files.note(pid)
        os.kill(pid, signal.SIGKILL)

    def _reap(self) -> None:
        """Reaps all ended processes, and reports the exit codes of those that were started here."""
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                if pid in self._children:
                    self._note_end(pid, status)
                elif not self._note_template_end(pid) and self._is_forking():
                    self._unknown[pid] = status

    def _is_forking(self) -> bool:
        return any(template.is_forking for template in self._templates.values())

    def _note_end(self, pid: int, status: int) -> None:
        child = self._children.pop(pid)
        self._orphans.append((time.monotonic() + ORPHAN_SECONDS, pid, child.mark))
        self._report(f"ended {child.number} {os.waitstatus_to_exitcode(status)}\n")

    def _note_template_end(self, pid: int) -> bool:
        """Starts what an ended template has left undone; whether the process was a template."""
        for template in self._templates.values():
            if template.pid == pid:
                for job in template.ended():
                    if job.cancelled:
                        job.close()
                        self._report(f"ended {job.number} {-signal.SIGKILL}\n")
                    else:
                        self._start_command(job)
                return True
        return False

    def _end_orphans(self) -> None:
        """Ends the orphans of ended children, if their session or their mark identifies them."""
        now = time.monotonic()
        due = {(session, mark) for when, session, mark in self._orphans if when <= now}
        if not due:
            return
        self._orphans = [entry for entry in self._orphans if entry[0] > now]
        sessions = {session for session, _ in due}
        marks = {f"{MARK}={mark}".encode() for _, mark in due}

        def wanted(pid: int, process: Process) -> bool:
            if pid in self._children:
                return False
            environment = read_bytes(f"/proc/{pid}/environ").split(b"\0")
            return process[0] in sessions or not marks.isdisjoint(environment)

        end_descendants(self._files, 0.0, self._reap, wanted)

    def _end_without_parent(self) -> None:
        """Ends everything and removes the parent's folder, because the parent is gone."""
        self._end_all(PARENT_SECONDS)
        import shutil  # this import takes a third of the start time

        shutil.rmtree(self._folder, ignore_errors=True)

    def _report(self, line: str) -> None:
        with suppress(OSError):
            self._parent.sendall(line.encode())


def _watched_parent() -> list[int]:
    """A descriptor that becomes readable when the parent ends, if the system supports it.

    The socket alone does not show the end: other processes may hold the parent's end of it too.
    """
    try:
        return [os.pidfd_open(os.getppid())]
    except (AttributeError, OSError):
        return []


def _run_command(words: list[bytes], source: int, output: int, mark: str, reaper: int) -> None:
    """Replaces a forked process by a command; returns only if the reaper has ended."""
    if not begin_session(reaper):
        return
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    take_streams(source, output)
    os.execve(words[0], words, {**os.environ, MARK: mark})


def begin_session(reaper: int) -> bool:
    """Gives this new process a session of its own, and an end with the reaper's end.

    Returns whether the reaper is still its parent.
    """
    # The kernel shares cores fairly between sessions. And Ctrl-C must only reach the head.
    os.setsid()
    signal_at_parents_death(signal.SIGKILL)
    return os.getppid() == reaper


def take_streams(source: int, output: int) -> None:
    """Makes two descriptors this process's standard input, and its output and error output."""
    os.dup2(source, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)


def main() -> None:
    """Runs the reaper process."""
    # A sender that signals every process at once wants to end the run: the parent does that.
    # The reaper must survive, because the processes are ended by it.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    adopt_orphans()
    signal_at_parents_death(signal.SIGCONT)
    with socket.socket(fileno=os.dup(0)) as parent:
        # The socket must not be inherited as standard input by the children.
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        _Reaper(parent, sys.argv[1]).run()


if __name__ == "__main__":
    main()
