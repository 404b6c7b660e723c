"""A worker between the actors and the trainer that changes fragments on their way.

*Consumes* fragments of a sample stream (of one for each trainer, where several share a worker).
*Waits for* fragments, and for a free slot of the next stream. *Unblocked by* actors and trainers.
*Produces* the same fragments, changed, on the next stream.

It is a base class: what changes is the user's. Put one in a graph with `Graph.insert`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

from srl.data.records import Trajectory
from srl.data.trajectory import copy_trajectory
from srl.data.tree import Tree
from srl.streams.sample import SampleSink, SampleSource, Slot
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
        worker = context.worker
        self._ways = [
            _Way(context.sample_source(reads), context.sample_sink(writes))
            for reads, writes in zip(worker.reads, worker.writes, strict=True)
        ]
        """One for each trainer that it works for."""
        self._next = 0
        self.spec = self._ways[0].source.spec.trajectory
        """What fragments look like: `spec.agent.obs`, `spec.length`, ..."""

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
        results = []
        for _ in self._ways:
            way = self._ways[self._next]
            self._next = (self._next + 1) % len(self._ways)
            result = way.pass_on(self.relabel)
            if result is MADE:
                self.row.add("count_fragments", 1)
                return MADE
            results.append(result)
        return next((result for result in results if isinstance(result, Wait)), DONE)

    def state(self, exact: bool) -> Tree:
        """What the subclass keeps; in an exact checkpoint also the slots that are waiting."""
        slots = [way.slot.index if way.slot is not None else -1 for way in self._ways]
        return {"own": self.own_state(), "slots": slots if exact else None, "next": self._next}

    def restore(self, state: Tree, exact: bool) -> None:
        """Goes on from `state`."""
        if exact:
            self._next = state["next"]
            for way, slot in zip(self._ways, state["slots"], strict=True):
                way.slot = way.sink.reopen(slot) if slot >= 0 else None
        self.restore_own(state["own"])

    def close(self) -> None:
        """Leaves its streams."""
        for way in self._ways:
            way.source.close()
            way.sink.close()


class _Way:
    """From one stream to the next."""

    def __init__(self, source: SampleSource, sink: SampleSink) -> None:
        self.source = source
        self.sink = sink
        self.slot: Slot | None = None

    def pass_on(self, relabel: Callable[[Trajectory, int], None]) -> Progress | Wait:
        """Passes one fragment on, changed."""
        if self.slot is None:
            # Policy age is bounded where data begins, so any version will do here.
            self.slot = self.sink.claim(newest_version=0)
            if self.slot is None:
                return DONE if self.sink.closed else Wait("slots")
        item = self.source.take()
        if item is None:
            return DONE if self.source.closed or self.sink.closed else Wait("samples")
        copy_trajectory(item.trajectory, self.slot.trajectory)
        relabel(self.slot.trajectory, item.length)
        self.slot.commit(item.length, item.env_steps)
        self.slot = None
        item.release()
        self.source.acknowledge(1)
        return MADE
