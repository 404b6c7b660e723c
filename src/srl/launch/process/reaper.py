"""The reaper: a small process that starts the workers of a host and ends what they leave behind.

`python -I -S reaper.py FOLDER`, with a socket to its parent (the head or an agent) as standard
input. On Linux the reaper is a child subreaper: the system gives it all orphans below it. So every
process that a worker starts stays below the reaper. This holds for a process in its own session,
for one that was forked twice, and for one without an environment.

When a worker has ended, the reaper ends what that worker left behind. When the run ends, or the
parent is gone for any reason, the reaper ends everything else. Stopped processes are ended too.

This file imports little, and only from the standard library: all other processes wait until the
reaper has started.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress

ORPHAN_SECONDS = 0.5
"""How long the orphans of a worker may take to end by themselves, as trackers of shared memory
do."""
PARENT_SECONDS = 2.0
"""How long workers may take to finish by themselves when the parent is gone."""
KILL_SECONDS = 5.0
"""How long to wait for the end of killed processes. One that waits for a disk takes longer."""
POLL_SECONDS = 0.02
LENGTH_BYTES = 4
MARK = "SRL_REAPER_MARK"
"""Environment variable that says from which worker a process descends."""
SHARED_MEMORY = "/dev/shm"
_TRACKER = b"multiprocessing.resource_tracker"
_SET_DEATH_SIGNAL, _SET_SUBREAPER = 1, 36
"""Options of Linux's prctl."""

Process = tuple[int, int]
"""The session and the parent of a process."""


def adopt_orphans() -> None:
    """Makes this process the new parent of all orphans below it; Linux only."""
    _prctl(_SET_SUBREAPER, 1)


def signal_at_parents_death(number: int) -> None:
    """Makes the system send this process a signal when its parent ends; Linux only."""
    _prctl(_SET_DEATH_SIGNAL, number)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def descendants(pid: int, spared: Collection[int] = ()) -> dict[int, Process]:
    """All processes that run below a process, except those in `spared` and what is below them.

    Empty if the system does not list processes.
    """
    running: dict[int, Process] = {}
    below: dict[int, list[int]] = {}
    for name in _listed("/proc"):
        if name.isdecimal():
            stat = _read(f"/proc/{name}/stat").rpartition(b")")[2].split()
            if stat and stat[0] not in b"ZX":
                running[int(name)] = (int(stat[3]), int(stat[1]))
                below.setdefault(int(stat[1]), []).append(int(name))
    found: dict[int, Process] = {}
    unvisited = [pid]
    while unvisited:
        for one in below.get(unvisited.pop(), ()):
            if one not in spared:
                found[one] = running[one]
                unvisited.append(one)
    return found


class SharedFiles:
    """Files in shared memory that were made after this object, and that ended processes held."""

    def __init__(self) -> None:
        self._before = {name: _inode(name) for name in _listed(SHARED_MEMORY)}
        self._held: set[str] = set()

    def note(self, pid: int) -> None:
        """Notes which new files a process holds; call this before killing it."""
        for name in _held_by(pid):
            if _inode(name) != self._before.get(name):
                self._held.add(name)

    def remove(self) -> None:
        """Removes noted files that no process holds any more."""
        if not self._held:
            return
        still_held: set[str] = set()
        for name in _listed("/proc"):
            if name.isdecimal():
                still_held.update(_held_by(int(name)))
        for name in self._held - still_held:
            with suppress(OSError):
                os.unlink(f"{SHARED_MEMORY}/{name}")
        self._held.clear()


def _held_by(pid: int) -> Iterator[str]:
    """The names of files in shared memory that a process has mapped or open."""
    prefix = SHARED_MEMORY.encode() + b"/"
    for line in _read(f"/proc/{pid}/maps").splitlines():
        _, found, name = line.partition(prefix)
        if found and b"/" not in name and not name.endswith(b" (deleted)"):
            yield os.fsdecode(name)
    for fd in _listed(f"/proc/{pid}/fd"):
        with suppress(OSError):
            folder, _, file = os.readlink(f"/proc/{pid}/fd/{fd}").rpartition("/")
            if folder == SHARED_MEMORY and not file.endswith(" (deleted)"):
                yield file


def end_descendants(
    files: SharedFiles,
    grace_seconds: float,
    reap: Callable[[], None],
    wanted: Callable[[int, Process], bool] = lambda pid, process: True,
    spared: Collection[int] = (),
) -> None:
    """Kills the `wanted` processes below this one, after `grace_seconds` to end by themselves.

    Processes in `spared`, and what is below them, are left alone. `reap` reaps ended children.
    """

    def remaining() -> list[int]:
        reap()
        return [pid for pid, one in descendants(os.getpid(), spared).items() if wanted(pid, one)]

    deadline = time.monotonic() + grace_seconds
    while (found := remaining()) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    deadline = time.monotonic() + KILL_SECONDS
    while found and time.monotonic() < deadline:
        for pid in found:
            files.note(pid)
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(POLL_SECONDS / 10)
        found = remaining()
    reap()
    files.remove()


def end_own_descendants(files: SharedFiles, before: Collection[int]) -> None:
    """Ends all processes that a command has started. The command must start nothing afterwards.

    Processes that were below the command `before` are left alone. They are not its own: a shell
    that replaces itself by the command (`exec`) leaves its children to it.
    """

    def reap() -> None:
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass

    def wanted(pid: int, process: Process) -> bool:
        # The tracker of this process's own shared memory ends by itself right after this process.
        return process[1] != os.getpid() or _TRACKER not in _read(f"/proc/{pid}/cmdline")

    end_descendants(files, ORPHAN_SECONDS, reap, wanted, before)


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _inode(name: str) -> int:
    try:
        return os.stat(f"{SHARED_MEMORY}/{name}").st_ino
    except OSError:
        return 0


# -- the reaper's own process ----------------------------------------------------------------------


class _Reaper:
    """The loop of the reaper process, its children, and what ended children have left behind."""

    def __init__(self, parent: socket.socket, folder: str) -> None:
        self._parent = parent
        self._folder = folder
        self._files = SharedFiles()
        self._received = bytearray()
        self._fds: list[int] = []
        """Received descriptors that no order has used yet."""
        self._children: dict[int, str] = {}
        """The mark of each running process that was started here, by its process id."""
        self._orphans: list[tuple[float, int, str]] = []
        """By ended child: when to end its orphans, and the session and mark that identify them."""
        self._count = 0

    def run(self) -> None:
        """Obeys the orders of the parent until it orders the end or is gone."""
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        os.set_blocking(writing, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        poll = select.poll()
        for fd in (self._parent.fileno(), reading, *_watched_parent()):
            poll.register(fd, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poll.poll(self._poll_timeout_ms())}
            if reading in ready:
                with suppress(BlockingIOError):
                    os.read(reading, 4096)
            self._reap()
            self._end_orphans()
            if ready - {reading} and not self._handle_orders():
                return

    def _poll_timeout_ms(self) -> float | None:
        """Milliseconds until orphans must be ended; None if there are none."""
        if not self._orphans:
            return None
        return max(0.0, self._orphans[0][0] - time.monotonic()) * 1000.0

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
        self._fds += fds
        self._received += data
        for order, *words in self._orders():
            if order == b"start":
                self._start(words)
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
        while self._children and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
            self._reap()
        for pid in list(self._children):
            self._kill(pid)
        end_descendants(self._files, ORPHAN_SECONDS, self._reap)

    def _start(self, words: list[bytes]) -> None:
        """Starts a command, with the two oldest descriptors as its standard input and output."""
        source, output = self._fds[:2]
        del self._fds[:2]
        self._count += 1
        reaper = os.getpid()
        mark = f"{reaper}.{self._count}"
        pid = os.fork()
        if pid == 0:
            try:
                _run_command(words, source, output, mark, reaper)
            finally:
                os._exit(127)
        os.close(source)
        os.close(output)
        self._children[pid] = mark
        self._report(f"started {pid}\n")

    def _kill(self, pid: int) -> None:
        # It was not reaped yet, so no other process can have this process id.
        if pid in self._children:
            self._files.note(pid)
            os.kill(pid, signal.SIGKILL)

    def _reap(self) -> None:
        """Reaps all ended processes, and reports the exit codes of those that were started here."""
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                mark = self._children.pop(pid, None)
                if mark is not None:
                    self._orphans.append((time.monotonic() + ORPHAN_SECONDS, pid, mark))
                    self._report(f"ended {pid} {os.waitstatus_to_exitcode(status)}\n")

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
            environment = _read(f"/proc/{pid}/environ").split(b"\0")
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
    # The kernel shares cores fairly between sessions. And Ctrl-C must only reach the head.
    os.setsid()
    signal_at_parents_death(signal.SIGKILL)
    if os.getppid() != reaper:
        return
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    os.dup2(source, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.execve(words[0], words, {**os.environ, MARK: mark})


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
