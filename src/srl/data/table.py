"""Tables: records with a few columns, for what travels on streams beside trajectories."""

from __future__ import annotations

import msgspec
import numpy as np

from srl.data.memory_layout import Shape, layout_bytes, layout_views
from srl.data.spec import ArraySpec
from srl.data.tree import leaves

Table = dict[str, np.ndarray]
"""Columns by name; the first axis of each is the rows."""


class TableSpec(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The layout of a table."""

    columns: dict[str, ArraySpec]
    """What a row has, by name."""
    capacity: int
    """Rows of a full table."""

    def shapes(self) -> dict[str, Shape]:
        """The columns' shapes."""
        return {
            name: Shape((self.capacity, *column.shape), column.dtype)
            for name, column in self.columns.items()
        }

    @property
    def nbytes(self) -> int:
        """Bytes of a slot that holds a full table."""
        return layout_bytes(self.shapes())

    def views(self, memory: np.ndarray) -> Table:
        """A slot's memory as a table."""
        views: Table = layout_views(self.shapes(), memory)
        return views

    def mark_unwritten(self, record: Table, *, first: bool) -> None:
        """Nothing: a table's writer says how many rows it wrote."""

    def is_written(self, record: Table, length: int) -> bool:
        """True: all of these rows were written."""
        return True

    def oldest_version(self, record: Table, length: int) -> int | None:
        """None: no policy made a table."""
        return None

    def parts(self, record: Table, length: int) -> list[np.ndarray]:
        """The used bytes of every column."""
        return [column[:length].reshape(-1).view(np.uint8) for column in leaves(record)]

    def pixels(self) -> list[bool]:
        """For each column: whether it has bytes."""
        return [shape.dtype == "uint8" for shape in leaves(self.shapes())]
