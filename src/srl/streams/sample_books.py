"""A sample stream from outside: what its dead ends held is taken back, and its books are read."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np

from srl.arena.arena import Arena
from srl.data.counts import Count
from srl.streams import sample_order
from srl.streams.sample import SampleSpec, free
from srl.streams.sample_memory import (
    DROP_REASONS,
    HOST_LOST,
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
        if not memory.granted[0]:
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
            lost = sample_order.put_back_taken(memory, reader, memory.ticket[held])
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
    by that much afterwards; it is never so narrow that a batch could not be filled. Where another
    host owns such a stream, it is asked to.
    """
    under_way = int((SampleMemory(spec, arena).status == WRITING).sum())
    for other in upstream:
        above = SampleMemory(other, arena)
        if above.granted[0]:
            above.anew[1:] = version, under_way
            above.anew[0] += 1
            arena.ring(*other.readers)
        else:
            count_anew(other, arena, version, under_way)


def count_anew(spec: SampleSpec, arena: Arena, version: int, under_way: int) -> None:
    """Lets a stream count on from here: what leaves it after `under_way` more is for `version`."""
    memory = SampleMemory(spec, arena)
    with arena.lock(f"sample/{spec.name}"):
        ordered = sample_order.is_ordered(spec)
        next_out = memory.open_from.max() if ordered else memory.next_ticket[0]
        memory.num_lost[0] = int(next_out) + under_way
        memory.base_version[0] = version
    arena.ring(*spec.writers)


class Ledger(msgspec.Struct, frozen=True):
    """Where every item of a stream went."""

    produced: Count
    consumed: Count
    dropped: dict[str, Count]
    in_flight: Count
    """Committed, and neither consumed nor dropped: in a slot, or in a reader's hands."""

    @classmethod
    def empty(cls) -> Ledger:
        """Of a stream that carried nothing."""
        return cls(0, 0, dict.fromkeys(DROP_REASONS, 0), 0)


def ledger(spec: SampleSpec, arena: Arena) -> Ledger:
    """The stream's books: unless delivered to `all`, produced = consumed + dropped by readers + in
    flight."""
    memory = SampleMemory(spec, arena)
    with arena.lock(f"sample/{spec.name}"):
        # Readers acknowledge without the lock.
        consumed = int(memory.consumed.sum())
        ready = 0 if memory.granted[0] else int((memory.status == READY).sum())
        return Ledger(
            produced=int(memory.produced.sum()),
            consumed=consumed,
            dropped=dict(zip(DROP_REASONS, memory.dropped.tolist(), strict=True)),
            in_flight=ready + int(memory.taken.sum()) - consumed,
        )


def glance(memory: SampleMemory) -> Ledger:
    """The stream's books without its lock, whose holder may be stopped: what is neither consumed
    nor dropped is in flight."""
    # In this order: what was consumed or dropped had been produced before.
    consumed = int(memory.consumed.sum())
    dropped = dict(zip(DROP_REASONS, memory.dropped.tolist(), strict=True))
    produced = int(memory.produced.sum())
    gone = sum(dropped.values()) - dropped[DROP_REASONS[WRITER_DIED]]
    return Ledger(produced, consumed, dropped, max(0, produced - consumed - gone))


def settled(books: Ledger) -> Ledger:
    """The books of a host that is gone: what was in flight there is lost."""
    reason = DROP_REASONS[HOST_LOST]
    dropped = {**books.dropped, reason: books.dropped.get(reason, 0) + books.in_flight}
    return Ledger(books.produced, books.consumed, dropped, 0)


def together(books: Iterable[Ledger]) -> Ledger:
    """The books of several hosts as one."""
    every = list(books)
    return Ledger(
        produced=sum(one.produced for one in every),
        consumed=sum(one.consumed for one in every),
        dropped={
            reason: sum(one.dropped.get(reason, 0) for one in every) for reason in DROP_REASONS
        },
        in_flight=sum(one.in_flight for one in every),
    )
