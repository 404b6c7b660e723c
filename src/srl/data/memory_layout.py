"""Where each array of a record lies in a flat piece of memory, so that a slot can be written in
place and read without conversion."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from srl.data.tree import Tree, leaves, tree_map

ALIGNMENT = 64
"""Bytes: a cache line, so that two slots never share one."""


@dataclass(frozen=True, slots=True)
class Shape:
    """One array of a layout: the full shape with all leading axes."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """Bytes the array takes, before alignment."""
        return prod(self.shape) * np.dtype(self.dtype).itemsize


def aligned(nbytes: int) -> int:
    """`nbytes` rounded up to the alignment."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def layout_bytes(tree: Tree) -> int:
    """Bytes that all arrays of a tree of Shape take together."""
    return sum(aligned(leaf.nbytes) for leaf in leaves(tree))


def layout_views(tree: Tree, memory: np.ndarray) -> Tree:
    """The arrays of a tree of Shape as views of `memory` (uint8, at least `layout_bytes(tree)`
    long)."""
    offset = 0

    def view(leaf: Shape) -> np.ndarray:
        nonlocal offset
        start, offset = offset, offset + aligned(leaf.nbytes)
        return memory[start : start + leaf.nbytes].view(leaf.dtype).reshape(leaf.shape)

    return tree_map(view, tree)


def mark_unwritten(tree: Tree) -> None:
    """Fills fresh arrays, which hold zeros, with values that no writer uses: NaN, or the smallest
    value of the dtype."""
    for array in leaves(tree):
        if array.dtype.kind == "f":
            array.fill(np.nan)
        elif array.dtype.kind == "i":
            # Unsigned numbers and flags stay 0, which is their smallest value: gigabytes of pixels
            # are not written.
            array.fill(np.iinfo(array.dtype).min)
