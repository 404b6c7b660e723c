"""What a trainer says of the samples that it learned from, to the replay workers that drew them."""

from __future__ import annotations

from collections import deque

import numpy as np

from srl.data.replay import shard_of
from srl.data.tree import Tree
from srl.errors import LearnError
from srl.streams.sample import SampleSink
from srl.streams.sample_queue import FragmentInfo
from srl.workers.wiring import Context


class Feedback:
    """Sends priorities to replay workers, by the keys of what they drew.

    The priorities wait here while a replay worker has not read the ones before. A trainer without
    such streams has nothing to send.
    """

    def __init__(self, sinks: dict[int, SampleSink]) -> None:
        """`sinks` are the streams by the number of their replay worker."""
        self._sinks = sinks
        self._pending: deque[tuple[int, np.ndarray, np.ndarray]] = deque()

    @classmethod
    def build(cls, context: Context) -> Feedback:
        """The feedback of a trainer, from its part of the plan."""
        streams = [context.plan.samples[name] for name in context.worker.writes]
        names = zip(streams, context.worker.writes, strict=True)
        return cls({stream.part: context.sample_sink(name) for stream, name in names})

    def add(self, row: Tree, priorities: np.ndarray | None, num_agents: int) -> None:
        """Takes the priorities of the rows of a batch. That of a window is the largest of its
        agents'."""
        if not self._sinks:
            return
        if priorities is None:
            raise LearnError(
                "expected priorities in the TrainResult, because a replay asks, got none"
            )
        keys = row["key"].reshape(-1, num_agents)[:, 0]
        highest = priorities.reshape(-1, num_agents).max(1)
        if not np.isfinite(highest).all():
            raise LearnError("expected finite priorities, got some that are not")
        shards = shard_of(keys)
        for shard in self._sinks:
            if (own := shards == shard).any():
                self._pending.append((shard, keys[own], highest[own]))

    def flush(self) -> bool:
        """Writes what waits; False if some of it must wait for a free slot."""
        while self._pending:
            shard, keys, priorities = self._pending[0]
            sink = self._sinks[shard]
            slot = None if sink.closed else sink.claim(newest_version=0)
            if slot is None and not sink.closed:
                return False
            if slot is not None:
                slot.table["key"][: keys.size] = keys
                slot.table["priority"][: keys.size] = priorities
                slot.commit(FragmentInfo(length=keys.size))
            self._pending.popleft()
        return True

    def state(self) -> Tree:
        """What waits."""
        return list(self._pending)

    def restore(self, state: Tree) -> None:
        """Continues from `state`."""
        self._pending = deque(state)

    def close(self) -> None:
        """Closes its ends of the streams."""
        for sink in self._sinks.values():
            sink.close()
