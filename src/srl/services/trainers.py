"""The trainers of one policy: who is there, which group they form, and whether each has a batch.

A group has a number, its *epoch*. Whoever finds that a group cannot go on (a member died, a
connection broke) starts the next epoch; each rank then says that it is there, what it holds, and
later that its part of the next batch is complete. Nobody begins what all must do together before
every rank has said so here: these are numbers in memory, so looking at them never waits.

Ranks on several hosts have these numbers on each of them: a row is written where its rank is, and
carried to the others (`merge`); the epoch is the largest that anyone knows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from srl.arena.arena import Arena


class Standing(NamedTuple):
    """What a rank has to say when it joins."""

    holds: int
    """The version of this run that it holds; -1: none, it has only just started."""
    due: int
    """The version for which the next batch of its stream is."""
    published: int
    """The newest version that it knows to be published, -1 if none."""
    env_steps: int
    """Steps that it knows to be consumed."""
    agent_steps: int


class BatchNumbers(NamedTuple):
    """What a batch is like: of one rank's part, or of all parts together."""

    env_steps: int
    agent_steps: int
    age_sum: int
    """Versions between the weights that acted and those that learn, over all agent steps."""
    age_count: int
    age_max: int


MEETING_FOLDER = "trainers"
"""Where they find each other, by files: in shared memory, or in the run directory if they are on
several hosts."""
_JOINED, _READY, _LEFT, _TOKEN, _STANDING = range(5)
_BATCH = _STANDING + len(Standing._fields)
_FIRST = 8
ROW = _BATCH + len(BatchNumbers._fields)
"""Numbers that each rank says."""


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
        region = arena.region(self._name, 8 * (_FIRST + ROW * count), "trainer.count")
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
            first = _FIRST + rank * ROW
            for cell in range(first, first + ROW):
                self._cells[cell] = 0
            self._cells[0] += 1

    def join(self, rank: int, epoch: int, standing: Standing, token: int) -> None:
        """Says that a rank is there for the group `epoch`, and how things stand with it; by random
        tokens no two groups are taken for each other."""
        self._set(rank, _TOKEN, token)
        for offset, number in enumerate(standing):
            self._set(rank, _STANDING + offset, number)
        self._set(rank, _JOINED, epoch + 1)

    def all_joined(self, epoch: int) -> bool:
        """Everyone is there for the group `epoch`."""
        return all(self._get(rank, _JOINED) == epoch + 1 for rank in range(self.count))

    def standings(self) -> list[Standing]:
        """What each rank has said, once all have joined."""
        return [Standing(*self.row(rank)[_STANDING:_BATCH]) for rank in range(self.count)]

    @property
    def token(self) -> int:
        """What names this group, once all have joined: the first rank's token."""
        return self._get(0, _TOKEN)

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
        return [BatchNumbers(*self.row(rank)[_BATCH:]) for rank in range(self.count)]

    def leave(self, rank: int, left: bool) -> bool:
        """Says whether a rank gets no further batch; True if that is new."""
        if self._get(rank, _LEFT) == left:
            return False
        self._set(rank, _LEFT, left)
        return True

    @property
    def someone_left(self) -> bool:
        """Some rank gets no further batch, so there is none for anybody."""
        return any(self._get(rank, _LEFT) for rank in range(self.count))

    # -- several hosts -----------------------------------------------------------------------------

    def row(self, rank: int) -> list[int]:
        """What a rank has said, as numbers."""
        return [self._get(rank, field) for field in range(ROW)]

    def merge(self, epoch: int, rows: Mapping[int, Sequence[int]]) -> bool:
        """Takes over what another host knows of its ranks; True if anything is new."""
        changed = False
        for rank, row in rows.items():
            if self.row(rank) != row:
                changed = True
                # What a rank has to say before that it has said it.
                for field in reversed(range(ROW)):
                    self._set(rank, field, row[field])
        if epoch > self.epoch:
            with self._arena.lock(self._name):
                self._cells[0] = max(self.epoch, epoch)
            changed = True
        return changed

    def fingerprint(self) -> bytes:
        """Other bytes whenever anything has changed."""
        return self._cells.tobytes()

    def _get(self, rank: int, field: int) -> int:
        return int(self._cells[_FIRST + rank * ROW + field])

    def _set(self, rank: int, field: int, value: int) -> None:
        self._cells[_FIRST + rank * ROW + field] = value


def _mark(epoch: int, version: int) -> int:
    return (epoch + 1 << 40) + version
