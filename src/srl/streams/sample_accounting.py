"""A sample stream as seen from outside: reclaims the slots of dead ends, and reads its accounts."""

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
    """Takes back the slots of a writer whose death is certain, and returns the number of fragments
    that are lost. They are counted as dropped: here, or by the owner if slots are granted."""
    memory = SampleMemory(spec, arena)
    with arena.lock(f"sample/{spec.name}"):
        lost = sample_order.give_back(memory, writer, died=True)
        if not memory.granted[0]:
            memory.dropped[WRITER_DIED] += lost
        memory.open_writers[writer] = 0
    arena.wake(*spec.readers, *spec.writers)
    return lost


def reclaim_reader(spec: SampleSpec, arena: Arena, reader: int) -> int:
    """Frees the slots of a reader whose death is certain, and returns the number of fragments that
    are lost: all that it took and did not acknowledge. They are counted as dropped."""
    memory = SampleMemory(spec, arena)
    with arena.lock(f"sample/{spec.name}"):
        if spec.delivery == "all":
            taken = 1 << (reader + len(spec.readers))
            held = np.flatnonzero((memory.status == READY) & ((memory.pending & taken) != 0))
        else:
            held = np.flatnonzero((memory.status == READY) & (memory.reader == reader))
        for index in held:
            free(memory, spec, int(index), reader)
        # Fragments that it had copied but not acknowledged are lost, too.
        if sample_order.is_ordered(spec):
            lost = sample_order.put_back_taken(memory, reader, memory.ticket[held])
        else:
            lost = len(held) + int(memory.taken[reader] - memory.consumed[reader])
            memory.first_ticket[0] += lost
        memory.taken[reader] = memory.consumed[reader]
        memory.dropped[READER_DIED] += lost
        memory.open_readers[reader] = 0
        memory.waiting_writers[:] = 0
    arena.wake(*spec.writers)
    return lost


def propagate_version(
    spec: SampleSpec, upstream: list[SampleSpec], arena: Arena, version: int
) -> None:
    """Restarts the version count of the streams that lead to this one: fragments that leave them
    next are for `version`.

    This is needed after fragments of this stream were lost, because the upstream streams do not
    know which fragments replace them. Fragments that are being written in this stream are consumed
    first. So afterwards the bound on policy age is too wide by their number, but never so narrow
    that a batch cannot be filled. If another host owns an upstream stream, it is asked to do this.
    """
    written = int((SampleMemory(spec, arena).status == WRITING).sum())
    for other in upstream:
        # Workers in between may write more or fewer fragments than they read.
        under_way = -(-written * other.fragments_per_batch // spec.fragments_per_batch)
        memory = SampleMemory(other, arena)
        if memory.granted[0]:
            memory.anew[1:] = version, under_way
            memory.anew[0] += 1
            arena.wake(*other.readers)
        else:
            count_anew(other, arena, version, under_way)


def count_anew(spec: SampleSpec, arena: Arena, version: int, under_way: int) -> None:
    """Restarts a stream's version count: after `under_way` more fragments, those that leave it are
    for `version`."""
    memory = SampleMemory(spec, arena)
    with arena.lock(f"sample/{spec.name}"):
        ordered = sample_order.is_ordered(spec)
        next_out = memory.open_from.max() if ordered else memory.next_ticket[0]
        memory.first_ticket[0] = int(next_out) + under_way
        memory.base_version[0] = version
    arena.wake(*spec.writers)


class StreamAccount(msgspec.Struct, frozen=True):
    """How many fragments a stream has produced, and what became of them."""

    produced: Count
    consumed: Count
    dropped: dict[str, Count]
    in_flight: Count
    """Committed, and neither consumed nor dropped: in a slot, or held by a reader."""

    @classmethod
    def empty(cls) -> StreamAccount:
        """The account of a stream that carried nothing."""
        return cls(0, 0, dict.fromkeys(DROP_REASONS, 0), 0)


def account(spec: SampleSpec, arena: Arena) -> StreamAccount:
    """The stream's accounts on this host. Unless delivery is `all`: produced = consumed + dropped
    by readers + in flight."""
    memory = SampleMemory(spec, arena)
    with arena.lock(f"sample/{spec.name}"):
        # Readers acknowledge without the lock.
        consumed = int(memory.consumed.sum())
        ready = 0 if memory.granted[0] else int((memory.status == READY).sum())
        return StreamAccount(
            produced=int(memory.produced.sum()),
            consumed=consumed,
            dropped=dict(zip(DROP_REASONS, memory.dropped.tolist(), strict=True)),
            in_flight=ready + int(memory.taken.sum()) - consumed,
        )


def read_account(memory: SampleMemory) -> StreamAccount:
    """The stream's accounts, read without the lock, because its holder may be stopped. Fragments
    that are neither consumed nor dropped count as in flight."""
    # `produced` is read last, so it includes every fragment that was consumed or dropped.
    consumed = int(memory.consumed.sum())
    dropped = dict(zip(DROP_REASONS, memory.dropped.tolist(), strict=True))
    produced = int(memory.produced.sum())
    gone = sum(dropped.values()) - dropped[DROP_REASONS[WRITER_DIED]]
    return StreamAccount(produced, consumed, dropped, max(0, produced - consumed - gone))


def close_account(accounts: StreamAccount) -> StreamAccount:
    """The accounts of a host that is gone: its fragments in flight count as dropped."""
    reason = DROP_REASONS[HOST_LOST]
    dropped = {**accounts.dropped, reason: accounts.dropped.get(reason, 0) + accounts.in_flight}
    return StreamAccount(accounts.produced, accounts.consumed, dropped, 0)


def sum_accounts(accounts: Iterable[StreamAccount]) -> StreamAccount:
    """The sum of the accounts of several hosts."""
    every = list(accounts)
    return StreamAccount(
        produced=sum(one.produced for one in every),
        consumed=sum(one.consumed for one in every),
        dropped={
            reason: sum(one.dropped.get(reason, 0) for one in every) for reason in DROP_REASONS
        },
        in_flight=sum(one.in_flight for one in every),
    )
