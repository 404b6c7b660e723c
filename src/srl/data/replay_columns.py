"""How a replay stores its fragments: a column for each array, and the bytes that they take."""

from __future__ import annotations

from dataclasses import fields
from typing import NamedTuple

import numpy as np

from srl.data.memory_layout import Shape
from srl.data.records import Trajectory
from srl.data.trajectory import TrajectorySpec, to_tree
from srl.data.tree import leaves
from srl.errors import ConfigError

_FIELDS = tuple(field.name for field in fields(Trajectory) if field.name != "row")


class Column(NamedTuple):
    """One array of a fragment, as it is stored."""

    field: str
    """The field of the trajectory that has it."""
    depth: int
    """Earlier frames that a window has in front."""
    every: int
    """Ticks between two entries."""
    entries: int
    """Entries of a fragment: one for each row, or each environment, at each stored tick."""
    shape: tuple[int, ...]
    """The shape of an entry."""
    dtype: str

    @property
    def nbytes(self) -> int:
        """Bytes of a fragment's entries."""
        return Shape((self.entries, *self.shape), self.dtype).nbytes

    def allocate(self, fragments: int) -> np.ndarray:
        """Entries of so many fragments, one after another; memory is taken as it is written."""
        return np.zeros((fragments * self.entries, *self.shape), self.dtype)


class Store(NamedTuple):
    """The entries of one column in all fragments."""

    array: np.ndarray
    column: Column


def columns(spec: TrajectorySpec) -> list[Column]:
    """The columns of a fragment's own ticks, in the order of `arrays`."""
    shapes = to_tree(spec.shapes(spec.length))
    depths = [leaf.stack - 1 for leaf in leaves(spec.agent.obs)]
    found = []
    for field in _FIELDS:
        for number, shape in enumerate(leaves(shapes[field])):
            depth = depths[number] if field == "obs" else 0
            every = spec.state_every if field == "policy_state" else 1
            ticks, width, *rest = shape.shape
            entries = (ticks - depth) * width
            found.append(Column(field, depth, every, entries, tuple(rest), shape.dtype))
    return found


def arrays(trajectory: Trajectory) -> list[np.ndarray]:
    """The arrays of a trajectory that have ticks."""
    return [leaf for field in _FIELDS for leaf in leaves(getattr(trajectory, field))]


def stack_depth(spec: TrajectorySpec) -> int:
    """Frames in front of a window that its first stack shows."""
    return max((leaf.stack - 1 for leaf in leaves(spec.agent.obs)), default=0)


def replay_capacity(
    stored: TrajectorySpec, drawn: TrajectorySpec, capacity_steps: int, origins: int = 1
) -> int:
    """Fragments that a replay of so many environment steps keeps; raises unless it has room for a
    window of each of `origins` that write in turn."""
    steps = stored.length * stored.envs
    capacity = max(1, capacity_steps // steps)
    ticks = drawn.capacity + stack_depth(stored)
    least = -(-ticks // stored.length) * origins
    if capacity < least:
        of = f"{stored.envs} environments" if origins == 1 else f"{origins} x {stored.envs} envs"
        raise ConfigError(
            f"replay: expected room for a window of {ticks} ticks of {of}, got {capacity_steps} "
            f"environment steps. Raise the buffer's size to {least * steps} at least "
            "(algorithm.buffer_size; each replay worker has a share of it)."
        )
    return capacity


def replay_bytes(stored: TrajectorySpec, capacity: int) -> int:
    """Bytes of a replay that keeps so many fragments."""
    return capacity * sum(column.nbytes for column in columns(stored))
