"""Fragments side by side: [ticks, rows] each in, one [ticks, B] batch out, with one
copy per byte."""

from __future__ import annotations

import msgspec
import numpy as np

from srl.data.records import SampleBatch, Trajectory
from srl.data.trajectory import TrajectorySpec, to_tree
from srl.data.tree import leaves


class BatchBuilder:
    """A batch in preallocated memory that fills fragment by fragment, so that it can grow while
    another one trains."""

    def __init__(self, spec: TrajectorySpec, num_items: int) -> None:
        self.spec = spec
        self.num_items = num_items
        whole = msgspec.structs.replace(
            spec, rows=spec.rows * num_items, envs=spec.envs * num_items, cut="fixed"
        )
        self._batch = whole.allocate()
        self._ids: list[int] = []
        self.num_env_steps = 0
        """Environment steps in the fragments that are in."""

    @property
    def full(self) -> bool:
        """All fragments are in."""
        return len(self._ids) == self.num_items

    @property
    def item_ids(self) -> list[int]:
        """The fragments that are in, in order."""
        return self._ids

    def add(self, item_id: int, trajectory: Trajectory, length: int, num_env_steps: int) -> None:
        """Copies one fragment in; ticks beyond its `length` become inert (not alive, not acted)."""
        index = len(self._ids)
        for source, target in zip(
            leaves(to_tree(trajectory)), leaves(to_tree(self._batch)), strict=True
        ):
            rows = source.shape[1]
            target[:, index * rows : (index + 1) * rows] = source
        if length < self.spec.capacity:
            self._blank(index, length)
        self._ids.append(item_id)
        self.num_env_steps += num_env_steps

    def _blank(self, index: int, length: int) -> None:
        """Zeros beyond the end: a slot may hold anything there, and NaN survives a mask of 0."""
        batch, missing = self._batch, self.spec.capacity - length
        kept = to_tree(batch)
        states = kept.pop("policy_state")
        for array in leaves(kept):
            # Counted from behind, because frame stacks have earlier frames in front.
            width = array.shape[1] // self.num_items
            array[-missing:, index * width : (index + 1) * width] = 0
        for array in leaves(states):
            first = -(-length // self.spec.state_every)
            array[first:, index * self.spec.rows : (index + 1) * self.spec.rows] = 0
        columns = slice(index * self.spec.rows, (index + 1) * self.spec.rows)
        batch.policy_version[length:, columns] = -1

    def batch(self) -> SampleBatch:
        """The full batch. It is a view: valid until `clear`."""
        return SampleBatch(
            data=self._batch,
            item_ids=np.asarray(self._ids, np.int64),
            burn_in=self.spec.burn_in,
            state_every=self.spec.state_every,
        )

    def clear(self) -> None:
        """Makes room for the next batch."""
        self._ids.clear()
        self.num_env_steps = 0

    def state(self) -> dict[str, object]:
        """What is in so far."""
        return {
            "ids": list(self._ids),
            "num_env_steps": self.num_env_steps,
            "arrays": {
                str(i): array.copy() for i, array in enumerate(leaves(to_tree(self._batch)))
            },
        }

    def restore(self, state: dict[str, object]) -> None:
        """Continues from `state`."""
        self._ids = [int(i) for i in state["ids"]]  # type: ignore[attr-defined]
        self.num_env_steps = int(state["num_env_steps"])  # type: ignore[call-overload]
        for i, array in enumerate(leaves(to_tree(self._batch))):
            array[...] = state["arrays"][str(i)]  # type: ignore[index]
