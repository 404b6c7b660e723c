"""Where shared bytes live: named regions, locks and wake-ups, behind one protocol.

Streams and services keep all their shared state in regions of an arena. With a `HeapArena` both
ends of a stream are in one process. With a `ShmArena` any process on the host may open the regions.
Streams and services run the same code over both.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import numpy as np


class Arena(Protocol):
    """Memory that the ends of streams and services share."""

    def region(self, name: str, nbytes: int, setting: str = "") -> np.ndarray:
        """The named region as uint8 [nbytes], made and zeroed if it is new.

        `setting` names the setting that a user can lower if the memory does not suffice.
        """
        ...

    def lock(self, name: str) -> AbstractContextManager[None]:
        """The named lock, for all users of the arena; the kernel frees it when its holder dies."""
        ...

    def wake(self, *processes: str) -> None:
        """Wakes the named processes, or makes their next waits return at once. Never blocks."""
        ...


class HeapArena:
    """Plain memory of one process: needs no locks and no wake-ups."""

    def __init__(self) -> None:
        self.regions: dict[str, np.ndarray] = {}

    def region(self, name: str, nbytes: int, setting: str = "") -> np.ndarray:
        """The named region, zeroed if it is new."""
        if name not in self.regions:
            # Like mapped memory, a region starts at a cache line.
            raw = np.zeros(nbytes + 64, np.uint8)
            start = -raw.ctypes.data % 64
            self.regions[name] = raw[start : start + nbytes]
        return self.regions[name]

    @contextmanager
    def _unlocked(self) -> Iterator[None]:
        yield

    def lock(self, name: str) -> AbstractContextManager[None]:
        """One thread needs no lock."""
        return self._unlocked()

    def wake(self, *processes: str) -> None:
        """Does nothing: the only thread is the caller's own."""

    def state(self) -> dict[str, np.ndarray]:
        """A copy of every region."""
        return {name: region.copy() for name, region in self.regions.items()}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Restores what `state` copied; the regions must be of the same plan."""
        for name, content in state.items():
            self.region(name, content.size)[:] = content
