"""The accounts of sample streams: where their fragments went, on one host or on all."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from srl.arena.arena import Arena
from srl.data.counts import Count
from srl.streams.admission import open_queue
from srl.streams.sample import SampleSpec
from srl.streams.sample_queue import DROP_REASONS, HOST_LOST, READY, WRITER_DIED, SampleQueue


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
    queue = open_queue(spec, arena).queue
    with queue.lock():
        # Readers acknowledge without the lock.
        consumed = int(queue.consumed.sum())
        ready = 0 if queue.owned_elsewhere[0] else int((queue.status == READY).sum())
        return StreamAccount(
            produced=int(queue.produced.sum()),
            consumed=consumed,
            dropped=dict(zip(DROP_REASONS, queue.dropped.tolist(), strict=True)),
            in_flight=ready + int(queue.taken.sum()) - consumed,
        )


def read_account(queue: SampleQueue) -> StreamAccount:
    """The stream's accounts, read without the lock, because its holder may be stopped. Fragments
    that are neither consumed nor dropped count as in flight."""
    # `produced` is read last, so it includes every fragment that was consumed or dropped.
    consumed = int(queue.consumed.sum())
    dropped = dict(zip(DROP_REASONS, queue.dropped.tolist(), strict=True))
    produced = int(queue.produced.sum())
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
