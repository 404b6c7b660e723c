"""A worker between the actors and the trainer that changes fragments on their way.

*Consumes* fragments of one sample stream. *Waits for* fragments, and for a free slot of the next
stream. *Unblocked by* actors and trainers. *Produces* the same fragments, changed, on the next
stream.

It is a base class: what changes is the user's. Put one in a graph with `Graph.insert`.
"""

from __future__ import annotations

from abc import abstractmethod

from srl.data.records import Trajectory
from srl.data.trajectory import copy_trajectory
from srl.data.tree import Tree
from srl.streams.sample import Slot
from srl.workers.wiring import Context
from srl.workers.worker import DONE, MADE, Progress, Wait, Worker


class Relabeller(Worker):
    """Reads a stream, changes each fragment, and writes it to the next stream.

    A subclass says what changes in `relabel`. If it learns, `own_state` and `restore_own` keep what
    it learned: they are part of every checkpoint, and of the last one a killed relabeller goes on
    from. Back-pressure, counting and closing are done here.
    """

    in_every_checkpoint = True

    def __init__(self, context: Context) -> None:
        self.name = context.name
        (reads,), (writes,) = context.worker.reads, context.worker.writes
        self._source = context.sample_source(reads)
        self._sink = context.sample_sink(writes)
        self.spec = self._source.spec.trajectory
        """What fragments look like: `spec.agent.obs`, `spec.length`, ..."""
        self._slot: Slot | None = None

    @classmethod
    def build(cls, context: Context) -> Relabeller:
        """A relabeller from its part of the plan; its settings are `context.worker.settings`."""
        return cls(context)

    @abstractmethod
    def relabel(self, fragment: Trajectory, length: int) -> None:
        """Changes a fragment in place.

        It has `length` ticks of [ticks, rows]; the last one only bootstraps and is the first of the
        next fragment. Keep its episode rules, its actions, and what the policy said about them.
        """

    def own_state(self) -> Tree:
        """What `restore_own` needs: plain values and numpy arrays in dicts and lists."""
        return None

    def restore_own(self, state: Tree) -> None:
        """Goes on from what `own_state` returned."""

    def step(self) -> Progress | Wait:
        """Passes one fragment on."""
        if self._slot is None:
            # Policy age is bounded where data begins, so any version will do here.
            self._slot = self._sink.claim(newest_version=0)
            if self._slot is None:
                return DONE if self._sink.closed else Wait("slots")
        item = self._source.take()
        if item is None:
            return DONE if self._source.closed or self._sink.closed else Wait("samples")
        copy_trajectory(item.trajectory, self._slot.trajectory)
        self.relabel(self._slot.trajectory, item.length)
        self._slot.commit(item.length, item.env_steps)
        self._slot = None
        item.release()
        self._source.acknowledge(1)
        self.row.add("count_fragments", 1)
        return MADE

    def state(self, exact: bool) -> Tree:
        """What the subclass keeps; in an exact checkpoint also the slot that is waiting."""
        slot = self._slot.index if exact and self._slot is not None else None
        return {"own": self.own_state(), "slot": slot}

    def restore(self, state: Tree, exact: bool) -> None:
        """Goes on from `state`."""
        if exact and state["slot"] is not None:
            self._slot = self._sink.reopen(state["slot"])
        self.restore_own(state["own"])

    def close(self) -> None:
        """Leaves both streams."""
        self._source.close()
        self._sink.close()
