"""Admission: when a writer may begin a fragment, and which batch the fragment is for.

A stream without a bound on policy age does without: a free slot is all that a writer waits for.
`Admission` then only counts batches, by which trainers that learn together agree where they are.

`AgeBoundAdmission` bounds how old data is when it is consumed. The fragment with ticket n is in
batch n // fragments_per_batch, so the version that will consume it is known when it begins. A
single reader takes tickets in the order of their numbers, which makes the bound exact. Tickets of a
reader or writer that died are handed out again, so every batch is made of the same tickets whatever
happens. The ticket of an overdue writer is handed out again, too; its fragment gets a new one at
its commit. Meanwhile a ready fragment takes the place of the missing one. A reader that has fallen
behind the readers of other ranks gives up fragments of a batch that is over.

Callers hold the stream's lock unless a method says that it needs none.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from srl.arena.arena import Arena
from srl.data.memory_layout import Shape
from srl.streams.sample_queue import (
    FREE,
    OUT_OF_TURN,
    TOO_LATE,
    WRITING,
    FragmentInfo,
    SampleQueue,
    queue_bytes,
)

if TYPE_CHECKING:
    from srl.streams.sample import SampleSpec

Blocked = Literal["slots", "policy_age"]
LATE = -1
"""Replaces the ticket of a slot whose writer is overdue; its commit gets another ticket."""
_USUAL_FACTOR = 4.0
"""A writer is overdue after this many times its usual time for a fragment, but never before
`patience_seconds`."""
_FIRST_FACTOR = 10.0
"""A writer without a usual time yet is overdue after this many times `patience_seconds`."""
_MAX_USUAL_CHANGE = 1.25
"""A writer's usual time changes at most by this factor with each fragment: a single slow fragment
says little about the next."""


class Admission:
    """A stream's queue without a bound on policy age."""

    def __init__(self, spec: SampleSpec, arena: Arena) -> None:
        self.spec = spec
        self.queue = SampleQueue(spec, arena, _shapes(spec))
        for name, view in self.queue.beside.items():
            setattr(self, name, view)

    base_version: np.ndarray
    """The version of batch 0; batch n is consumed at version `base_version + n`."""
    first_ticket: np.ndarray
    """The number of tickets before batch 0. It grows by the fragments that dead readers lost, where
    tickets are not taken in order. `restart_version_count` sets it, too."""
    first_unacknowledged: np.ndarray
    """The first ticket that each reader has not acknowledged. In order or not, it grows with each
    acknowledged fragment."""
    restart_request: np.ndarray
    """A request of a trainer here to the owner: how often it has asked, then the version and the
    number of fragments under way for `restart_version_count`."""

    def claim(self, writer: int, newest_version: int) -> int | Blocked:
        """Claims a slot for a writer that has weights of `newest_version`; returns the slot, or why
        there is none."""
        queue = self.queue
        index = queue.claim_granted(writer) if queue.owned_elsewhere[0] else queue.claim(writer)
        return "slots" if index is None else index

    def commit(self, index: int, info: FragmentInfo) -> list[str]:
        """Hands a written slot to the readers; returns the processes to wake."""
        self.queue.count(index, info)
        return self.queue.hand_over(index)

    def free_unwritten(self, indices: np.ndarray) -> None:
        """Frees slots whose fragments will not come."""
        self.queue.free_unwritten(indices)

    def give_back(self, writer: int, *, died: bool) -> int:
        """Gives back the slots that a writer has not committed, and returns the number of fragments
        that were begun in them."""
        if self.queue.owned_elsewhere[0]:
            return self.queue.hand_back(writer, died=died)
        held = self.queue.unwritten(writer)
        self.free_unwritten(held)
        return len(held)

    def take(self, reader: int) -> tuple[int, Sequence[str]]:
        """Takes the next slot for a reader (-1: none is ready). Also returns the processes to
        wake."""
        ready = self.queue.ready(reader)
        if not ready:
            return -1, ()
        self.queue.take(ready[0], reader)
        return ready[0], ()

    def is_due(self) -> bool:
        """Whether a waiting reader must look for a writer that is overdue. Needs no lock."""
        return False

    def lose_taken(self, reader: int, held: np.ndarray) -> int:
        """Gives up what a dead reader took and did not acknowledge; `held` are the slots that it
        had not released. Returns the number of fragments."""
        return len(held) + int(self.queue.taken[reader] - self.queue.consumed[reader])

    # -- versions ----------------------------------------------------------------------------------

    def oldest_version(self, ticket: int) -> int:
        """The oldest policy version that a step of the fragment with this ticket may have."""
        return 0

    def next_batch(self, reader: int) -> int:
        """The number of the batch that a reader acknowledges next. Needs no lock."""
        return int(self.first_unacknowledged[reader]) // self.spec.fragments_per_batch

    def skip_batch(self, reader: int, held: int) -> None:
        """Gives up a reader's next batch, of which it has released `held` fragments."""
        self.queue.taken[reader] -= held
        self.queue.dropped[OUT_OF_TURN] += held
        next_batch = self.next_batch(reader) + 1
        self.first_unacknowledged[reader] = next_batch * self.spec.fragments_per_batch

    def restart_tickets(self, indices: np.ndarray, version: int) -> None:
        """Begins again with tickets, at a version or a later one; the slots keep being written."""
        self.queue.ticket[indices] = np.arange(indices.size)
        self.queue.next_ticket[0] = indices.size
        self.first_ticket[0] = 0
        self.base_version[0] = max(int(self.base_version[0]), version)

    def restart_version_count(self, version: int, under_way: int) -> None:
        """Restarts the version count: after `under_way` more fragments, those that leave the stream
        are for `version`."""
        self.first_ticket[0] = int(self.queue.next_ticket[0]) + under_way
        self.base_version[0] = version


class AgeBoundAdmission(Admission):
    """A stream's queue with a bound on policy age, `spec.max_policy_age`."""

    def __init__(self, spec: SampleSpec, arena: Arena) -> None:
        super().__init__(spec, arena)
        assert spec.max_policy_age is not None
        self._max_age: int = spec.max_policy_age
        self._in_order = len(spec.readers) == 1
        self._next_poll = 0.0

    since: np.ndarray
    """When the slot was claimed, in nanoseconds of this host's clock."""
    usual_seconds: np.ndarray
    """Seconds that a fragment of each writer usually takes; 0 before its first one."""
    next_taken: np.ndarray
    """The ticket that each reader takes next; only where tickets are taken in order."""
    returned: np.ndarray
    """Tickets to be handed out again, because no process writes them: their writer or reader died,
    or their writer is overdue."""
    num_returned: np.ndarray

    # -- writers -----------------------------------------------------------------------------------

    def claim(self, writer: int, newest_version: int) -> int | Blocked:
        """Claims a slot, unless the weights are too old for its ticket."""
        queue = self.queue
        if queue.owned_elsewhere[0]:
            found = queue.find_granted(writer)
            # Without a slot: the owner's next ticket, as this host last heard of it.
            ticket = int(queue.next_ticket[0] if found is None else queue.ticket[found])
            if newest_version < self.oldest_version(ticket):
                return "policy_age"
            index = queue.claim_granted(writer)
        else:
            ticket, num_returned = self._next_ticket()
            if newest_version < self.oldest_version(ticket):
                return "policy_age"
            index = queue.claim(writer, ticket)
            if index is not None:
                self.num_returned[0] = num_returned
        if index is None:
            return "slots"
        self.since[index] = time.monotonic_ns()
        return index

    def _next_ticket(self) -> tuple[int, int]:
        """The ticket to use next, and the number of returned tickets that remain then.

        Returned tickets that are in use are skipped: a writer that died in a claim may have left
        one.
        """
        queue = self.queue
        in_use = queue.ticket[queue.status != FREE]
        for count in range(self.num_returned.item(0), 0, -1):
            if self.returned[count - 1] not in in_use:
                return int(self.returned[count - 1]), count - 1
        return max(queue.next_ticket.item(0), int(in_use.max(initial=-1)) + 1), 0

    def oldest_version(self, ticket: int) -> int:
        """The oldest policy version that a step of the fragment with this ticket may have."""
        batch = (ticket - self.first_ticket.item(0)) // self.spec.fragments_per_batch
        oldest: int = self.base_version.item(0) + batch - self._max_age
        return max(0, oldest)

    def commit(self, index: int, info: FragmentInfo) -> list[str]:
        """Hands a written slot to the readers, or drops a fragment that is too late."""
        queue = self.queue
        queue.count(index, info)
        if not queue.owned_elsewhere[0] and self.spec.patience_seconds:
            self._update_usual(index)
            if queue.ticket.item(index) == LATE and not self._renew_ticket(index):
                queue.drop(index, TOO_LATE)
                return queue.writers_to_wake()
        return queue.hand_over(index)

    def _update_usual(self, index: int) -> None:
        writer = self.queue.writer.item(index)
        seconds = max(1e-3, (time.monotonic_ns() - self.since.item(index)) / 1e9)
        usual = self.usual_seconds.item(writer) or seconds
        least, most = usual / _MAX_USUAL_CHANGE, usual * _MAX_USUAL_CHANGE
        self.usual_seconds[writer] = min(max(seconds, least), most)

    def _renew_ticket(self, index: int) -> bool:
        """Gives the next ticket to the fragment of a writer that was overdue; False if the fragment
        is too old for it."""
        queue = self.queue
        ticket, num_returned = self._next_ticket()
        oldest = self.spec.record.oldest_version(queue.records[index], int(queue.length[index]))
        if oldest is not None and oldest < self.oldest_version(ticket):
            return False
        queue.ticket[index] = ticket
        self.num_returned[0] = num_returned
        queue.next_ticket[0] = max(int(queue.next_ticket[0]), ticket + 1)
        return True

    def free_unwritten(self, indices: np.ndarray) -> None:
        """Frees slots whose fragments will not come, and returns their tickets."""
        self.put_back(self.queue.ticket[indices])
        super().free_unwritten(indices)

    # -- tickets that are handed out again ---------------------------------------------------------

    def put_back(self, tickets: np.ndarray) -> None:
        """Adds tickets to those that are to be handed out again."""
        count = int(self.num_returned[0])
        tickets = np.concatenate([self.returned[:count], tickets[tickets != LATE]])
        # Tickets are handed out from the end, so the oldest ticket comes last.
        known = np.unique(tickets)[: self.returned.size][::-1]
        # Tickets only move towards the end, and the last ones move first. So a process that dies
        # here loses no ticket.
        self.returned[count : known.size] = known[count:]
        self.num_returned[0] = max(count, known.size)
        for position in reversed(range(min(count, known.size))):
            self.returned[position] = known[position]
        self.num_returned[0] = known.size
        next_ticket = self.queue.next_ticket
        next_ticket[0] = max(int(next_ticket[0]), int(known.max(initial=-1)) + 1)

    def _drop_returned_before(self, first: int) -> None:
        """Removes returned tickets before `first`, which no reader waits for any more."""
        tickets = self.returned[: int(self.num_returned[0])].copy()
        kept = tickets[tickets >= first]
        self.returned[: kept.size] = kept
        self.num_returned[0] = kept.size

    def restart_tickets(self, indices: np.ndarray, version: int) -> None:
        """Begins again with tickets; none are to be handed out again."""
        super().restart_tickets(indices, version)
        self.num_returned[0] = 0

    def restart_version_count(self, version: int, under_way: int) -> None:
        """Restarts the version count, at the ticket that leaves the stream next."""
        super().restart_version_count(version, under_way)
        if self._in_order:
            self.first_ticket[0] = int(self.first_unacknowledged.max()) + under_way

    # -- the reader that takes tickets in order ----------------------------------------------------

    def take(self, reader: int) -> tuple[int, Sequence[str]]:
        """Takes the fragment with the next ticket, or one that replaces it. If no process writes
        that ticket any more, or its writer is overdue, the next ready fragment does."""
        if not self._in_order:
            return super().take(reader)
        index, wake = self._next_in_order(self.queue.ready(reader), reader)
        if index >= 0:
            self.queue.take(index, reader)
            self.next_taken[reader] = self.queue.ticket[index] + 1
        return index, wake

    def _next_in_order(self, ready: list[int], reader: int) -> tuple[int, Sequence[str]]:
        queue, wanted = self.queue, self.next_taken.item(reader)
        if ready and queue.ticket.item(ready[0]) == wanted:
            return ready[0], ()
        # Once all writers have left, no fragment with an older ticket can come.
        at_end = bool((queue.open_writers == 2).all())
        if ready and at_end:
            return ready[0], ()
        behind = [index for index in ready if queue.ticket[index] < wanted]
        for index in behind:
            queue.drop(index, OUT_OF_TURN)
        freed = queue.writers_to_wake() if behind else []
        first = ready[len(behind)] if len(behind) < len(ready) else -1
        if first >= 0 and (at_end or queue.ticket[first] == wanted):
            return first, freed
        self._next_poll = time.monotonic() + self.spec.poll_seconds
        passed = self._pass_over(reader)
        if first >= 0 and not self._stand_in(reader, first):
            first = -1
        # Wakes writers that wait for newer weights, too: a returned ticket may accept older ones.
        return first, self.spec.writers if passed or first >= 0 else freed

    def is_due(self) -> bool:
        """Whether a waiting reader must look for a writer that is overdue. Needs no lock."""
        return self.spec.patience_seconds > 0 and time.monotonic() >= self._next_poll

    def _pass_over(self, reader: int) -> bool:
        """Puts back the ticket that a reader waits for, if its writer is overdue; returns whether
        it is.

        The writer keeps its slot: no other process may use it before the writer's death is certain.
        """
        queue = self.queue
        held = (queue.status == WRITING) & (queue.ticket == self.next_taken[reader])
        if not self.spec.patience_seconds or not held.any():
            return False
        index = int(np.flatnonzero(held)[0])
        usual = float(self.usual_seconds[queue.writer[index]])
        patience = max(self.spec.patience_seconds, _USUAL_FACTOR * usual)
        if not usual:
            patience = _FIRST_FACTOR * self.spec.patience_seconds
        if time.monotonic_ns() - int(self.since[index]) <= patience * 1e9:
            return False
        self.put_back(queue.ticket[held])
        queue.ticket[held] = LATE
        return True

    def _stand_in(self, reader: int, index: int) -> bool:
        """Gives a later fragment the ticket that a reader waits for, if no process is writing this
        ticket; returns whether it did.

        In the earlier place the fragment is younger than it must be, so the bound on policy age
        holds. Its own ticket is handed out again.
        """
        ticket = int(self.next_taken[reader])
        if ticket not in self.returned[: int(self.num_returned[0])]:
            return False
        # If the reader dies between these steps, a ticket may be there twice, but none is lost.
        self.put_back(self.queue.ticket[index : index + 1])
        self.queue.ticket[index] = ticket
        self._drop_returned_before(ticket + 1)
        return True

    def lose_taken(self, reader: int, held: np.ndarray) -> int:
        """Puts back the tickets that a dead reader took and did not acknowledge."""
        if not self._in_order:
            lost = super().lose_taken(reader, held)
            self.first_ticket[0] += lost
            return lost
        first, end = int(self.first_unacknowledged[reader]), int(self.next_taken[reader])
        tickets = np.union1d(np.arange(first, end), self.queue.ticket[held])
        self.next_taken[reader] = first
        self.put_back(tickets)
        return len(tickets)

    def skip_batch(self, reader: int, held: int) -> None:
        """Gives up a reader's next batch: fragments of it that are still to come are dropped."""
        super().skip_batch(reader, held)
        if self._in_order:
            first, next_ticket = int(self.first_unacknowledged[reader]), self.queue.next_ticket
            self.next_taken[reader] = max(int(self.next_taken[reader]), first)
            next_ticket[0] = max(int(next_ticket[0]), first)
            self._drop_returned_before(first)


def open_queue(spec: SampleSpec, arena: Arena) -> Admission:
    """A stream's queue, behind the admission that its spec asks for."""
    return (Admission if spec.max_policy_age is None else AgeBoundAdmission)(spec, arena)


def sample_bytes(spec: SampleSpec) -> int:
    """Bytes of a stream's region."""
    return queue_bytes(spec, _shapes(spec))


def _shapes(spec: SampleSpec) -> dict[str, Shape]:
    readers = max(1, len(spec.readers))
    found = {
        "base_version": Shape((1,), "int64"),
        "first_ticket": Shape((1,), "int64"),
        "first_unacknowledged": Shape((readers,), "int64"),
        "restart_request": Shape((3,), "int64"),
    }
    if spec.max_policy_age is None:
        return found
    return {
        **found,
        "since": Shape((spec.slots,), "int64"),
        "usual_seconds": Shape((len(spec.writers),), "float64"),
        "next_taken": Shape((readers,), "int64"),
        # Room for the tickets of slots and of readers: a batch in use and one that fills.
        "returned": Shape((2 * spec.slots + 4 * spec.fragments_per_batch,), "int64"),
        "num_returned": Shape((1,), "int64"),
    }
