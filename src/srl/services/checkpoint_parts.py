"""The parts of a checkpoint: files that workers write, with hashes that reveal damage."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import stat
import time
from pathlib import Path
from urllib.parse import quote, unquote

import msgspec
import numpy as np
from safetensors import SafetensorError

from srl.data.codec import save_state
from srl.data.counts import Count
from srl.data.tree import Tree
from srl.errors import CheckpointError
from srl.resources import machine_memory

_SUFFIX = ".safetensors"
LOCK_FILE = ".lock"
UNFINISHED = ".unfinished"
"""End of a part's file name until the part is complete."""
_NEW_FOLDER_SECONDS = 60.0


class CheckpointPart(msgspec.Struct, frozen=True):
    """One file of a checkpoint, with the hash and the size that prove it is whole."""

    file: str
    sha256: str
    bytes: Count


def part_file(name: str) -> str:
    """The file name of a part; a worker's name may have slashes."""
    return quote(name, safe=" ") + _SUFFIX


def write_part(folder: Path, name: str, state: Tree) -> Path:
    """Writes one worker's state into the folder that `CheckpointStore.begin` made, and syncs it to
    disk.

    If that fails (a full disk), the whole unfinished checkpoint is removed, which also frees the
    space of its other parts. Earlier checkpoints are untouched.
    """
    path = folder / part_file(name)
    # A process that dies while it writes must not leave a file that looks like a part.
    unfinished = folder / (path.name + UNFINISHED)
    if not folder.is_dir():
        raise _gone_error(folder, name)
    try:
        save_state(unfinished, state)
        sync(unfinished)
        os.replace(unfinished, path)
    except (OSError, SafetensorError) as error:
        if not folder.is_dir():
            raise _gone_error(folder, name) from error
        needed = _num_bytes(state)
        shutil.rmtree(folder, ignore_errors=True)
        raise cannot_write(folder.parent, f"part {name!r}", error, needed) from error
    return path


def copy_part(path: Path, folder: Path) -> None:
    """Copies a part of an earlier checkpoint into an unfinished one, and syncs it to disk."""
    try:
        shutil.copyfile(path, folder / path.name)
        sync(folder / path.name)
    except OSError as error:
        raise cannot_write(folder.parent, f"a copy of {path.name}", error) from error


def hash_parts(folder: Path) -> dict[str, CheckpointPart]:
    """The parts in a folder by name, with hashes of their current content."""
    parts = {}
    for path in sorted(folder.glob(f"*{_SUFFIX}")):
        name = unquote(path.name.removesuffix(_SUFFIX))
        parts[name] = part_of(path)
    return parts


def part_of(path: Path) -> CheckpointPart:
    """A file as a part, with the hash of its current content."""
    return CheckpointPart(path.name, _sha256(path), path.stat().st_size)


def verify_part(folder: Path, part: CheckpointPart, *, content: bool = True) -> str | None:
    """The problem with a part, or None if the part is as it was written.

    Without `content` only its size is compared.
    """
    path = folder / part.file
    try:
        found = path.lstat()
        if not stat.S_ISREG(found.st_mode):
            return f"{part.file} is a link, a folder or a device instead of a file"
        if found.st_size != part.bytes:
            return f"{part.file} has {found.st_size} bytes instead of {part.bytes}"
        # To restore a part, all of it must fit into memory. Hashing a part that does not fit would
        # take minutes.
        if found.st_size > (memory := machine_memory()):
            return f"{part.file} has {found.st_size:,} bytes, this machine's memory {memory:,}"
        if content and _sha256(path) != part.sha256:
            return f"{part.file} is not what was written (its SHA-256 differs)"
    except OSError as error:
        return f"{part.file} is unreadable ({error.strerror})"
    return None


def sync(path: Path) -> None:
    """Writes a file or a folder through to the disk, so that a power cut cannot undo it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def cannot_write(
    folder: Path, what: str, error: Exception, needed: int | None = None
) -> CheckpointError:
    """The error for a failed write: what is needed, what is free, where, and what to do."""
    reason = getattr(error, "strerror", None) or str(error)
    # safetensors reports the system's error only in its text.
    full = getattr(error, "errno", None) == errno.ENOSPC or f"os error {errno.ENOSPC})" in reason
    needs = f"needs {_megabytes(needed)}, " if needed is not None else ""
    try:
        free = f"{_megabytes(shutil.disk_usage(folder).free)} free"
    except OSError:
        free = "the folder is gone"
    return CheckpointError(
        f"cannot write {what} of a checkpoint in {folder}: "
        f"{'the disk is full' if full else reason} ({needs}{free}). "
        "Earlier checkpoints are untouched. "
        f"{'Free some space' if full else 'Fix this'} or choose another --run-dir, then resume."
    )


def _gone_error(folder: Path, part: str) -> CheckpointError:
    return CheckpointError(
        f"part {part!r}: the unfinished checkpoint {folder} is gone: another worker could not "
        "write its part, or this one took too long and the run has ended without it."
    )


class FolderLock:
    """A lock which shows that the writer of an unfinished checkpoint is alive; its death frees
    it."""

    def __init__(self, folder: Path) -> None:
        """Makes the folder, too, and takes the lock."""
        while True:
            folder.mkdir(exist_ok=True)
            self._file = (folder / LOCK_FILE).open("wb")
            fcntl.flock(self._file, fcntl.LOCK_EX)
            if (folder / LOCK_FILE).exists():
                return
            # Another process took the new folder for one of a dead writer, and removed it before it
            # was locked.
            self._file.close()

    def release(self) -> None:
        """Frees the lock."""
        self._file.close()

    @staticmethod
    def is_held(folder: Path) -> bool:
        """Whether the writer of `folder` is still alive."""
        try:
            with (folder / LOCK_FILE).open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            # The writer of a new folder may be about to lock it. An old folder without a lock has
            # no writer.
            return folder.exists() and time.time() - folder.stat().st_mtime < _NEW_FOLDER_SECONDS
        return False


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _num_bytes(state: Tree) -> int:
    if isinstance(state, dict):
        return sum(_num_bytes(value) for value in state.values())
    if isinstance(state, list | tuple):
        return sum(_num_bytes(value) for value in state)
    if isinstance(state, np.ndarray):
        return state.nbytes
    return len(state) if isinstance(state, bytes) else 8


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.1f} MB"
