"""A sample stream on several hosts: the readers' host owns it, and grants slots to writers on other
hosts.

Only the owner hands out tickets. On the other hosts it is `owned_elsewhere`: a writer there can
claim only slots that the owner granted to it. When it commits one, the bridges carry the fragment
into the slot that the owner keeps for it. The two classes here are the ends that bridges use.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence

import numpy as np

from srl.arena.arena import Arena
from srl.streams.admission import open_queue
from srl.streams.sample import SampleSpec
from srl.streams.sample_queue import (
    FREE,
    GRANTED,
    HOST_LOST,
    LEFT,
    LOST,
    READY,
    WRITER_DIED,
    WRITING,
    FragmentInfo,
)


class _StreamEnd:
    """The part that both ends share: the stream's memory as bytes."""

    def __init__(self, spec: SampleSpec, arena: Arena) -> None:
        self.spec = spec
        self._admission = open_queue(spec, arena)
        self.queue = self._admission.queue

    def parts(self, index: int, length: int, *, whole: bool = True) -> list[np.ndarray]:
        """The bytes of a fragment, as uint8 arrays: the slot in one piece if it is full and `whole`
        is True, otherwise the used part of every array."""
        if whole and length == self.spec.record.capacity:
            return [self.queue.raw[index]]
        return self.spec.record.parts(self.queue.records[index], length)

    def pixels(self) -> list[bool]:
        """For each of the `parts` with `whole=False`: whether it holds bytes such as pixels."""
        return self.spec.record.pixels()


class OwnerEnd(_StreamEnd):
    """The owner's end of a stream: grants slots and receives the fragments."""

    def grant(self, writer: int, newest_version: int | None) -> tuple[int, int] | None:
        """A slot and its ticket for a writer on another host. None if the writer must wait: for a
        slot, or for newer weights than `newest_version` (None: not known here)."""
        newest = sys.maxsize if newest_version is None else newest_version
        with self.queue.lock():
            index = self._admission.claim(writer, newest)
            if isinstance(index, str):
                return None
            return index, int(self.queue.ticket[index])

    def commit(self, index: int, info: FragmentInfo) -> None:
        """Hands a slot to the readers; its fragment has arrived in it."""
        with self.queue.lock():
            waiting = self._admission.commit(index, info)
        self.queue.wake(waiting)

    def take_back(self, indices: Sequence[int], *, lost: bool) -> None:
        """Takes granted slots back; `lost` says that their writers had begun fragments."""
        with self.queue.lock():
            self._admission.free_unwritten(np.array(indices, np.int64))
            if lost:
                self.queue.dropped[WRITER_DIED] += len(indices)
        self.queue.wake_all()

    def granted_to(self, writers: Collection[int]) -> list[int]:
        """Slots that are granted to the given writers."""
        queue = self.queue
        held = np.flatnonzero(queue.status == WRITING)
        return [int(index) for index in held if queue.writer[index] in writers]


class RemoteWritersEnd(_StreamEnd):
    """The end on a writers' host: receives grants, and gives up the fragments."""

    def begin(self) -> None:
        """Makes the stream one of another owner, without any granted slots yet."""
        queue = self.queue
        with self.queue.lock():
            queue.owned_elsewhere[0] = 1
            self._free_as_lost(np.flatnonzero(np.isin(queue.status, (GRANTED, READY, LEFT, LOST))))
        self.queue.wake(self.spec.writers)

    def _free_as_lost(self, indices: np.ndarray) -> None:
        """Frees slots that a former owner granted. Their fragments are lost; they are counted here,
        because no other host can count them. The caller holds the lock."""
        queue = self.queue
        status = queue.status[indices]
        written = queue.writer[indices[status == READY]]
        np.add.at(queue.produced, written, 1)
        queue.dropped[HOST_LOST] += written.size
        queue.dropped[WRITER_DIED] += int((status == LOST).sum())
        queue.status[indices] = FREE

    def take_over(self, newest_version: int) -> None:
        """Makes this host the owner. The former owner is gone, and so are its tickets.

        Slots that are being written here get new tickets, and versions count from `newest_version`
        or later. All other slots of the former owner are freed, and their fragments are lost.
        """
        queue = self.queue
        if not queue.owned_elsewhere[0]:
            return
        with self.queue.lock():
            writing = np.flatnonzero(queue.status == WRITING)
            self._free_as_lost(np.flatnonzero(queue.status != WRITING))
            self._admission.restart_tickets(writing, newest_version)
            queue.owned_elsewhere[0] = 0
        self.queue.wake_all()

    def waiting_writers_here(self) -> list[int]:
        """Writers on this host that wait for a slot."""
        # The comparison makes a copy: numpy fails if writers change the array while it searches.
        found: list[int] = np.flatnonzero(self.queue.waiting_writers != 0).tolist()
        return found

    def accept(self, writer: int, ticket: int) -> int | None:
        """Grants a slot here to its writer, and returns the slot. None if no slot is free, or if
        the writer no longer waits for one."""
        queue = self.queue
        with self.queue.lock():
            free = np.flatnonzero(queue.status == FREE)
            if not free.size or not queue.waiting_writers[writer]:
                return None
            # The first free slot, because only slots that were used take memory here.
            index = int(free[0])
            queue.ticket[index] = ticket
            queue.writer[index] = writer
            queue.next_ticket[0] = max(int(queue.next_ticket[0]), ticket + 1)
            queue.waiting_writers[writer] = 0
            queue.status[index] = GRANTED
        self.queue.wake([self.spec.writers[writer]])
        return index

    def ended(self) -> dict[int, int]:
        """Slots that their writers have finished with, and their status: READY, LEFT or LOST."""
        status = self.queue.status.tobytes()
        return {i: s for i, s in enumerate(status) if s in (READY, LEFT, LOST)}

    def free(self, index: int) -> None:
        """Frees a slot here: the owner has received its fragment, or has the slot back."""
        with self.queue.lock():
            if self.queue.status[index] in (READY, LEFT, LOST):
                self.queue.status[index] = FREE

    def forget(self, index: int) -> None:
        """Frees a slot that a former owner granted, if its writer has finished with it."""
        with self.queue.lock():
            if self.queue.status[index] in (READY, LEFT, LOST):
                self._free_as_lost(np.array([index]))

    def revoke(self, index: int) -> None:
        """Withdraws a grant that is no longer valid, if its writer has not begun. The writer is
        woken, to ask again."""
        queue = self.queue
        with self.queue.lock():
            if queue.status[index] != GRANTED:
                return
            queue.status[index] = FREE
            writer = int(queue.writer[index])
        self.queue.wake([self.spec.writers[writer]])

    def holds_of(self, writer: int) -> bool:
        """Whether a writer still has any slot on this host."""
        return bool(((self.queue.status != FREE) & (self.queue.writer == writer)).any())
