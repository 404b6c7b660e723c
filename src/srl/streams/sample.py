"""The sample stream: one way, bounded, from writers (actors) to readers (trainers, buffers).

A writer claims a slot, fills it tick by tick, and commits it. A reader takes it, reads it in place,
and releases it. A step is written once, into memory that the reader reads. Handing a slot over only
changes numbers, under a lock that the kernel frees when its holder dies.

Waiting: no operation blocks. `claim` returns None when every slot is in use (back-pressure) or when
newer weights must come first (policy age). `take` returns None when no fragment is ready. A process
that got None is woken when this changes. A fragment is dropped only if its holder died, or if it
came too late for the bound on policy age. Every fragment that was produced is consumed, dropped
with a reason, or in flight. Closing: readers take what is ready and then see `closed`; writers of a
stream without readers see `closed`.

Where the readers are on another host, it grants the slots one by one (`streams/remote_slots.py`).

Delivery: `any` gives each fragment to one reader, `all` to every reader, and `key` to the reader
that the writer's number selects.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
import numpy as np

from srl.arena.arena import Arena
from srl.data.records import Trajectory
from srl.data.table import Table, TableSpec
from srl.data.trajectory import TrajectorySpec
from srl.errors import ConfigError, StreamError
from srl.streams import sample_claims, sample_order
from srl.streams.sample_memory import (
    FREE,
    OUT_OF_TURN,
    READY,
    WRITING,
    FragmentInfo,
    SampleMemory,
)


class SampleSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The stream's contents, the processes at its ends, and how far ahead writers may run."""

    name: str
    record: TrajectorySpec | TableSpec
    """What a slot holds."""
    slots: int
    writers: tuple[str, ...]
    """The process of each writer."""
    readers: tuple[str, ...]
    """The process of each reader."""
    delivery: Literal["any", "all", "key"] = "any"
    fragments_per_batch: int = 1
    """Fragments of this stream that one learner step consumes."""
    max_policy_age: int | None = None
    """Versions that a fragment's oldest step may lag behind when it is consumed; None is no
    bound."""
    base_version: int = 0
    """The version at which the first batch will be consumed; not 0 in a resumed run."""
    patience_seconds: float = 0.0
    """Least time after which a writer can be overdue, where the reader takes tickets in order. With
    0 no writer is overdue: the reader waits until the writer's death is certain."""

    @property
    def trajectory(self) -> TrajectorySpec:
        """The layout of its fragments, in a stream that carries fragments."""
        assert isinstance(self.record, TrajectorySpec), f"stream {self.name!r} carries tables"
        return self.record

    def __post_init__(self) -> None:
        if self.delivery == "all" and len(self.readers) > 31:
            raise ConfigError(
                f"delivery 'all': expected at most 31 readers, got {len(self.readers)}."
            )


class Slot:
    """A claimed slot: fill its `record`, then `commit`."""

    __slots__ = ("_sink", "index", "oldest_version", "record")

    def __init__(self, sink: SampleSink, index: int, oldest_version: int) -> None:
        self._sink = sink
        self.index = index
        self.record: Any = sink._memory.records[index]
        self.oldest_version = oldest_version
        """Steps of a policy version older than this would be too old when they are consumed."""

    @property
    def trajectory(self) -> Trajectory:
        """The record of a stream that carries fragments."""
        assert isinstance(self.record, Trajectory)
        return self.record

    @property
    def table(self) -> Table:
        """The record of a stream that carries tables."""
        assert isinstance(self.record, dict)
        return self.record

    def commit(self, info: FragmentInfo) -> None:
        """Hands the slot to the readers; the writer must not use it afterwards."""
        self._sink._commit(self.index, info)


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
        """Why the last `claim` returned None: "slots" or "policy_age"."""

    @property
    def closed(self) -> bool:
        """Whether readers have come, and all of them have left."""
        return bool((self._memory.open_readers == 2).all()) and bool(self.spec.readers)

    def origin(self, number: int) -> int:
        """The origin of the fragments of this writer's agent batch with this number."""
        return self._writer << 32 | number

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
                # Wakes the bridge, which asks the readers' host for a slot.
                self._arena.wake(*self.spec.readers)
            return None
        slot = Slot(self, index, self._oldest_version(index))
        # `_check_written` finds what the writer leaves out, whatever the slot held before.
        self.spec.record.mark_unwritten(slot.record, first=not memory.marked[index])
        memory.marked[index] = 1
        return slot

    def reopen(self, index: int) -> Slot:
        """The slot that this writer was filling when the stream's memory was saved."""
        memory = self._memory
        if memory.status[index] != WRITING or memory.writer[index] != self._writer:
            raise StreamError(f"stream {self.spec.name!r}: slot {index} is not being written here.")
        return Slot(self, index, self._oldest_version(index))

    def _oldest_version(self, index: int) -> int:
        ticket = int(self._memory.ticket[index])
        return sample_claims.oldest_version(self._memory, self.spec, ticket)

    def _commit(self, index: int, info: FragmentInfo) -> None:
        memory = self._memory
        with self._arena.lock(self._lock_name):
            waiting = sample_claims.commit(memory, self.spec, index, info)
        self._arena.wake(*(self.spec.readers if memory.granted[0] else waiting))

    def close(self) -> None:
        """Leaves the stream: readers take what is ready and then see it closed. A slot that is
        still being written is freed unread."""
        with self._arena.lock(self._lock_name):
            sample_order.give_back(self._memory, self._writer, died=False)
            self._memory.open_writers[self._writer] = 2
        self._arena.wake(*self.spec.readers, *self.spec.writers)


class TakenFragment:
    """A taken fragment: read its `record` in place, then `release` its slot."""

    __slots__ = ("_source", "index", "info", "record", "ticket", "writer")

    def __init__(self, source: SampleSource, index: int) -> None:
        memory = source._memory
        self._source = source
        self.index = index
        self.ticket = int(memory.ticket[index])
        self.writer = int(memory.writer[index])
        self.info = memory.info(index)
        self.record: Any = memory.records[index]

    @property
    def trajectory(self) -> Trajectory:
        """The record of a stream that carries fragments."""
        assert isinstance(self.record, Trajectory)
        return self.record

    @property
    def table(self) -> Table:
        """The record of a stream that carries tables."""
        assert isinstance(self.record, dict)
        return self.record

    def release(self) -> None:
        """Lets the slot be written again. `SampleSource.acknowledge` later counts the fragment as
        consumed."""
        self._source._release(self.index)


class SampleSource:
    """A reader's end: `take` fragments that are ready.

    Where policy age is bounded, a single reader gets fragments in the order of their tickets, so
    that the bound is exact. If no process writes a fragment any more, or its writer is overdue, the
    next ready fragment replaces it.
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
        """Whether this host hands out the stream's slots. After the readers moved to this host, it
        is False until the bridge makes this host the owner. Then the readers are woken."""
        return not self._granted[0]

    @property
    def closed(self) -> bool:
        """Whether writers have come and all have left, and nothing is ready for this reader."""
        memory = self._memory
        if not (memory.open_writers == 2).all():
            return False
        return not ((memory.status == READY) & self._for_this_reader()).any()

    @property
    def look_seconds(self) -> float:
        """Interval at which a waiting reader must call `take`: no process wakes it when a writer
        becomes overdue."""
        return min(1.0, self.spec.patience_seconds / 4 or 1.0)

    def take(self) -> TakenFragment | None:
        """The next fragment for this reader, or None if none is ready."""
        memory = self._memory
        if not self.here:
            return None
        if self._is_waiting[0] and READY not in memory.status.tobytes() and not self._check_due():
            # Nothing has come since this reader noted, under the lock, that it waits. The next
            # commit clears this note and wakes the reader.
            return None
        with self._arena.lock(self._lock_name):
            ready = np.flatnonzero((memory.status == READY) & self._for_this_reader())
            order: list[int] = ready[np.argsort(memory.ticket[ready])].tolist()
            index, wake = (
                self._next_in_order(order) if self._ordered else (order[0] if order else -1, ())
            )
            if index >= 0:
                self._mark_taken(index)
                self._check_written(index)
            else:
                memory.waiting_readers[self._reader] = 1
        if wake:
            self._arena.wake(*wake)
        return TakenFragment(self, index) if index >= 0 else None

    def _check_due(self) -> bool:
        """Whether it is time to check if a writer is overdue."""
        return self.spec.patience_seconds > 0 and time.monotonic() >= self._next_look

    def _next_in_order(self, ready: list[int]) -> tuple[int, Sequence[str]]:
        """The slot to take next of those in `ready` (in the order of their tickets), or -1, and the
        processes to wake. The caller holds the lock."""
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
        # Wakes writers that wait for newer weights, too: a returned ticket may accept older ones.
        opened = passed or first >= 0
        return first, writers if opened else [writers[writer] for writer in freed]

    def _is_next(self, index: int) -> bool:
        """Whether no fragment with an older ticket can come any more."""
        memory = self._memory
        in_order = memory.ticket[index] == memory.next_taken[self._reader]
        return bool(in_order or (memory.open_writers == 2).all())

    def _for_this_reader(self) -> np.ndarray:
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
        record, length = self._memory.records[index], int(self._memory.length[index])
        if not self.spec.record.is_written(record, length):
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
        self._arena.wake(*(self.spec.writers[writer] for writer in waiting))

    def acknowledge(self, count: int) -> None:
        """Counts released fragments as consumed, after the update that used them."""
        self._memory.consumed[self._reader] += count
        self._memory.open_from[self._reader] += count

    @property
    def _next_batch(self) -> int:
        """The number of the batch that this reader acknowledges next."""
        return int(self._memory.open_from[self._reader]) // self.spec.fragments_per_batch

    @property
    def due(self) -> int:
        """The version at which the next batch will be consumed, as `expect` or the start set it."""
        return int(self._memory.base_version[0]) + self._next_batch

    def expect(self, version: int) -> None:
        """Sets the version at which the next batch will be consumed; later batches count on from
        it."""
        self._memory.base_version[0] = version - self._next_batch
        self._arena.wake(*self.spec.writers)

    def skip_batch(self, held: int) -> None:
        """Gives up the next batch, because the other ranks have finished theirs. `held` fragments
        of it were released already. The others are dropped when they come."""
        memory = self._memory
        with self._arena.lock(self._lock_name):
            memory.taken[self._reader] -= held
            memory.dropped[OUT_OF_TURN] += held
            first = (self._next_batch + 1) * self.spec.fragments_per_batch
            memory.open_from[self._reader] = first
            if self._ordered:
                sample_order.skip_to(memory, self._reader, first)

    def close(self) -> None:
        """Leaves the stream: when all readers have left, writers see it closed."""
        self._memory.open_readers[self._reader] = 2
        self._arena.wake(*self.spec.writers)


def free(memory: SampleMemory, spec: SampleSpec, index: int, reader: int) -> None:
    """Ends a reader's use of a slot; the last reader that it is for frees it. The caller holds the
    lock."""
    if spec.delivery == "all":
        bits = (1 << reader) | (1 << (reader + len(spec.readers)))
        memory.pending[index] &= ~bits
        everyone = (1 << len(spec.readers)) - 1
        if memory.pending[index] & everyone:
            return
    memory.status[index] = FREE


def create_sample(spec: SampleSpec, arena: Arena, *, granted: bool = False) -> None:
    """Reserves the stream's memory; `granted`: another host grants its slots. The first claim of a
    slot marks its memory as unwritten."""
    memory = SampleMemory(spec, arena)
    memory.base_version[0] = spec.base_version
    memory.granted[0] = granted
