"""Files that others may look at while they are written."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def write_whole(
    path: Path, content: bytes, *, private: bool = False, to_disk: bool = False
) -> None:
    """Replaces a file in one move: readers see the old one or the new one, also if the writer dies.

    `private`: only its owner may read it. `to_disk`: returns when a power cut cannot empty it.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    mode = 0o600 if private else 0o666
    try:
        fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
        with os.fdopen(fd, "wb") as file:
            if private:
                # (It may be there already, from a process that died.)
                os.fchmod(fd, mode)
            file.write(content)
            if to_disk:
                file.flush()
                os.fsync(fd)
        aside.replace(path)
    except BaseException:
        with suppress(OSError):
            aside.unlink(missing_ok=True)
        raise
