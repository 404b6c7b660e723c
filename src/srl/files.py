"""Writes files that others may read meanwhile, and reads files that others have written."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from srl.errors import ConfigError

_TEMPORARY_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW


def write_atomically(
    path: Path, content: bytes, *, private: bool = False, to_disk: bool = False
) -> None:
    """Replaces a file in one move: readers see the old or the new file, even if the writer dies.

    `private`: only its owner may read it. `to_disk`: the content is on the disk at the return, so
    that a power cut cannot empty the file.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    mode = 0o600 if private else 0o666
    try:
        fd = os.open(temporary, _TEMPORARY_FLAGS, mode)
        with os.fdopen(fd, "wb") as file:
            if private:
                # (A process that died may have left this file.)
                os.fchmod(fd, mode)
            file.write(content)
            if to_disk:
                file.flush()
                os.fsync(fd)
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def read_limited(path: Path, max_bytes: int) -> bytes:
    """Reads a file that another user may have written, unless the file is too large.

    Raises OSError if the file cannot be opened, and ConfigError for a folder, a pipe, a device, or
    more than `max_bytes`.
    """
    with _open(path) as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read(max_bytes + 1) if size <= max_bytes else b""
        if max(size, len(data)) > max_bytes:
            raise ConfigError(
                f"{path}: expected at most {max_bytes:,} bytes, got {max(size, len(data)):,}. "
                "A run does not write files of that size here."
            )
        return data


def read_part(path: Path, offset: int, max_bytes: int) -> tuple[bytes, int, int]:
    """At most `max_bytes` of a file from `offset` on, and the size and the inode of the file. A
    negative offset counts from the end. Raises as `read_limited` does, but for no size."""
    with _open(path) as file:
        found = os.fstat(file.fileno())
        file.seek(max(0, found.st_size + offset) if offset < 0 else offset)
        return file.read(max_bytes), found.st_size, found.st_ino


def read_lines(path: Path, max_bytes: int) -> Iterator[bytes]:
    """The lines of a file that another user may have written. Raises as `read_limited` does, for a
    line of more than `max_bytes`."""
    with _open(path) as file:
        while line := file.readline(max_bytes + 1):
            if len(line) > max_bytes:
                raise ConfigError(
                    f"{path}: expected lines of at most {max_bytes:,} bytes, got a longer one."
                )
            yield line


def _open(path: Path) -> BinaryIO:
    # Without O_NONBLOCK, to open a pipe would wait for its writer.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise ConfigError(f"{path}: expected a file, got a folder, a pipe or a device.")
    return os.fdopen(fd, "rb")
