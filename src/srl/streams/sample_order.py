"""The order in which a reader takes tickets, and the handling of lost and overdue tickets.

Where policy age is bounded, a stream's reader takes tickets in the order of their numbers. Tickets
of a reader or writer that died are handed out again, so every batch is made of the same tickets
whatever happens. The ticket of an overdue writer is handed out again, too; its fragment gets a new
one at its commit. Meanwhile a ready fragment takes the place of the missing one. A reader that has
fallen behind the readers of other ranks gives up fragments of a batch that is over.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from srl.streams import sample_claims
from srl.streams.sample_memory import FREE, LATE, OUT_OF_TURN, WRITING, SampleMemory

if TYPE_CHECKING:
    from srl.streams.sample import SampleSpec

_USUAL_FACTOR = 4.0
"""A writer is overdue after this many times its usual time for a fragment, but never before
`patience_seconds`."""
_FIRST_FACTOR = 10.0
"""A writer without a usual time yet is overdue after this many times `patience_seconds`."""


def is_ordered(spec: SampleSpec) -> bool:
    """Whether the reader takes tickets in the order of their numbers."""
    return spec.max_policy_age is not None and len(spec.readers) == 1


def put_back(memory: SampleMemory, tickets: np.ndarray) -> None:
    """Adds tickets to those that are to be handed out again. The caller holds the lock."""
    count = int(memory.num_returned[0])
    tickets = np.concatenate([memory.returned[:count], tickets[tickets != LATE]])
    # Tickets are handed out from the end, so the oldest ticket comes last.
    known = np.unique(tickets)[: memory.returned.size][::-1]
    # Tickets only move towards the end, and the last ones move first. So a process that dies here
    # loses no ticket.
    memory.returned[count : known.size] = known[count:]
    memory.num_returned[0] = max(count, known.size)
    for position in reversed(range(min(count, known.size))):
        memory.returned[position] = known[position]
    memory.num_returned[0] = known.size
    memory.next_ticket[0] = max(int(memory.next_ticket[0]), int(known.max(initial=-1)) + 1)


def give_back(memory: SampleMemory, writer: int, *, died: bool) -> int:
    """Gives back the slots that a writer has not committed, and returns the number of fragments
    that were begun in them. The caller holds the lock."""
    if memory.granted[0]:
        return sample_claims.hand_back(memory, writer, died=died)
    held = np.flatnonzero((memory.status == WRITING) & (memory.writer == writer))
    free_unwritten(memory, held)
    return len(held)


def free_unwritten(memory: SampleMemory, held: np.ndarray) -> None:
    """Frees slots whose fragments will not come, and returns their tickets. The caller holds the
    lock and wakes the writers."""
    for index in held.tolist():
        sample_claims.uncount_commit(memory, index)
    put_back(memory, memory.ticket[held])
    memory.status[held] = FREE
    memory.waiting_writers[:] = 0


def put_back_taken(memory: SampleMemory, reader: int, held: np.ndarray) -> int:
    """Puts back the tickets that a dead reader took and did not acknowledge, and returns their
    number. `held` are those whose slots it had not released. The caller holds the lock."""
    first, end = int(memory.open_from[reader]), int(memory.next_taken[reader])
    tickets = np.union1d(np.arange(first, end), held)
    memory.next_taken[reader] = first
    put_back(memory, tickets)
    return len(tickets)


def skip_to(memory: SampleMemory, reader: int, first: int) -> None:
    """Moves a reader forward to ticket `first`, unless it is past it. The caller holds the lock."""
    memory.next_taken[reader] = max(int(memory.next_taken[reader]), first)
    memory.next_ticket[0] = max(int(memory.next_ticket[0]), first)
    _drop_returned_before(memory, first)


def give_up(memory: SampleMemory, index: int) -> None:
    """Frees a slot whose fragment comes too late for its batch. The caller holds the lock."""
    memory.dropped[OUT_OF_TURN] += 1
    memory.status[index] = FREE


def pass_over(memory: SampleMemory, spec: SampleSpec, reader: int) -> bool:
    """Puts back the ticket that a reader waits for, if its writer is overdue; returns whether it
    is. The caller holds the lock.

    The writer keeps its slot: no other process may use it before the writer's death is certain.
    """
    if not spec.patience_seconds:
        return False
    held = np.flatnonzero((memory.status == WRITING) & (memory.ticket == memory.next_taken[reader]))
    if not held.size or not is_overdue(memory, spec, int(held[0])):
        return False
    put_back(memory, memory.ticket[held])
    memory.ticket[held] = LATE
    return True


def is_overdue(memory: SampleMemory, spec: SampleSpec, index: int) -> bool:
    """Whether a slot's fragment takes far longer than its writer usually needs."""
    usual = float(memory.usual[memory.writer[index]])
    patience = max(spec.patience_seconds, _USUAL_FACTOR * usual)
    if not usual:
        patience = _FIRST_FACTOR * spec.patience_seconds
    return time.monotonic_ns() - int(memory.since[index]) > patience * 1e9


def stand_in(memory: SampleMemory, reader: int, index: int) -> bool:
    """Gives a later fragment the ticket that a reader waits for, if no process is writing this
    ticket; returns whether it did. The caller holds the lock.

    In the earlier place the fragment is younger than it must be, so the bound on policy age holds.
    Its own ticket is handed out again.
    """
    ticket = int(memory.next_taken[reader])
    if ticket not in memory.returned[: int(memory.num_returned[0])]:
        return False
    # If the reader dies between these steps, a ticket may be there twice, but none is lost.
    put_back(memory, memory.ticket[index : index + 1])
    memory.ticket[index] = ticket
    _drop_returned_before(memory, ticket + 1)
    return True


def _drop_returned_before(memory: SampleMemory, first: int) -> None:
    """Removes returned tickets before `first`, which no reader waits for any more."""
    tickets = memory.returned[: int(memory.num_returned[0])].copy()
    kept = tickets[tickets >= first]
    memory.returned[: kept.size] = kept
    memory.num_returned[0] = kept.size
