"""The sample stream: one way, bounded, from writers (actors) to readers (trainers, buffers).

A writer claims a slot, fills it tick by tick, and commits it; a reader takes it, reads it in place,
and releases it. A step is written once, into memory that the reader reads. Slots change hands by
number, under a lock that the kernel frees when its holder dies.

Waiting: no operation blocks. `claim` returns None when every slot is in use (back-pressure) or when
newer weights must come first (policy age); `take` returns None when nothing is ready. Whoever got
None is rung when that changes. Nothing is dropped unless its holder died, or came too late for the
bound on policy age; every item that was produced is consumed, dropped with a reason, or in a slot.
Closing: readers drain what is ready and then see `closed`; writers of a stream without readers see
`closed`.

Where the readers are on another host, slots are granted by it one by one (`streams/lending.py`).

Delivery: `any` gives each item to one reader, `all` gives it to every reader, `key` to the reader
that its writer's number selects.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np

from srl.arena.arena import Arena
from srl.data.layout import mark_unwritten
from srl.data.records import Trajectory
from srl.data.trajectory import TrajectorySpec, to_tree
from srl.errors import ConfigError, StreamError
from srl.streams import sample_claims, sample_order
from srl.streams.sample_memory import FREE, OUT_OF_TURN, READY, WRITING, SampleMemory


class SampleSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What the stream carries, between whom, and how far ahead writers may run."""

    name: str
    trajectory: TrajectorySpec
    slots: int
    writers: tuple[str, ...]
    """The process of each writer."""
    readers: tuple[str, ...]
    """The process of each reader."""
    delivery: Literal["any", "all", "key"] = "any"
    items_per_batch: int = 1
    """Fragments of this stream that one learner step consumes."""
    max_policy_age: int | None = None
    """Versions that a fragment's oldest step may lag when it is consumed; None does
    not bound it."""
    base_version: int = 0
    """The version at which the first batch will be consumed (a resumed run's is not 0)."""
    patience_seconds: float = 0.0
    """How long at least a reader that takes items in turn waits for a writer that takes far longer
    than it usually does; 0 waits until its death is certain."""

    def __post_init__(self) -> None:
        if self.delivery == "all" and len(self.readers) > 31:
            raise ConfigError(
                f"delivery 'all': expected at most 31 readers, got {len(self.readers)}."
            )


class Slot:
    """A claimed slot: fill `trajectory`, then `commit`."""

    __slots__ = ("_sink", "index", "oldest_version", "trajectory")

    def __init__(self, sink: SampleSink, index: int, oldest_version: int) -> None:
        self._sink = sink
        self.index = index
        self.trajectory: Trajectory = sink._memory.items[index]
        self.oldest_version = oldest_version
        """A step of an older policy version than this would be too old when it is consumed."""

    def commit(self, length: int, num_env_steps: int) -> None:
        """Hands the slot to the readers; it must not be touched afterwards."""
        self._sink._commit(self.index, length, num_env_steps)


class SampleSink:
    """A writer's end: `claim` a slot to write into."""

    def __init__(self, spec: SampleSpec, arena: Arena, writer: int) -> None:
        self.spec = spec
        self._arena = arena
        self._writer = writer
        self._memory = SampleMemory(spec, arena)
        self._lock_name = f"sample/{spec.name}"
        self._memory.open_writers[writer] = 1
        self.waits_for = "slots"
        """Why the last claim got nothing: "slots" or "policy_age"."""

    @property
    def closed(self) -> bool:
        """Readers have come, and all of them have left."""
        return bool((self._memory.open_readers == 2).all()) and bool(self.spec.readers)

    def claim(self, newest_version: int) -> Slot | None:
        """A free slot, or None if there is none or if `newest_version` (the newest weights) is
        still too old."""
        memory, granted = self._memory, bool(self._memory.granted[0])
        claim = sample_claims.claim_granted if granted else sample_claims.claim_free
        with self._arena.lock(self._lock_name):
            asked = memory.waiting_writers[self._writer]
            index = claim(memory, self.spec, self._writer, newest_version)
        if isinstance(index, str):
            self.waits_for = index
            if granted and not asked:
                # The readers' host is to grant one.
                self._arena.ring(*self.spec.readers)
            return None
        slot = Slot(self, index, self._oldest_version(index))
        # Until it is written it says so: actions of no policy, whatever the slot held before.
        slot.trajectory.acted.fill(True)
        slot.trajectory.policy_version.fill(-1)
        return slot

    def reopen(self, index: int) -> Slot:
        """The slot that this writer was writing when the stream's memory was saved."""
        memory = self._memory
        if memory.status[index] != WRITING or memory.writer[index] != self._writer:
            raise StreamError(f"stream {self.spec.name!r}: slot {index} is not being written here.")
        return Slot(self, index, self._oldest_version(index))

    def _oldest_version(self, index: int) -> int:
        ticket = int(self._memory.ticket[index])
        return sample_claims.oldest_version(self._memory, self.spec, ticket)

    def _commit(self, index: int, length: int, num_env_steps: int) -> None:
        memory = self._memory
        with self._arena.lock(self._lock_name):
            waiting = sample_claims.commit(memory, self.spec, index, length, num_env_steps)
        self._arena.ring(*(self.spec.readers if memory.granted[0] else waiting))

    def close(self) -> None:
        """Leaves: readers drain what is there and then see the stream closed. A slot that is still
        being written goes back unread."""
        with self._arena.lock(self._lock_name):
            sample_order.give_back(self._memory, self._writer, died=False)
            self._memory.open_writers[self._writer] = 2
        self._arena.ring(*self.spec.readers, *self.spec.writers)


class Item:
    """A taken item: read `trajectory` in place, then `release`."""

    __slots__ = ("_source", "env_steps", "index", "item_id", "length", "trajectory", "writer")

    def __init__(self, source: SampleSource, index: int) -> None:
        memory = source._memory
        self._source = source
        self.index = index
        self.item_id = int(memory.ticket[index])
        self.writer = int(memory.writer[index])
        self.length = int(memory.length[index])
        self.env_steps = int(memory.env_steps[index])
        self.trajectory: Trajectory = memory.items[index]

    def release(self) -> None:
        """The slot may be written again; `SampleSource.acknowledge` says when the item is done
        with."""
        self._source._release(self.index)


class SampleSource:
    """A reader's end: `take` what is ready.

    Where policy age is bounded, a single reader gets items in the order in which they were claimed,
    so that the bound is exact. An item that nobody is writing any more, or whose writer is overdue,
    is replaced by the next one that is ready.
    """

    def __init__(self, spec: SampleSpec, arena: Arena, reader: int) -> None:
        self.spec = spec
        self._arena = arena
        self._reader = reader
        self._memory = SampleMemory(spec, arena)
        self._lock_name = f"sample/{spec.name}"
        self._is_waiting = self._memory.waiting_readers[reader : reader + 1].data
        self._granted = self._memory.granted.data
        self._ordered = sample_order.is_ordered(spec)
        self._next_look = 0.0
        self._memory.open_readers[reader] = 1

    @property
    def here(self) -> bool:
        """This host hands out the stream's slots. Not yet, while readers that were elsewhere have
        only just come; they are rung when it does."""
        return not self._granted[0]

    @property
    def closed(self) -> bool:
        """Writers have come, all of them have left, and nothing is ready here any more."""
        memory = self._memory
        if not (memory.open_writers == 2).all():
            return False
        return not ((memory.status == READY) & self._mine()).any()

    @property
    def look_seconds(self) -> float:
        """How often a reader that waits is to look by itself: nobody rings for what is overdue."""
        return min(1.0, self.spec.patience_seconds / 4 or 1.0)

    def take(self) -> Item | None:
        """The next item for this reader, or None if nothing is ready."""
        memory = self._memory
        if not self.here:
            return None
        if self._is_waiting[0] and READY not in memory.status.tobytes() and not self._is_to_look():
            # Nothing has come since this reader said, under the lock, that it waits: whoever
            # commits next takes that back and rings.
            return None
        with self._arena.lock(self._lock_name):
            ready = np.flatnonzero((memory.status == READY) & self._mine())
            order: list[int] = ready[np.argsort(memory.ticket[ready])].tolist()
            index, ring = self._in_turn(order) if self._ordered else (order[0] if order else -1, ())
            if index >= 0:
                self._mark_taken(index)
                self._check_written(index)
            else:
                memory.waiting_readers[self._reader] = 1
        if ring:
            self._arena.ring(*ring)
        return Item(self, index) if index >= 0 else None

    def _is_to_look(self) -> bool:
        """Whether it is time to see if a writer is overdue."""
        return self.spec.patience_seconds > 0 and time.monotonic() >= self._next_look

    def _in_turn(self, ready: list[int]) -> tuple[int, Sequence[str]]:
        """The item of those in `ready` (in the order of their tickets) that is next, or -1; and
        whom to ring. Under the lock."""
        if ready and self._is_next(ready[0]):
            return ready[0], ()
        memory, reader, writers = self._memory, self._reader, self.spec.writers
        behind = [index for index in ready if memory.ticket[index] < memory.next_taken[reader]]
        for index in behind:
            sample_order.give_up(memory, index)
        freed = sample_claims.waiting_writers(memory) if behind else ()
        first = ready[len(behind)] if len(behind) < len(ready) else -1
        if first >= 0 and self._is_next(first):
            return first, [writers[writer] for writer in freed]
        self._next_look = time.monotonic() + self.look_seconds
        passed = sample_order.pass_over(memory, self.spec, reader)
        if first >= 0 and not sample_order.stand_in(memory, reader, first):
            first = -1
        # Who waits for newer weights is rung too: a ticket to be had again may do with older ones.
        opened = passed or first >= 0
        return first, writers if opened else [writers[writer] for writer in freed]

    def _is_next(self, index: int) -> bool:
        """No older item can come any more."""
        memory = self._memory
        in_order = memory.ticket[index] == memory.next_taken[self._reader]
        return bool(in_order or (memory.open_writers == 2).all())

    def _mine(self) -> np.ndarray:
        memory = self._memory
        mine: np.ndarray
        match self.spec.delivery:
            case "any":
                mine = memory.reader == -1
            case "key":
                selected = memory.writer % len(self.spec.readers) == self._reader
                mine = (memory.reader == -1) & selected
            case "all":
                taken = 1 << (self._reader + len(self.spec.readers))
                mine = (memory.pending & (1 << self._reader | taken)) == 1 << self._reader
        return mine

    def _mark_taken(self, index: int) -> None:
        memory = self._memory
        if self.spec.delivery == "all":
            memory.pending[index] |= 1 << (self._reader + len(self.spec.readers))
        else:
            memory.reader[index] = self._reader
        memory.next_taken[self._reader] = memory.ticket[index] + 1

    def _check_written(self, index: int) -> None:
        item = self._memory.items[index]
        length = int(self._memory.length[index])
        if (item.policy_version[:length][item.acted[:length]] < 0).any():
            writer = self.spec.writers[int(self._memory.writer[index])]
            raise StreamError(
                f"stream {self.spec.name!r}: slot {index} was committed by {writer} with steps "
                "that were never written. The writer must fill every tick before it commits."
            )

    def _release(self, index: int) -> None:
        memory = self._memory
        with self._arena.lock(self._lock_name):
            memory.taken[self._reader] += 1
            free(memory, self.spec, index, self._reader)
            waiting = sample_claims.waiting_writers(memory)
        self._arena.ring(*(self.spec.writers[writer] for writer in waiting))

    def acknowledge(self, count: int) -> None:
        """Counts released items as consumed, after the update that used them."""
        self._memory.consumed[self._reader] += count
        self._memory.open_from[self._reader] += count

    @property
    def _batch(self) -> int:
        """The number of the batch that this reader acknowledges next."""
        return int(self._memory.open_from[self._reader]) // self.spec.items_per_batch

    @property
    def due(self) -> int:
        """The version at which the batch that comes next will be consumed, as was last said."""
        return int(self._memory.base_version[0]) + self._batch

    def expect(self, version: int) -> None:
        """Says at which version the batch that comes next will be consumed: a trainer counts on
        from there."""
        self._memory.base_version[0] = version - self._batch
        self._arena.ring(*self.spec.writers)

    def skip_batch(self, held: int) -> None:
        """Gives up the batch that comes next, of which `held` items were released already: other
        trainers are done with theirs. What is still to come of it is dropped when it does."""
        memory = self._memory
        with self._arena.lock(self._lock_name):
            memory.taken[self._reader] -= held
            memory.dropped[OUT_OF_TURN] += held
            first = (self._batch + 1) * self.spec.items_per_batch
            memory.open_from[self._reader] = first
            if self._ordered:
                sample_order.skip_to(memory, self._reader, first)

    def close(self) -> None:
        """Leaves: writers of a stream that nobody reads see it closed."""
        self._memory.open_readers[self._reader] = 2
        self._arena.ring(*self.spec.writers)


def free(memory: SampleMemory, spec: SampleSpec, index: int, reader: int) -> None:
    """A reader is done with a slot; the last one that it is for makes it free. Under the lock."""
    if spec.delivery == "all":
        bits = (1 << reader) | (1 << (reader + len(spec.readers)))
        memory.pending[index] &= ~bits
        everyone = (1 << len(spec.readers)) - 1
        if memory.pending[index] & everyone:
            return
    memory.status[index] = FREE


def create_sample(spec: SampleSpec, arena: Arena, *, granted: bool = False) -> None:
    """Reserves the stream's memory and marks every slot unwritten; where slots are granted by
    another host they are left alone until they are."""
    memory = SampleMemory(spec, arena)
    memory.base_version[0] = spec.base_version
    memory.granted[0] = granted
    for item in () if granted else memory.items:
        mark_unwritten(to_tree(item))
        item.policy_version.fill(-1)
