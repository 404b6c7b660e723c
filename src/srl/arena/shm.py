"""An arena in shared memory: a folder of mapped files that any process of the same user on the host
can open.

Files rather than anonymous memory, because workers are not always children of one parent; named
pipes rather than eventfds for the same reason. The folder belongs to one run: its owner holds a
lock in it for as long as it lives, so a later run can tell what was left behind and remove it.

A run on several hosts has such a folder on each. There a ring for a process that is elsewhere goes
to the host's gate, which carries on what it was about.
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
GATE = "gate"
"""The process that joins a host to the others; its bell rings for all that are elsewhere."""
CONTROLLER = "controller"
"""The process that a host's others are children of: the launcher, or an agent."""


class LockHeld(Exception):
    """A lock could not be had in time; whoever wanted it comes back later."""


def shm_root() -> Path:
    """The folder that holds the runs' folders: memory-backed where the system has such a file
    system."""
    chosen = os.environ.get(ROOT_VARIABLE)
    if chosen:
        return Path(chosen)
    return Path("/dev/shm") if Path("/dev/shm").is_dir() else Path(tempfile.gettempdir())


class ShmArena:
    """A run's folder of mapped regions, lock files and bells.

    `gated`: a process without a bell in this folder is on another host. `lazy`: regions take memory
    as they are written to, for a host that uses only part of them. `patience_seconds`: how long a
    lock is waited for before LockHeld is raised, for those on whom it depends that its holder ends.
    """

    def __init__(
        self,
        folder: Path,
        process: str,
        *,
        gated: bool = False,
        lazy: bool = False,
        patience_seconds: float = math.inf,
    ) -> None:
        self.folder = folder
        self.process = process
        self._lazy = lazy
        self._patience_seconds = patience_seconds
        self._ringers: dict[str, int] = {}
        self._locks: dict[str, int] = {}
        self._placement = _placement(folder) if gated else None
        self._epoch = self._placement[0] if self._placement is not None else 0

    def region(self, name: str, nbytes: int, setting: str = "") -> np.ndarray:
        """Maps the named region; the first to ask reserves it, so that running out is an error here
        and now."""
        path = self.path(name)
        with self.lock("regions"):
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                # (An empty file is one whose maker died over it.)
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
        """The file of a region. Who has mapped it keeps it when that is removed."""
        return self.folder / f"{name.replace('/', '+')}.region"

    def reserve(self, name: str, setting: str = "") -> None:
        """Lets a region that was made lazily take all of its memory, now that it will be used."""
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
            raise SharedMemoryError(
                f"shared memory: {path.stem.replace('+', '/')} needs {nbytes / 1e6:.1f} MB, but "
                f"only {free / 1e6:.1f} MB are free in {self.folder.parent}. Lower "
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
                        f"lock {name!r}: expected it within {self._patience_seconds:g} s; another "
                        "process of this run holds it, and is stopped or hangs."
                    ) from None
                time.sleep(0.001)

    def ring(self, *processes: str) -> None:
        """Puts a byte into each process's pipe. A full pipe is fine: it is already awake."""
        if self._placement is not None and self._placement[0] != self._epoch:
            self._epoch = self._placement[0]
            self._forget_ringers()
        rung = -1
        for process in processes:
            if process == self.process:
                continue
            fd = self._ringers.get(process)
            if fd is None:
                fd = self._ringers[process] = self._bell_of(process)
            if fd == rung:
                # All who are elsewhere share one bell.
                continue
            rung = fd
            try:  # noqa: SIM105 (a context manager takes longer than the call)
                os.write(fd, b"\0")
            except BlockingIOError:
                pass

    def _bell_of(self, process: str) -> int:
        if self._placement is None:
            return _open_pipe(self.folder, process)
        with suppress(FileNotFoundError):
            # Not made here: who has none is elsewhere.
            return _open(_bell_path(self.folder, process))
        fd = self._ringers.get(GATE)
        if fd is None:
            fd = self._ringers[GATE] = _open_pipe(self.folder, GATE)
        return fd

    def _forget_ringers(self) -> None:
        for fd in set(self._ringers.values()):
            os.close(fd)
        self._ringers.clear()

    def close(self) -> None:
        """Closes what this process opened; mapped regions go when nobody looks at them any more."""
        self._forget_ringers()
        for fd in self._locks.values():
            os.close(fd)
        self._locks.clear()


class Bell:
    """The waiting end of a process's pipe: sleeps in the kernel until somebody rings.

    To wait for other things too, poll `fileno()` with them and `clear` the bell afterwards.
    """

    def __init__(self, folder: Path, process: str) -> None:
        self._fd = _open_pipe(folder, process)
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)

    def wait(self, timeout_seconds: float) -> bool:
        """Returns when rung (True), or after the timeout (False). Rings since the
        last wait count."""
        if not self._poll.poll(timeout_seconds * 1000.0):
            return False
        return self.clear()

    def fileno(self) -> int:
        """Readable while there are rings that no wait has answered."""
        return self._fd

    def clear(self) -> bool:
        """Answers all rings so far; says whether there were any."""
        try:
            return bool(os.read(self._fd, 65536))
        except BlockingIOError:
            return False

    def close(self) -> None:
        """Stops listening."""
        os.close(self._fd)


class NoBell:
    """For a process without shared memory: a wait is a short sleep, since nobody else can make
    progress."""

    def wait(self, timeout_seconds: float) -> bool:
        """Sleeps, for timers only."""
        time.sleep(timeout_seconds)
        return False

    def close(self) -> None:
        """Nothing to close."""


class RunFolder:
    """A run's folder in shared memory, from the owner's side: made, locked, and
    removed at the end."""

    def __init__(self) -> None:
        root = shm_root()
        root.mkdir(parents=True, exist_ok=True)
        sweep(root)
        self.path, self._lock = _owned_folder(root)
        while not (self.path / "owner").exists():
            # Swept by another run, which came between its making and its locking.
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
    """Removes folders whose owners are gone, and names them."""
    removed = []
    for folder in root.glob(f"{_PREFIX}{os.getuid()}-*"):
        try:
            fd = os.open(folder / "owner", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            # No owner file: made just now, or half removed. A minute is enough to have made it.
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


def make_bell(folder: Path, process: str) -> None:
    """Says that a process is on this host, before it starts; then `bump_placement`."""
    os.close(_open_pipe(folder, process))


def remove_bell(folder: Path, process: str) -> None:
    """Says that a process is on this host no more; then `bump_placement`."""
    _bell_path(folder, process).unlink(missing_ok=True)


def bump_placement(folder: Path) -> None:
    """Tells every gated arena of the folder to look anew for who is on this host."""
    _placement(folder)[0] += 1


def _placement(folder: Path) -> memoryview:
    arena = ShmArena(folder, "")
    try:
        return arena.region("placement", 64)[:8].view(np.int64).data
    finally:
        arena.close()


def _bell_path(folder: Path, process: str) -> Path:
    return folder / f"{process.replace('/', '+')}.bell"


def _open_pipe(folder: Path, process: str) -> int:
    path = _bell_path(folder, process)
    with suppress(FileExistsError):
        os.mkfifo(path, 0o600)
    return _open(path)


def _open(path: Path) -> int:
    # Both ways, so that opening never waits for the other end.
    return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
