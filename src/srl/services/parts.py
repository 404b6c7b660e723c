"""The parts of a checkpoint: files that workers write, each hashed so that damage is noticed."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import time
from pathlib import Path
from urllib.parse import quote, unquote

import msgspec
import numpy as np
from safetensors import SafetensorError

from srl.data.codec import save_state
from srl.data.tree import Tree
from srl.errors import CheckpointError

_SUFFIX = ".safetensors"
LOCK_FILE = ".lock"
UNFINISHED = ".unfinished"
"""What the name of a part ends with before it is whole."""
_YOUNG_SECONDS = 60.0


class Part(msgspec.Struct, frozen=True):
    """One file of a checkpoint and how to tell that it is whole."""

    file: str
    sha256: str
    bytes: int


def part_file(name: str) -> str:
    """The file name of a part; a worker's name may have slashes."""
    return quote(name, safe=" ") + _SUFFIX


def write_part(folder: Path, name: str, state: Tree) -> Path:
    """Writes one worker's state into a checkpoint that `CheckpointStore.begin` opened, down to the
    disk.

    Where that fails (a full disk), the whole unfinished checkpoint is removed, which also frees the
    room that its other parts took; earlier checkpoints are untouched.
    """
    path = folder / part_file(name)
    # Whoever dies over it leaves nothing that is taken for a part.
    aside = folder / (path.name + UNFINISHED)
    if not folder.is_dir():
        raise CheckpointError(
            f"part {name!r}: the unfinished checkpoint {folder} is gone: "
            "another worker could not write its part, or the run was stopped."
        )
    try:
        save_state(aside, state)
        sync(aside)
        os.replace(aside, path)
    except (OSError, SafetensorError) as error:
        needed = _num_bytes(state)
        shutil.rmtree(folder, ignore_errors=True)
        raise cannot_write(folder.parent, f"part {name!r}", error, needed) from error
    return path


def copy_part(path: Path, folder: Path) -> None:
    """Takes a part of an earlier checkpoint over into an unfinished one, down to the disk."""
    try:
        shutil.copyfile(path, folder / path.name)
        sync(folder / path.name)
    except OSError as error:
        raise cannot_write(folder.parent, f"a copy of {path.name}", error) from error


def hash_parts(folder: Path) -> dict[str, Part]:
    """The parts in a folder by name, with the hashes of what is in them now."""
    parts = {}
    for path in sorted(folder.glob(f"*{_SUFFIX}")):
        name = unquote(path.name.removesuffix(_SUFFIX))
        parts[name] = Part(path.name, _sha256(path), path.stat().st_size)
    return parts


def verify_part(folder: Path, part: Part) -> str | None:
    """What is wrong with a part, or None if it is what was written."""
    path = folder / part.file
    try:
        size = path.stat().st_size
        if size != part.bytes:
            return f"{part.file} has {size} bytes instead of {part.bytes}"
        if _sha256(path) != part.sha256:
            return f"{part.file} is not what was written (its SHA-256 differs)"
    except OSError as error:
        return f"{part.file} is unreadable ({error.strerror})"
    return None


def sync(path: Path) -> None:
    """Returns when a file or a folder is on the disk, so that a power cut cannot undo it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def cannot_write(
    folder: Path, what: str, error: Exception, needed: int | None = None
) -> CheckpointError:
    """The error for a write that failed: needed, free, where, and what to do."""
    reason = getattr(error, "strerror", None) or str(error)
    # safetensors reports what the system said only in its text.
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
        "Free some space or choose another --run-dir, then resume."
    )


class FolderLock:
    """Says that the writer of an unfinished checkpoint is alive; its death drops the lock."""

    def __init__(self, folder: Path) -> None:
        """Makes the folder too."""
        while True:
            folder.mkdir(exist_ok=True)
            self._file = (folder / LOCK_FILE).open("wb")
            fcntl.flock(self._file, fcntl.LOCK_EX)
            if (folder / LOCK_FILE).exists():
                return
            # Taken for one of the dead, by somebody who came between making and locking.
            self._file.close()

    def release(self) -> None:
        """Lets go."""
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
            # Its writer may be about to lock it; the dead do not stay young.
            return folder.exists() and time.time() - folder.stat().st_mtime < _YOUNG_SECONDS
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
