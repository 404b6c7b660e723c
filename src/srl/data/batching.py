"""Fragments side by side: takes fragments of [ticks, rows] and makes one batch of [ticks, B]. Every
byte is copied once."""

from __future__ import annotations

import msgspec

from srl.data.records import SampleBatch, Trajectory
from srl.data.trajectory import TrajectorySpec, to_tree
from srl.data.tree import leaves


class BatchBuilder:
    """A batch in preallocated memory, filled fragment by fragment, so that it can fill while the
    trainer learns from another batch."""

    def __init__(self, spec: TrajectorySpec, num_items: int) -> None:
        self.spec = spec
        self.num_items = num_items
        batch_spec = msgspec.structs.replace(
            spec, rows=spec.rows * num_items, envs=spec.envs * num_items, cut="fixed"
        )
        self._batch = batch_spec.allocate()
        self.num_added = 0
        """Fragments added so far."""
        self.num_env_steps = 0
        """Environment steps in the added fragments."""

    @property
    def full(self) -> bool:
        """Whether all fragments have been added."""
        return self.num_added == self.num_items

    def add(self, trajectory: Trajectory, length: int, num_env_steps: int) -> None:
        """Copies one fragment in. Ticks beyond its `length` become inert (not alive, not acted)."""
        index = self.num_added
        fragment, batch = to_tree(trajectory), to_tree(self._batch)
        for source, target in zip(
            leaves(fragment.pop("row")), leaves(batch.pop("row")), strict=True
        ):
            rows = source.shape[0]
            target[index * rows : (index + 1) * rows] = source
        for source, target in zip(leaves(fragment), leaves(batch), strict=True):
            rows = source.shape[1]
            target[:, index * rows : (index + 1) * rows] = source
        if length < self.spec.capacity:
            self._blank(index, length)
        self.num_added += 1
        self.num_env_steps += num_env_steps

    def _blank(self, index: int, length: int) -> None:
        """Writes zeros beyond a fragment's end. A slot may hold anything there, and NaN times a
        mask of 0 is still NaN."""
        batch, missing = self._batch, self.spec.capacity - length
        per_tick = to_tree(batch)
        states = per_tick.pop("policy_state")
        del per_tick["row"]
        for array in leaves(per_tick):
            # Counted from the end, because frame stacks have earlier frames in front.
            width = array.shape[1] // self.num_items
            array[-missing:, index * width : (index + 1) * width] = 0
        for array in leaves(states):
            first = -(-length // self.spec.state_every)
            array[first:, index * self.spec.rows : (index + 1) * self.spec.rows] = 0
        columns = slice(index * self.spec.rows, (index + 1) * self.spec.rows)
        batch.policy_version[length:, columns] = -1

    def batch(self) -> SampleBatch:
        """The full batch. It is a view of this builder's memory, valid until `clear`."""
        return SampleBatch(
            data=self._batch,
            num_fragments=self.num_added,
            num_agents=self.spec.num_agents,
            burn_in=self.spec.burn_in,
            bootstrap=self.spec.bootstrap,
            state_every=self.spec.state_every,
        )

    def clear(self) -> None:
        """Makes room for the next batch."""
        self.num_added = self.num_env_steps = 0

    def state(self) -> dict[str, object]:
        """The fragments added so far, for `restore`."""
        return {
            "num_added": self.num_added,
            "num_env_steps": self.num_env_steps,
            "arrays": {
                str(i): array.copy() for i, array in enumerate(leaves(to_tree(self._batch)))
            },
        }

    def restore(self, state: dict[str, object]) -> None:
        """Continues from `state`."""
        self.num_added = int(state["num_added"])  # type: ignore[call-overload]
        self.num_env_steps = int(state["num_env_steps"])  # type: ignore[call-overload]
        for i, array in enumerate(leaves(to_tree(self._batch))):
            array[...] = state["arrays"][str(i)]  # type: ignore[index]
