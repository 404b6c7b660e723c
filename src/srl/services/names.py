"""Names: which worker is where, as files in the run's folder that any process can read.

A worker's process registers it when it is built and removes it when it ends; an entry whose process
died stays until the controller, which knows for certain, removes it.
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from pathlib import Path

import msgspec

_SUFFIX = ".name"


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """Where one worker is."""

    worker: str
    process: str
    host: str = msgspec.field(default_factory=socket.gethostname)
    pid: int = msgspec.field(default_factory=os.getpid)
    incarnation: int = 0
    """How often it was started again."""
    since: float = msgspec.field(default_factory=time.time)
    """Unix time."""


class Names:
    """The entries of one run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def register(self, entry: Entry) -> None:
        """Adds or replaces a worker's entry, in one move."""
        path = self._path(entry.worker)
        aside = path.with_suffix(f".{os.getpid()}")
        aside.write_bytes(msgspec.json.encode(entry))
        aside.replace(path)

    def lookup(self, worker: str) -> Entry | None:
        """Where a worker is, or None."""
        try:
            return msgspec.json.decode(self._path(worker).read_bytes(), type=Entry)
        except FileNotFoundError:
            return None

    def remove(self, worker: str) -> None:
        """Forgets a worker."""
        with suppress(FileNotFoundError):
            self._path(worker).unlink()

    def all(self) -> dict[str, Entry]:
        """Every entry, by worker."""
        found = {}
        for path in sorted(self._folder.glob(f"*{_SUFFIX}")):
            with suppress(FileNotFoundError):
                entry = msgspec.json.decode(path.read_bytes(), type=Entry)
                found[entry.worker] = entry
        return found

    def _path(self, worker: str) -> Path:
        return self._folder / f"{worker.replace('/', '+')}{_SUFFIX}"
