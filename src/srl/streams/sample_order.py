"""A reader that takes tickets in turn, and what becomes of those that are lost.

Where policy age is bounded, a stream's reader takes tickets in the order of their numbers. Those of
a reader that died are handed out again, so every batch is made of the same tickets whatever
happens; and a reader that has fallen behind those of other streams gives up what belongs to a batch
that is over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from srl.streams import sample_claims
from srl.streams.sample_memory import FREE, OUT_OF_TURN, READY, WRITING, SampleMemory

if TYPE_CHECKING:
    from srl.streams.sample import SampleSpec


def is_ordered(spec: SampleSpec) -> bool:
    """Whether the reader takes tickets in the order of their numbers."""
    return spec.max_policy_age is not None and len(spec.readers) == 1


def put_back(memory: SampleMemory, tickets: np.ndarray) -> None:
    """Notes tickets that are to be handed out again; under the lock."""
    count = int(memory.num_returned[0])
    known = np.unique(np.concatenate([memory.returned[:count], tickets]))[: memory.returned.size]
    # In the order in which they are handed out again: the oldest ticket last.
    memory.returned[: known.size] = known[::-1]
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
    tickets = memory.returned[: int(memory.num_returned[0])].copy()
    kept = tickets[tickets >= first]
    memory.returned[: kept.size] = kept
    memory.num_returned[0] = kept.size


def give_up(memory: SampleMemory, index: int) -> None:
    """Frees a slot whose item comes too late for its batch; under the lock."""
    memory.dropped[OUT_OF_TURN] += 1
    memory.status[index] = FREE


def make_room(memory: SampleMemory, reader: int) -> bool:
    """Frees a slot for the ticket that a reader waits for, if that has none to be written into.

    It was handed out before and lost with a reader; meanwhile later ones took every slot. The
    latest of those makes room, and its ticket is handed out again in its turn. Under the lock.
    """
    if FREE in memory.status.tobytes():
        return False
    if memory.next_taken[reader] not in memory.returned[: int(memory.num_returned[0])]:
        return False
    waiting = np.flatnonzero((memory.status == READY) & (memory.reader == -1))
    if not waiting.size:
        return False
    index = int(waiting[np.argmax(memory.ticket[waiting])])
    put_back(memory, memory.ticket[index : index + 1])
    give_up(memory, index)
    return True
