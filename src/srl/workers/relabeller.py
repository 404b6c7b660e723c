"""A worker between the actors and the trainer that changes fragments on their way.

*Consumes* fragments of a sample stream, or of several streams where it works for several trainers.
*Waits for* fragments, and for a free slot of the next stream. *Unblocked by* actors and trainers.
*Produces* the same fragments, changed, on the next stream.

`Relabeller` is a base class: users write subclasses. `Graph.insert` puts one into a graph.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

from srl.data.records import Trajectory
from srl.data.trajectory import copy_trajectory
from srl.data.tree import Tree
from srl.streams.sample import SampleSink, SampleSource, Slot
from srl.workers.wiring import Context
from srl.workers.worker import DONE, PROGRESS, StepResult, Wait, Worker


class Relabeller(Worker):
    """Reads a stream, changes each fragment, and writes it to the next stream.

    A subclass changes fragments in `relabel`. If it learns, it overrides `own_state` and
    `restore_own`. Every checkpoint has this state, and a killed relabeller continues from the last
    one. This class does back-pressure, accounting and closing.
    """

    in_every_checkpoint = True

    def __init__(self, context: Context) -> None:
        self.name = context.name
        worker = context.worker
        self._pairs = [
            _StreamPair(context.sample_source(reads), context.sample_sink(writes))
            for reads, writes in zip(worker.reads, worker.writes, strict=True)
        ]
        """A pair of streams for each trainer that it works for."""
        self._next = 0
        self.spec = self._pairs[0].source.spec.trajectory
        """The shape of the fragments: `spec.agent.obs`, `spec.length`, ..."""

    @classmethod
    def build(cls, context: Context) -> Relabeller:
        """A relabeller from its part of the plan; its settings are `context.worker.settings`."""
        return cls(context)

    @abstractmethod
    def relabel(self, fragment: Trajectory, length: int) -> None:
        """Changes a fragment in place.

        It has `length` ticks of [ticks, rows]. The last tick only bootstraps, and is the first tick
        of the next fragment. Keep the episode rules, the actions, and what the policy replied.
        """

    def own_state(self) -> Tree:
        """What `restore_own` needs: plain values and numpy arrays in dicts and lists."""
        return None

    def restore_own(self, state: Tree) -> None:
        """Continues from what `own_state` returned."""

    def step(self) -> StepResult | Wait:
        """Changes one fragment and writes it to the next stream."""
        results = []
        for _ in self._pairs:
            pair = self._pairs[self._next]
            self._next = (self._next + 1) % len(self._pairs)
            result = pair.copy_one(self.relabel)
            if result is PROGRESS:
                self.stats.add("count_fragments", 1)
                return PROGRESS
            results.append(result)
        return next((result for result in results if isinstance(result, Wait)), DONE)

    def state(self, exact: bool) -> Tree:
        """The subclass's state; in an exact checkpoint also the slots that it has claimed."""
        slots = [pair.slot.index if pair.slot is not None else -1 for pair in self._pairs]
        return {"own": self.own_state(), "slots": slots if exact else None, "next": self._next}

    def restore(self, state: Tree, exact: bool) -> None:
        """Continues from `state`."""
        if exact:
            self._next = state["next"]
            for pair, slot in zip(self._pairs, state["slots"], strict=True):
                pair.slot = pair.sink.reopen(slot) if slot >= 0 else None
        self.restore_own(state["own"])

    def close(self) -> None:
        """Closes its ends of the streams."""
        for pair in self._pairs:
            pair.source.close()
            pair.sink.close()


class _StreamPair:
    """A stream that is read, and the next stream, which is written."""

    def __init__(self, source: SampleSource, sink: SampleSink) -> None:
        self.source = source
        self.sink = sink
        self.slot: Slot | None = None

    def copy_one(self, relabel: Callable[[Trajectory, int], None]) -> StepResult | Wait:
        """Copies one fragment to the next stream and changes it there."""
        if self.slot is None:
            # Only the actors' stream bounds policy age, so any version is fine here.
            self.slot = self.sink.claim(newest_version=0)
            if self.slot is None:
                return DONE if self.sink.closed else Wait("slots")
        item = self.source.take()
        if item is None:
            return DONE if self.source.closed or self.sink.closed else Wait("samples")
        copy_trajectory(item.trajectory, self.slot.trajectory)
        relabel(self.slot.trajectory, item.info.length)
        self.slot.commit(item.info)
        self.slot = None
        item.release()
        self.source.acknowledge(1)
        return PROGRESS
