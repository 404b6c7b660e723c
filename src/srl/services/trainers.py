"""The trainers of one policy: who is there, which group they form, and whether each has a batch.

A group has a number, its *epoch*. Whoever finds that a group cannot go on (a member died, a
connection broke) starts the next epoch; each rank then says that it is there, what it holds, and
later that its part of the next batch is complete. Nobody begins what all must do together before
every rank has said so here: these are numbers in memory, so looking at them never waits.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from srl.arena.arena import Arena

_FIELDS = (
    "joined", "holds", "ready", "left",
    "env_steps", "agent_steps", "age_sum", "age_count", "age_max",
)  # fmt: skip
_WIDTH = len(_FIELDS)
_JOINED, _HOLDS, _READY, _LEFT, _BATCH = range(5)
_FIRST = 8


class BatchNumbers(NamedTuple):
    """What a batch is like: of one rank's part, or of all parts together."""

    env_steps: int
    agent_steps: int
    age_sum: int
    """Versions between the weights that acted and those that learn, over all agent steps."""
    age_count: int
    age_max: int


def all_together(parts: list[BatchNumbers]) -> BatchNumbers:
    """The numbers of the whole batch."""
    return BatchNumbers(
        env_steps=sum(part.env_steps for part in parts),
        agent_steps=sum(part.agent_steps for part in parts),
        age_sum=sum(part.age_sum for part in parts),
        age_count=sum(part.age_count for part in parts),
        age_max=max(part.age_max for part in parts),
    )


class Trainers:
    """One group's numbers, as any of its members or the launcher sees them."""

    def __init__(self, arena: Arena, policy: str, count: int) -> None:
        self._arena = arena
        self._name = f"trainers/{policy}"
        self.count = count
        region = arena.region(self._name, 8 * (_FIRST + _WIDTH * count), "trainer.count")
        self._cells = region.view(np.int64).data

    @property
    def epoch(self) -> int:
        """The number of the group that is, or is about to be."""
        return int(self._cells[0])

    def regroup(self, seen: int) -> None:
        """Ends the group `seen`, if nobody has yet."""
        with self._arena.lock(self._name):
            if self._cells[0] == seen:
                self._cells[0] = seen + 1

    def remove(self, rank: int) -> None:
        """Ends the group because a member's death is certain, and forgets what that one said."""
        with self._arena.lock(self._name):
            first = _FIRST + rank * _WIDTH
            for cell in range(first, first + _WIDTH):
                self._cells[cell] = 0
            self._cells[0] += 1

    def join(self, rank: int, epoch: int, version: int | None, steps: tuple[int, int]) -> None:
        """Says that a rank is there for the group `epoch`, with the weights of a version of this
        run (None: it has only just started), and how many environment and agent steps it knows to
        be consumed."""
        self._set(rank, _HOLDS, 0 if version is None else version + 1)
        for offset, number in enumerate(steps):
            self._set(rank, _BATCH + offset, number)
        self._set(rank, _JOINED, epoch + 1)

    def all_joined(self, epoch: int) -> bool:
        """Everyone is there for the group `epoch`."""
        return all(self._get(rank, _JOINED) == epoch + 1 for rank in range(self.count))

    def held_versions(self) -> dict[int, int]:
        """The ranks that hold what this run has learned, and the version that each has."""
        held = {rank: self._get(rank, _HOLDS) - 1 for rank in range(self.count)}
        return {rank: version for rank, version in held.items() if version >= 0}

    def most_steps(self) -> tuple[int, int]:
        """Environment and agent steps that were consumed, as whoever has seen most knows."""
        known = self.batches()
        return max(k.env_steps for k in known), max(k.agent_steps for k in known)

    def announce(self, rank: int, epoch: int, version: int, batch: BatchNumbers) -> None:
        """Says that a rank has its part of the batch that makes the version after `version`."""
        for offset, number in enumerate(batch):
            self._set(rank, _BATCH + offset, number)
        self._set(rank, _READY, _mark(epoch, version))

    def all_ready(self, epoch: int, version: int) -> bool:
        """Everyone has its part of that batch."""
        mark = _mark(epoch, version)
        return all(self._get(rank, _READY) == mark for rank in range(self.count))

    def batches(self) -> list[BatchNumbers]:
        """What each rank's part is like, once all are ready."""
        return [
            BatchNumbers(*(self._get(rank, _BATCH + offset) for offset in range(_WIDTH - _BATCH)))
            for rank in range(self.count)
        ]

    def leave(self, rank: int) -> None:
        """Says that a rank gets no further batch."""
        self._set(rank, _LEFT, 1)

    @property
    def someone_left(self) -> bool:
        """Some rank gets no further batch, so there is none for anybody."""
        return any(self._get(rank, _LEFT) for rank in range(self.count))

    def _get(self, rank: int, field: int) -> int:
        return int(self._cells[_FIRST + rank * _WIDTH + field])

    def _set(self, rank: int, field: int, value: int) -> None:
        self._cells[_FIRST + rank * _WIDTH + field] = value


def _mark(epoch: int, version: int) -> int:
    return (epoch + 1 << 40) + version
