"""How writers of a sample stream claim and commit slots: the code behind `SampleSink`. Callers hold
the stream's lock."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Literal

import numpy as np

from srl.streams.sample_memory import (
    FREE,
    GRANTED,
    LATE,
    LEFT,
    LOST,
    READY,
    TOO_LATE,
    WRITING,
    FragmentInfo,
    SampleMemory,
)

if TYPE_CHECKING:
    from srl.streams.sample import SampleSpec

Blocked = Literal["slots", "policy_age"]
_MAX_USUAL_CHANGE = 1.25
"""A writer's usual time changes at most by this factor with each fragment: a single slow fragment
says little about the next."""


def claim_free(
    memory: SampleMemory, spec: SampleSpec, writer: int, newest_version: int
) -> int | Blocked:
    """Claims a free slot with the next ticket; returns the slot, or why there is none."""
    ticket, num_returned = next_ticket(memory)
    if newest_version < oldest_version(memory, spec, ticket):
        return "policy_age"
    free = np.flatnonzero(memory.status == FREE)
    if not free.size:
        memory.waiting_writers[writer] = 1
        return "slots"
    index = int(free[0])
    memory.ticket[index] = ticket
    memory.writer[index] = writer
    # A process that died at the very end of a commit may have left this number.
    memory.committing[writer] = 0
    # From here on the slot shows that the ticket is in use, even if this process dies.
    memory.status[index] = WRITING
    memory.num_returned[0] = num_returned
    memory.next_ticket[0] = max(int(memory.next_ticket[0]), ticket + 1)
    if spec.patience_seconds:
        memory.since[index] = time.monotonic_ns()
    return index


def claim_granted(
    memory: SampleMemory, spec: SampleSpec, writer: int, newest_version: int
) -> int | Blocked:
    """Claims the oldest slot that the stream's owner granted to this writer; returns the slot, or
    why there is none."""
    granted = np.flatnonzero((memory.status == GRANTED) & (memory.writer == writer))
    if not granted.size:
        memory.waiting_writers[writer] = 1
        # The owner's next ticket, as this host last heard of it.
        oldest = oldest_version(memory, spec, int(memory.next_ticket[0]))
        return "policy_age" if newest_version < oldest else "slots"
    index = int(granted[np.argmin(memory.ticket[granted])])
    if newest_version < oldest_version(memory, spec, int(memory.ticket[index])):
        return "policy_age"
    memory.status[index] = WRITING
    if spec.patience_seconds:
        memory.since[index] = time.monotonic_ns()
    return index


def next_ticket(memory: SampleMemory) -> tuple[int, int]:
    """The ticket to use next, and the number of returned tickets that remain then.

    Returned tickets that are in use are skipped: a writer that died in a claim may have left one.
    """
    in_use = memory.ticket[memory.status != FREE]
    for count in range(int(memory.num_returned[0]), 0, -1):
        if memory.returned[count - 1] not in in_use:
            return int(memory.returned[count - 1]), count - 1
    return max(int(memory.next_ticket[0]), int(in_use.max(initial=-1)) + 1), 0


def oldest_version(memory: SampleMemory, spec: SampleSpec, ticket: int) -> int:
    """The oldest policy version that a step of the fragment with this ticket may have."""
    if spec.max_policy_age is None:
        return 0
    batch = (ticket - int(memory.first_ticket[0])) // spec.fragments_per_batch
    return max(0, int(memory.base_version[0]) + batch - spec.max_policy_age)


def commit(memory: SampleMemory, spec: SampleSpec, index: int, info: FragmentInfo) -> list[str]:
    """Hands a written slot to the readers; returns the processes to wake."""
    memory.set_info(index, info)
    memory.reader[index] = -1
    memory.pending[index] = (1 << len(spec.readers)) - 1
    writer = memory.writer.item(index)
    if not memory.granted[0]:
        # A fragment in a granted slot is counted by the owner, once it arrives there.
        memory.produced_before[writer] = memory.produced[writer]
        memory.committing[writer] = index + 1
        memory.produced[writer] += 1
        if spec.patience_seconds:
            _update_usual(memory, index)
            if memory.ticket.item(index) == LATE and not _renew_ticket(memory, spec, index):
                memory.dropped[TOO_LATE] += 1
                memory.status[index] = FREE
                memory.committing[writer] = 0
                return [spec.writers[writer] for writer in waiting_writers(memory)]
    memory.status[index] = READY
    memory.committing[writer] = 0
    waiting = np.flatnonzero(memory.waiting_readers != 0)
    memory.waiting_readers[waiting] = 0
    return [spec.readers[reader] for reader in waiting]


def uncount_commit(memory: SampleMemory, index: int) -> None:
    """Uncounts a slot's fragment if a commit counted it but never marked the slot as ready."""
    writer = memory.writer.item(index)
    if memory.committing[writer] == index + 1:
        memory.produced[writer] = memory.produced_before[writer]
        memory.committing[writer] = 0


def waiting_writers(memory: SampleMemory) -> list[int]:
    """Writers to wake, because there is a free slot now; clears their marks."""
    waiting = np.flatnonzero(memory.waiting_writers != 0)
    memory.waiting_writers[waiting] = 0
    return list(waiting.tolist())


def _update_usual(memory: SampleMemory, index: int) -> None:
    writer = memory.writer.item(index)
    seconds = max(1e-3, (time.monotonic_ns() - memory.since.item(index)) / 1e9)
    usual = memory.usual.item(writer) or seconds
    memory.usual[writer] = min(max(seconds, usual / _MAX_USUAL_CHANGE), usual * _MAX_USUAL_CHANGE)


def _renew_ticket(memory: SampleMemory, spec: SampleSpec, index: int) -> bool:
    """Gives the next ticket to the fragment of a writer that was overdue; False if the fragment is
    too old for it."""
    ticket, num_returned = next_ticket(memory)
    oldest = spec.record.oldest_version(memory.records[index], int(memory.length[index]))
    if oldest is not None and oldest < oldest_version(memory, spec, ticket):
        return False
    memory.ticket[index] = ticket
    memory.num_returned[0] = num_returned
    memory.next_ticket[0] = max(int(memory.next_ticket[0]), ticket + 1)
    return True


def hand_back(memory: SampleMemory, writer: int, *, died: bool) -> int:
    """Marks the granted slots that a writer has not committed, so that the bridge returns them to
    the owner. Returns the number of fragments that were begun in them."""
    mine = memory.writer == writer
    begun = np.flatnonzero((memory.status == WRITING) & mine)
    memory.status[begun] = LOST if died else LEFT
    memory.status[(memory.status == GRANTED) & mine] = LEFT
    memory.waiting_writers[writer] = 0
    return len(begun)
