"""An arena in shared memory: a folder of mapped files that any process of the same user on the host
can open.

The arena uses files instead of anonymous memory, and named pipes instead of eventfds, because
workers are not always children of one parent. The folder belongs to one run. Its owner holds a lock
in it for as long as it lives, so a later run can recognise an abandoned folder and remove it.

A run on several hosts has such a folder on each host. There, a wake-up for a process on another
host goes to this host's bridge, which sends that host what the process waits for.
"""

from __future__ import annotations

import errno
import fcntl
import math
import mmap
import os
import secrets
import select
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from srl.errors import SharedMemoryError

ROOT_VARIABLE = "SRL_SHM_DIR"
_PREFIX = "srl-"
BRIDGE = "bridge"
"""The process that joins a host to the others; it is woken for every process on another host."""
CONTROLLER = "controller"
"""The process that controls a host's other processes: the head, or a host agent."""


class LockHeld(Exception):
    """A lock was not free in time; the caller tries again later."""


def shm_root() -> Path:
    """The folder that holds the runs' folders: memory-backed where the system has such a file
    system."""
    chosen = os.environ.get(ROOT_VARIABLE)
    if chosen:
        return Path(chosen)
    return Path("/dev/shm") if Path("/dev/shm").is_dir() else Path(tempfile.gettempdir())


class ShmArena:
    """A run's folder of mapped regions, lock files and wake pipes.

    `bridged`: a process without a wake pipe in this folder is on another host. `lazy`: regions take
    memory when they are written to, for a host that uses only part of them. `patience_seconds`:
    time to wait for a lock before LockHeld is raised, for callers that must never deadlock on a
    stopped lock holder.
    """

    def __init__(
        self,
        folder: Path,
        process: str,
        *,
        bridged: bool = False,
        lazy: bool = False,
        patience_seconds: float = math.inf,
    ) -> None:
        self.folder = folder
        self.process = process
        self._lazy = lazy
        self._patience_seconds = patience_seconds
        self._wakers: dict[str, int] = {}
        self._locks: dict[str, int] = {}
        self._placement = _placement(folder) if bridged else None
        self._epoch = self._placement[0] if self._placement is not None else 0

    def region(self, name: str, nbytes: int, setting: str = "") -> np.ndarray:
        """Maps the named region. The first process to ask reserves all of its memory, so that a
        lack of memory is an error at once."""
        path = self.path(name)
        with self.lock("regions"):
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                # An empty file is new, or the process that made it died before it reserved memory.
                if os.fstat(fd).st_size == 0:
                    self._make(fd, path, nbytes, setting)
                if os.fstat(fd).st_size < nbytes:
                    raise SharedMemoryError(
                        f"region {name!r}: expected {nbytes} bytes, got {os.fstat(fd).st_size}. "
                        "The processes of this run disagree about the plan."
                    )
                mapped = mmap.mmap(fd, nbytes)
            finally:
                os.close(fd)
        return np.frombuffer(mapped, np.uint8)

    def path(self, name: str) -> Path:
        """The file of a region. Processes that have mapped it keep the memory if it is removed."""
        return self.folder / f"{name.replace('/', '+')}.region"

    def reserve(self, name: str, setting: str = "") -> None:
        """Reserves all memory of a region that was made lazily, because it will be used now."""
        path = self.path(name)
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._reserve(fd, path, os.fstat(fd).st_size, setting, lazy=False)
        finally:
            os.close(fd)

    def _make(self, fd: int, path: Path, nbytes: int, setting: str) -> None:
        try:
            self._reserve(fd, path, nbytes, setting, lazy=self._lazy)
        except BaseException:
            path.unlink()
            raise

    def _reserve(self, fd: int, path: Path, nbytes: int, setting: str, *, lazy: bool) -> None:
        try:
            if hasattr(os, "posix_fallocate") and not lazy:
                os.posix_fallocate(fd, 0, nbytes)
            else:
                os.ftruncate(fd, nbytes)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG):
                raise
            stat = os.statvfs(self.folder)
            free = stat.f_bavail * stat.f_frsize
            name = path.stem.replace("+", "/")
            got = f"only {free / 1e6:.1f} MB are free in {self.folder.parent}"
            if free >= nbytes:
                # The file system may be larger than the memory of the machine or the container.
                got = f"the system does not have that much memory left ({error.strerror})"
            raise SharedMemoryError(
                f"shared memory: {name} needs {nbytes / 1e6:.1f} MB, but {got}. Lower "
                f"{setting or 'the number of slots'}, give the container more "
                f"(docker run --shm-size=2g), or point {ROOT_VARIABLE} to a larger folder."
            ) from None

    @contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """An advisory file lock: waits in the kernel, and is freed if its holder dies."""
        fd = self._locks.get(name)
        if fd is None:
            path = self.folder / f"{name.replace('/', '+')}.lock"
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._locks[name] = fd
        if self._patience_seconds == math.inf:
            fcntl.flock(fd, fcntl.LOCK_EX)
        else:
            self._try_lock(fd, name)
        try:
            yield
        finally:
            fcntl.flock(fd, fcntl.LOCK_UN)

    def _try_lock(self, fd: int, name: str) -> None:
        deadline = time.monotonic() + self._patience_seconds
        while True:
            try:
                return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise LockHeld(
                        f"lock {name!r}: not free within {self._patience_seconds:g} s. Another "
                        "process of this run holds it, and is stopped or hangs."
                    ) from None
                time.sleep(0.001)

    def wake(self, *processes: str) -> None:
        """Puts a byte into each process's wake pipe. A full pipe is fine: the process will wake."""
        if self._placement is not None and self._placement[0] != self._epoch:
            self._epoch = self._placement[0]
            self._forget_wakers()
        last_fd = -1
        for process in processes:
            if process == self.process:
                continue
            fd = self._wakers.get(process)
            if fd is None:
                fd = self._wakers[process] = self._wake_pipe_of(process)
            if fd == last_fd:
                # All processes on other hosts share the bridge's wake pipe.
                continue
            last_fd = fd
            try:  # noqa: SIM105 (a context manager takes longer than the call)
                os.write(fd, b"\0")
            except BlockingIOError:
                pass

    def _wake_pipe_of(self, process: str) -> int:
        if self._placement is None:
            return _open_pipe(self.folder, process)
        with suppress(FileNotFoundError):
            # The pipe is not made here: a process without one is on another host.
            return _open(_wake_pipe_path(self.folder, process))
        fd = self._wakers.get(BRIDGE)
        if fd is None:
            fd = self._wakers[BRIDGE] = _open_pipe(self.folder, BRIDGE)
        return fd

    def _forget_wakers(self) -> None:
        for fd in set(self._wakers.values()):
            os.close(fd)
        self._wakers.clear()

    def close(self) -> None:
        """Closes the pipes and locks. A mapped region is unmapped once no array refers to it."""
        self._forget_wakers()
        for fd in self._locks.values():
            os.close(fd)
        self._locks.clear()


class WakePipe:
    """The waiting end of a process's wake pipe: sleeps in the kernel until a process wakes it.

    To wait for other things too, poll `fileno()` with them and `clear` the wake pipe afterwards.
    """

    def __init__(self, folder: Path, process: str) -> None:
        self._fd = _open_pipe(folder, process)
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)

    def wait(self, timeout_seconds: float) -> bool:
        """Returns at a wake-up (True), or after the timeout (False). Wake-ups since the last wait
        count."""
        if not self._poll.poll(timeout_seconds * 1000.0):
            return False
        return self.clear()

    def fileno(self) -> int:
        """Readable while there are wake-ups that no `wait` or `clear` has consumed."""
        return self._fd

    def clear(self) -> bool:
        """Consumes all wake-ups so far; returns whether there were any."""
        try:
            return bool(os.read(self._fd, 65536))
        except BlockingIOError:
            return False

    def close(self) -> None:
        """Stops listening."""
        os.close(self._fd)


class NoWakePipe:
    """For a process without shared memory: a wait is a short sleep, because no other process can
    wake it."""

    def wait(self, timeout_seconds: float) -> bool:
        """Sleeps for the whole timeout, and returns False."""
        time.sleep(timeout_seconds)
        return False

    def close(self) -> None:
        """Nothing to close."""


class RunFolder:
    """A run's folder in shared memory, as its owner uses it: made, locked, and removed at the
    end."""

    def __init__(self) -> None:
        root = shm_root()
        root.mkdir(parents=True, exist_ok=True)
        sweep(root)
        self.path, self._lock = _owned_folder(root)
        while not (self.path / "owner").exists():
            # Another run swept this folder before it was locked.
            os.close(self._lock)
            self.path, self._lock = _owned_folder(root)

    def remove(self) -> None:
        """Removes the folder and all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        with suppress(OSError):
            os.close(self._lock)


def _owned_folder(root: Path) -> tuple[Path, int]:
    path = root / f"{_PREFIX}{os.getuid()}-{secrets.token_hex(6)}"
    path.mkdir(mode=0o700)
    lock = os.open(path / "owner", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    return path, lock


def sweep(root: Path) -> list[str]:
    """Removes folders whose owners are gone, and returns their names."""
    removed = []
    for folder in root.glob(f"{_PREFIX}{os.getuid()}-*"):
        try:
            fd = os.open(folder / "owner", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            # No owner file: the folder was made just now, or its removal was interrupted. A minute
            # is enough for its owner to make the file.
            with suppress(OSError):
                if time.time() - folder.stat().st_mtime > 60:
                    shutil.rmtree(folder, ignore_errors=True)
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
            removed.append(folder.name)
        except OSError:
            pass
        finally:
            os.close(fd)
    return removed


def make_wake_pipe(folder: Path, process: str) -> None:
    """Makes a process's wake pipe before it starts: the sign that it is on this host. Call
    `bump_placement` afterwards."""
    os.close(_open_pipe(folder, process))


def remove_wake_pipe(folder: Path, process: str) -> None:
    """Removes the wake pipe of a process that has left this host. Call `bump_placement`
    afterwards."""
    _wake_pipe_path(folder, process).unlink(missing_ok=True)


def bump_placement(folder: Path) -> None:
    """Makes every bridged arena of the folder check again which processes are on this host."""
    _placement(folder)[0] += 1


def _placement(folder: Path) -> memoryview:
    arena = ShmArena(folder, "")
    try:
        return arena.region("placement", 64)[:8].view(np.int64).data
    finally:
        arena.close()


def _wake_pipe_path(folder: Path, process: str) -> Path:
    return folder / f"{process.replace('/', '+')}.wake"


def _open_pipe(folder: Path, process: str) -> int:
    path = _wake_pipe_path(folder, process)
    with suppress(FileExistsError):
        os.mkfifo(path, 0o600)
    return _open(path)


def _open(path: Path) -> int:
    # Opened for reading and writing, so that opening never waits for the other end.
    return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
