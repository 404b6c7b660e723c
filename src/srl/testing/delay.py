"""A worker that holds fragments back, so that data reaches the trainer at a known age."""

from __future__ import annotations

from collections import deque

from srl.data.records import Trajectory
from srl.data.trajectory import copy_trajectory
from srl.graph import Graph, WorkerGroup
from srl.streams.sample import Slot
from srl.streams.sample_queue import FragmentInfo
from srl.workers.wiring import Context
from srl.workers.worker import DONE, PROGRESS, StepResult, Wait, Worker


class Delay(Worker):
    """Writes each fragment after `fragments` later ones have arrived.

    *Consumes* fragments. *Waits for* fragments and slots. *Unblocked by* actors and the trainer.
    *Produces* the same fragments. One fragment a batch makes data `fragments` versions older. The
    fragments that it holds are lost with it, and are not in checkpoints.
    """

    def __init__(self, context: Context) -> None:
        (reads,), (writes,) = context.worker.reads, context.worker.writes
        self.name = context.name
        self._source, self._sink = context.sample_source(reads), context.sample_sink(writes)
        self._fragments = int(context.worker.settings["fragments"])
        self._held: deque[tuple[Trajectory, FragmentInfo]] = deque()
        self._slot: Slot | None = None

    @classmethod
    def build(cls, context: Context) -> Delay:
        """A delay from its part of the plan."""
        return cls(context)

    def step(self) -> StepResult | Wait:
        """Takes a fragment, or writes the oldest one."""
        if len(self._held) > self._fragments:
            return self._write()
        item = self._source.take()
        if item is None:
            return DONE if self._source.closed or self._sink.closed else Wait("samples")
        kept = self._source.spec.trajectory.allocate()
        copy_trajectory(item.trajectory, kept)
        self._held.append((kept, item.info))
        item.release()
        self._source.acknowledge(1)
        return PROGRESS

    def _write(self) -> StepResult | Wait:
        self._slot = self._slot or self._sink.claim(newest_version=0)
        if self._slot is None:
            return DONE if self._sink.closed else Wait("slots")
        kept, info = self._held.popleft()
        copy_trajectory(kept, self._slot.trajectory)
        self._slot.commit(info)
        self._slot = None
        return PROGRESS

    def close(self) -> None:
        """Closes its ends of the streams."""
        self._source.close()
        self._sink.close()


def delayed(graph: Graph, policy: str, fragments: int) -> Graph:
    """The graph with a delay before the trainer of a policy."""
    group = WorkerGroup(kind="srl.testing.delay:Delay", settings={"fragments": fragments})
    return graph.insert("delay", group, into=policy)
