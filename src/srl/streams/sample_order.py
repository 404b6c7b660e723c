"""A reader that takes tickets in turn, and what becomes of those that are lost or late.

Where policy age is bounded, a stream's reader takes tickets in the order of their numbers. Those of
a reader or writer that died are handed out again, so every batch is made of the same tickets
whatever happens; so is that of a writer that is overdue, which gets another one when it comes. What
is ready meanwhile stands in for them. A reader that has fallen behind those of other streams gives
up what belongs to a batch that is over.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from srl.streams import sample_claims
from srl.streams.sample_memory import FREE, LATE, OUT_OF_TURN, WRITING, SampleMemory

if TYPE_CHECKING:
    from srl.streams.sample import SampleSpec

USUAL_TIMES = 4.0
"""A writer is overdue after so many times what a fragment of its own usually takes, but not before
the stream's patience is over ..."""
FIRST_TIMES = 10.0
"""... and with its first one, of which nothing is known, after so many times that patience."""


def is_ordered(spec: SampleSpec) -> bool:
    """Whether the reader takes tickets in the order of their numbers."""
    return spec.max_policy_age is not None and len(spec.readers) == 1


def put_back(memory: SampleMemory, tickets: np.ndarray) -> None:
    """Notes tickets that are to be handed out again; under the lock."""
    count = int(memory.num_returned[0])
    tickets = np.concatenate([memory.returned[:count], tickets[tickets != LATE]])
    # In the order in which they are handed out again: the oldest ticket last.
    known = np.unique(tickets)[: memory.returned.size][::-1]
    # Each moves towards the end, and what is there has moved before: whoever dies here loses none.
    memory.returned[count : known.size] = known[count:]
    memory.num_returned[0] = max(count, known.size)
    for place in reversed(range(min(count, known.size))):
        memory.returned[place] = known[place]
    memory.num_returned[0] = known.size
    memory.next_ticket[0] = max(int(memory.next_ticket[0]), int(known.max(initial=-1)) + 1)


def give_back(memory: SampleMemory, writer: int, *, died: bool) -> int:
    """Gives back the slots that a writer has not committed, and returns how many; under the
    lock."""
    if memory.granted[0]:
        return sample_claims.hand_back(memory, writer, died=died)
    held = np.flatnonzero((memory.status == WRITING) & (memory.writer == writer))
    free_unwritten(memory, held)
    return len(held)


def free_unwritten(memory: SampleMemory, held: np.ndarray) -> None:
    """Frees slots whose fragments will not come; under the lock."""
    for index in held.tolist():
        sample_claims.undo_commit(memory, index)
    put_back(memory, memory.ticket[held])
    memory.status[held] = FREE
    memory.waiting_writers[:] = 0


def put_back_taken(memory: SampleMemory, reader: int, held: np.ndarray) -> int:
    """Notes the tickets that a dead reader took (`held` ones just now) and never acknowledged, and
    returns how many; under the lock."""
    first, end = int(memory.open_from[reader]), int(memory.next_taken[reader])
    tickets = np.union1d(np.arange(first, end), held)
    memory.next_taken[reader] = first
    put_back(memory, tickets)
    return len(tickets)


def skip_to(memory: SampleMemory, reader: int, first: int) -> None:
    """Lets a reader go on at a ticket, if it is not there yet; under the lock."""
    memory.next_taken[reader] = max(int(memory.next_taken[reader]), first)
    memory.next_ticket[0] = max(int(memory.next_ticket[0]), first)
    _keep_returned_from(memory, first)


def give_up(memory: SampleMemory, index: int) -> None:
    """Frees a slot whose item comes too late for its batch; under the lock."""
    memory.dropped[OUT_OF_TURN] += 1
    memory.status[index] = FREE


def pass_over(memory: SampleMemory, spec: SampleSpec, reader: int) -> bool:
    """Puts back the ticket that a reader waits for, if its writer is overdue; under the lock.

    The writer keeps its slot, which is nobody else's before its death is certain.
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
    """Whether a slot has been written for far longer than its writer usually takes."""
    usual = float(memory.usual[memory.writer[index]])
    patience = max(spec.patience_seconds, USUAL_TIMES * usual)
    if not usual:
        patience = FIRST_TIMES * spec.patience_seconds
    return time.monotonic_ns() - int(memory.since[index]) > patience * 1e9


def stand_in(memory: SampleMemory, reader: int, index: int) -> bool:
    """Lets a later item have the ticket that a reader waits for, if nobody is writing that one;
    under the lock.

    It is only younger there than it might be, and its own ticket is handed out again.
    """
    ticket = int(memory.next_taken[reader])
    if ticket not in memory.returned[: int(memory.num_returned[0])]:
        return False
    # In this order a ticket may be there twice if the reader dies meanwhile, but it is never lost.
    put_back(memory, memory.ticket[index : index + 1])
    memory.ticket[index] = ticket
    _keep_returned_from(memory, ticket + 1)
    return True


def _keep_returned_from(memory: SampleMemory, first: int) -> None:
    """Forgets tickets to be handed out that no reader waits for any more."""
    tickets = memory.returned[: int(memory.num_returned[0])].copy()
    kept = tickets[tickets >= first]
    memory.returned[: kept.size] = kept
    memory.num_returned[0] = kept.size
