"""A sample stream from outside: what its dead ends held is taken back, and its books are read."""

from __future__ import annotations

import msgspec
import numpy as np

from srl.arena.arena import Arena
from srl.streams import sample_order
from srl.streams.sample import SampleSpec, free
from srl.streams.sample_memory import (
    DROP_REASONS,
    READER_DIED,
    READY,
    WRITER_DIED,
    WRITING,
    SampleMemory,
)


def reclaim_writer(spec: SampleSpec, arena: Arena, writer: int) -> int:
    """Takes back the slots of a writer whose death is certain; its unfinished fragments are lost,
    and counted (where slots are granted, by their owner)."""
    memory = SampleMemory(spec, arena)
    with arena.lock(f"sample/{spec.name}"):
        lost = sample_order.give_back(memory, writer, died=True)
        memory.dropped[WRITER_DIED] += lost
        memory.open_writers[writer] = 0
    arena.ring(*spec.readers, *spec.writers)
    return lost


def reclaim_reader(spec: SampleSpec, arena: Arena, reader: int) -> int:
    """Frees the slots of a reader whose death is certain; what it had not released is dropped, and
    counted."""
    memory = SampleMemory(spec, arena)
    with arena.lock(f"sample/{spec.name}"):
        if spec.delivery == "all":
            taken = 1 << (reader + len(spec.readers))
            held = np.flatnonzero((memory.status == READY) & ((memory.pending & taken) != 0))
        else:
            held = np.flatnonzero((memory.status == READY) & (memory.reader == reader))
        for index in held:
            free(memory, spec, int(index), reader)
        # What it had copied out and not finished with died with it.
        if sample_order.is_ordered(spec):
            lost = sample_order.put_back_taken(memory, spec, reader, memory.ticket[held])
        else:
            lost = len(held) + int(memory.taken[reader] - memory.consumed[reader])
            memory.num_lost[0] += lost
        memory.taken[reader] = memory.consumed[reader]
        memory.dropped[READER_DIED] += lost
        memory.open_readers[reader] = 0
        memory.waiting_writers[:] = 0
    arena.ring(*spec.writers)
    return lost


def tell_upstream(spec: SampleSpec, upstream: list[SampleSpec], arena: Arena, version: int) -> None:
    """Lets streams that lead to this one count anew: what leaves them next is for `version`.

    Fragments of this stream were lost, and which ones those that come will replace cannot be said
    up there. What is still under way here is consumed first, so the bound on policy age is too wide
    by that much afterwards; it is never so narrow that a batch could not be filled.
    """
    under_way = int((SampleMemory(spec, arena).status == WRITING).sum())
    for other in upstream:
        above = SampleMemory(other, arena)
        with arena.lock(f"sample/{other.name}"):
            ordered = sample_order.is_ordered(other)
            next_out = above.open_from.max() if ordered else above.next_ticket[0]
            above.num_lost[0] = int(next_out) + under_way
            above.base_version[0] = version
        arena.ring(*other.writers)


class Ledger(msgspec.Struct, frozen=True):
    """Where every item of a stream went."""

    produced: int
    consumed: int
    dropped: dict[str, int]
    in_flight: int
    """Committed, and neither consumed nor dropped: in a slot, or in a reader's hands."""


def ledger(spec: SampleSpec, arena: Arena) -> Ledger:
    """The stream's books: unless delivered to `all`, produced = consumed + dropped by readers + in
    flight."""
    memory = SampleMemory(spec, arena)
    with arena.lock(f"sample/{spec.name}"):
        return Ledger(
            produced=int(memory.produced.sum()),
            consumed=int(memory.consumed.sum()),
            dropped=dict(zip(DROP_REASONS, memory.dropped.tolist(), strict=True)),
            in_flight=int((memory.status == READY).sum() + (memory.taken - memory.consumed).sum()),
        )
