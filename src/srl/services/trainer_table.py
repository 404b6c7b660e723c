"""The trainers of one policy: which ones have joined, which group they form, and which have a
batch.

A trainer group has a number, its *epoch*. A rank that finds that a group cannot go on (a member
died, a connection broke) starts the next epoch. Each rank then writes that it has joined, its
progress, and later that its part of the next batch is complete. No rank begins a collective before
every rank has written this. These are numbers in memory, so reading them never waits.

If ranks are on several hosts, each host has these numbers. A row is written on the host of its
rank, and carried to the others (`merge`). The epoch is the largest one that any host knows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from srl.arena.arena import Arena


class RankProgress(NamedTuple):
    """The progress that a rank reports when it joins."""

    holds: int
    """The version of this run that it holds; -1 if it has only just started."""
    due: int
    """The version that the next batch of its stream is for."""
    published: int
    """The newest published version that it knows; -1 if there is none."""
    env_steps: int
    """Consumed environment steps that it knows of."""
    agent_steps: int
    """Consumed agent steps that it knows of."""


class BatchNumbers(NamedTuple):
    """Numbers of a batch: of one rank's part, or of the global batch."""

    env_steps: int
    agent_steps: int
    age_sum: int
    """Versions between the weights that acted and those that learn, over all agent steps."""
    age_count: int
    age_max: int


RENDEZVOUS_FOLDER = "trainers"
"""Folder of the files by which trainers find each other: in shared memory, or in the run directory
if they are on several hosts."""
_JOINED, _READY, _LEFT, _TOKEN, _PROGRESS = range(5)
_BATCH = _PROGRESS + len(RankProgress._fields)
_FIRST = 8
ROW = _BATCH + len(BatchNumbers._fields)
"""Numbers in the row of each rank."""


def global_numbers(parts: list[BatchNumbers]) -> BatchNumbers:
    """The numbers of the global batch, from those of its parts."""
    return BatchNumbers(
        env_steps=sum(part.env_steps for part in parts),
        agent_steps=sum(part.agent_steps for part in parts),
        age_sum=sum(part.age_sum for part in parts),
        age_count=sum(part.age_count for part in parts),
        age_max=max(part.age_max for part in parts),
    )


class TrainerTable:
    """The numbers of one trainer group, for its members, for bridges, and for the removal of dead
    members."""

    def __init__(self, arena: Arena, policy: str, count: int) -> None:
        self._arena = arena
        self._name = f"trainers/{policy}"
        self.count = count
        region = arena.region(self._name, 8 * (_FIRST + ROW * count), "trainer.count")
        self._cells = region.view(np.int64).data

    @property
    def epoch(self) -> int:
        """The number of the current group, or of the one that is being formed."""
        return int(self._cells[0])

    def regroup(self, seen: int) -> None:
        """Ends the group `seen`, if no rank has ended it yet."""
        with self._arena.lock(self._name):
            if self._cells[0] == seen:
                self._cells[0] = seen + 1

    def remove(self, rank: int) -> None:
        """Ends the group because a member is certainly dead, and clears that member's row."""
        with self._arena.lock(self._name):
            first = _FIRST + rank * ROW
            for cell in range(first, first + ROW):
                self._cells[cell] = 0
            self._cells[0] += 1

    def join(self, rank: int, epoch: int, progress: RankProgress, token: int) -> None:
        """Writes that a rank has joined the group `epoch`, and its progress.

        Random tokens make sure that no two groups are confused.
        """
        self._set(rank, _TOKEN, token)
        for offset, number in enumerate(progress):
            self._set(rank, _PROGRESS + offset, number)
        self._set(rank, _JOINED, epoch + 1)

    def all_joined(self, epoch: int) -> bool:
        """Whether all ranks have joined the group `epoch`."""
        return all(self._get(rank, _JOINED) == epoch + 1 for rank in range(self.count))

    def progress_of_ranks(self) -> list[RankProgress]:
        """The progress of each rank, once all have joined."""
        return [RankProgress(*self.row(rank)[_PROGRESS:_BATCH]) for rank in range(self.count)]

    @property
    def token(self) -> int:
        """The token that names this group, once all have joined: that of the first rank."""
        return self._get(0, _TOKEN)

    def announce(self, rank: int, epoch: int, version: int, batch: BatchNumbers) -> None:
        """Writes that a rank has its part of the batch that makes the version after `version`."""
        for offset, number in enumerate(batch):
            self._set(rank, _BATCH + offset, number)
        self._set(rank, _READY, _mark(epoch, version))

    def all_ready(self, epoch: int, version: int) -> bool:
        """Whether all ranks have their part of that batch."""
        mark = _mark(epoch, version)
        return all(self._get(rank, _READY) == mark for rank in range(self.count))

    def batches(self) -> list[BatchNumbers]:
        """The numbers of each rank's part, once all are ready."""
        return [BatchNumbers(*self.row(rank)[_BATCH:]) for rank in range(self.count)]

    def leave(self, rank: int, left: bool) -> bool:
        """Writes whether a rank gets no further batch; returns True if that is new."""
        if self._get(rank, _LEFT) == left:
            return False
        self._set(rank, _LEFT, left)
        return True

    @property
    def someone_left(self) -> bool:
        """Whether some rank gets no further batch; then no rank gets one."""
        return any(self._get(rank, _LEFT) for rank in range(self.count))

    # -- several hosts -----------------------------------------------------------------------------

    def row(self, rank: int) -> list[int]:
        """The row of a rank, as numbers."""
        return [self._get(rank, field) for field in range(ROW)]

    def merge(self, epoch: int, rows: Mapping[int, Sequence[int]]) -> bool:
        """Takes over the rows that another host has of its ranks; returns True if anything is
        new."""
        changed = False
        for rank, row in rows.items():
            if self.row(rank) != row:
                changed = True
                # The numbers of a report are written before the mark that completes it.
                for field in reversed(range(ROW)):
                    self._set(rank, field, row[field])
        if epoch > self.epoch:
            with self._arena.lock(self._name):
                self._cells[0] = max(self.epoch, epoch)
            changed = True
        return changed

    def fingerprint(self) -> bytes:
        """The numbers as bytes, which differ whenever anything has changed."""
        return self._cells.tobytes()

    def _get(self, rank: int, field: int) -> int:
        return int(self._cells[_FIRST + rank * ROW + field])

    def _set(self, rank: int, field: int, value: int) -> None:
        self._cells[_FIRST + rank * ROW + field] = value


def _mark(epoch: int, version: int) -> int:
    return (epoch + 1 << 40) + version
