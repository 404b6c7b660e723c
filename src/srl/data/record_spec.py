"""The layout of what a stream's slots hold, as streams and bridges see it."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np


class RecordSpec(Protocol):
    """The layout of a record with a number of entries: `TrajectorySpec` has ticks, `TableSpec`
    rows."""

    @property
    def capacity(self) -> int:
        """Entries of a full record."""

    @property
    def nbytes(self) -> int:
        """Bytes of a slot that holds a full record."""

    def views(self, memory: np.ndarray) -> Any:
        """A slot's memory as a record."""

    def mark_unwritten(self, record: Any, *, first: bool) -> None:
        """Makes entries visible that the writer will not write. `first`: at a slot's first use."""

    def is_written(self, record: Any, length: int) -> bool:
        """Whether all of the first `length` entries were written."""

    def oldest_version(self, record: Any, length: int) -> int | None:
        """The oldest policy version that a record of `length` entries was made with, if any."""

    def parts(self, record: Any, length: int) -> list[np.ndarray]:
        """The used bytes of every array of a record, as uint8 arrays."""

    def pixels(self) -> list[bool]:
        """For each of the `parts`: whether it has pixels, or other bytes."""
