"""The processes below this one, and their ends; also what a process inherits from its parent's end.

This file imports little, and only from the standard library, because the reaper needs it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress

ORPHAN_SECONDS = 0.5
"""How long the orphans of a worker may take to end by themselves, as trackers of shared memory
do."""
KILL_SECONDS = 5.0
"""How long to wait for the end of killed processes. One that waits for a disk takes longer."""
POLL_SECONDS = 0.02
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
            stat = read_bytes(f"/proc/{name}/stat").rpartition(b")")[2].split()
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
    for line in read_bytes(f"/proc/{pid}/maps").splitlines():
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
        return process[1] != os.getpid() or _TRACKER not in read_bytes(f"/proc/{pid}/cmdline")

    end_descendants(files, ORPHAN_SECONDS, reap, wanted, before)


def read_bytes(path: str) -> bytes:
    """The content of a file; empty if it cannot be read."""
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
