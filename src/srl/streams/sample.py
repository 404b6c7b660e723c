"""The sample stream: one way, bounded, from writers (actors) to readers (trainers, replay workers).

A writer claims a slot, fills it tick by tick, and commits it. A reader takes it, reads it in place,
and releases it: a trainer copies it into its batch first. Nothing is copied between processes.
Handing a slot over only changes numbers, under a lock that the kernel frees when its holder dies.

Waiting: no operation blocks. `claim` returns None when every slot is in use (back-pressure) or when
newer weights must come first (policy age). `take` returns None when no fragment is ready. A process
that got None is woken when this changes. A fragment is dropped only if its holder died, or if it
came too late for the bound on policy age. Every fragment that was produced is consumed, dropped
with a reason, or in flight. Closing: readers take what is ready and then see `closed`; writers of a
stream without readers see `closed`.

Delivery: `any` gives each fragment to one reader, `all` to every reader, and `key` to the reader
that the writer's number selects.

Below the two ends are the queue (`sample_queue.py`: slots and accounts) and the admission of
writers (`admission.py`: policy age). Where the readers are on another host, it grants the slots one
by one (`remote_slots.py`).
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from srl.arena.arena import Arena
from srl.data.records import Trajectory
from srl.data.table import Table, TableSpec
from srl.data.trajectory import TrajectorySpec
from srl.errors import ConfigError, StreamError
from srl.streams.admission import open_queue
from srl.streams.sample_queue import READER_DIED, READY, WRITER_DIED, WRITING, FragmentInfo


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

    @property
    def poll_seconds(self) -> float:
        """Interval at which a waiting reader must call `take`: no process wakes it when a writer
        becomes overdue."""
        return min(1.0, self.patience_seconds / 4 or 1.0)

    def __post_init__(self) -> None:
        if self.delivery == "all" and len(self.readers) > 31:
            raise ConfigError(
                f"delivery 'all': expected at most 31 readers, got {len(self.readers)}."
            )


class _Record:
    """A slot and its record, as one of the two ends sees them."""

    __slots__ = ("index", "record")

    index: int
    record: Any

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


class Slot(_Record):
    """A claimed slot: fill its `record`, then `commit`."""

    __slots__ = ("_sink", "oldest_version")

    def __init__(self, sink: SampleSink, index: int) -> None:
        admission = sink._admission
        self._sink = sink
        self.index = index
        self.record = admission.queue.records[index]
        self.oldest_version = admission.oldest_version(int(admission.queue.ticket[index]))
        """Steps of a policy version older than this would be too old when they are consumed."""

    def commit(self, info: FragmentInfo) -> None:
        """Hands the slot to the readers; the writer must not use it afterwards."""
        self._sink._commit(self.index, info)


class SampleSink:
    """A writer's end: `claim` a slot to write into."""

    def __init__(self, spec: SampleSpec, arena: Arena, writer: int) -> None:
        self.spec = spec
        self._writer = writer
        self._admission = open_queue(spec, arena)
        self._queue = self._admission.queue
        self._queue.open_writers[writer] = 1
        self.waits_for = "slots"
        """Why the last `claim` returned None: "slots" or "policy_age"."""

    @property
    def closed(self) -> bool:
        """Whether readers have come, and all of them have left."""
        return bool((self._queue.open_readers == 2).all()) and bool(self.spec.readers)

    def origin(self, number: int) -> int:
        """The origin of the fragments of this writer's agent batch with this number."""
        return self._writer << 32 | number

    def claim(self, newest_version: int) -> Slot | None:
        """A free slot, or None if there is none or if `newest_version` (the newest weights) is
        still too old."""
        admission, queue = self._admission, self._queue
        owned_elsewhere = bool(queue.owned_elsewhere[0])
        with queue.lock():
            asked = queue.waiting_writers[self._writer]
            index = admission.claim(self._writer, newest_version)
        if isinstance(index, str):
            self.waits_for = index
            if owned_elsewhere and not asked:
                # Wakes the bridge, which asks the readers' host for a slot.
                queue.wake(self.spec.readers)
            return None
        slot = Slot(self, index)
        # `SampleSource.take` finds what the writer leaves out, whatever the slot held before.
        self.spec.record.mark_unwritten(slot.record, first=not queue.marked[index])
        queue.marked[index] = 1
        return slot

    def reopen(self, index: int) -> Slot:
        """The slot that this writer was filling when the stream's memory was saved."""
        if index not in self._queue.unwritten(self._writer):
            raise StreamError(f"stream {self.spec.name!r}: slot {index} is not being written here.")
        return Slot(self, index)

    def _commit(self, index: int, info: FragmentInfo) -> None:
        queue = self._queue
        with queue.lock():
            waiting = self._admission.commit(index, info)
        queue.wake(self.spec.readers if queue.owned_elsewhere[0] else waiting)

    def close(self) -> None:
        """Leaves the stream: readers take what is ready and then see it closed. A slot that is
        still being written is freed unread."""
        with self._queue.lock():
            self._admission.give_back(self._writer, died=False)
            self._queue.open_writers[self._writer] = 2
        self._queue.wake_all()


class TakenFragment(_Record):
    """A taken fragment: read its `record` in place, then `release` its slot."""

    __slots__ = ("_source", "info", "ticket", "writer")

    def __init__(self, source: SampleSource, index: int) -> None:
        queue = source._queue
        self._source = source
        self.index = index
        self.ticket = int(queue.ticket[index])
        self.writer = int(queue.writer[index])
        self.info = queue.info(index)
        self.record = queue.records[index]

    def release(self) -> None:
        """Lets the slot be written again. `SampleSource.acknowledge` later counts the fragment as
        consumed."""
        self._source._release(self.index)


class SampleSource:
    """A reader's end: `take` fragments that are ready."""

    def __init__(self, spec: SampleSpec, arena: Arena, reader: int) -> None:
        self.spec = spec
        self._reader = reader
        self._admission = open_queue(spec, arena)
        self._queue = queue = self._admission.queue
        self._is_waiting = queue.waiting_readers[reader : reader + 1].data
        self._owned_elsewhere = queue.owned_elsewhere.data
        queue.open_readers[reader] = 1

    @property
    def here(self) -> bool:
        """Whether this host hands out the stream's slots. After the readers moved to this host, it
        is False until the bridge makes this host the owner. Then the readers are woken."""
        return not self._owned_elsewhere[0]

    @property
    def closed(self) -> bool:
        """Whether writers have come and all have left, and nothing is ready for this reader."""
        queue = self._queue
        return bool((queue.open_writers == 2).all()) and not queue.ready(self._reader)

    @property
    def poll_seconds(self) -> float:
        """Interval at which a waiting reader must call `take`."""
        return self.spec.poll_seconds

    def take(self) -> TakenFragment | None:
        """The next fragment for this reader, or None if none is ready."""
        queue, admission = self._queue, self._admission
        if not self.here:
            return None
        if self._is_waiting[0] and READY not in queue.status.tobytes() and not admission.is_due():
            # Nothing has come since this reader noted, under the lock, that it waits. The next
            # commit clears this note and wakes the reader.
            return None
        with queue.lock():
            index, wake = admission.take(self._reader)
            if index >= 0:
                self._check_written(index)
            else:
                queue.waiting_readers[self._reader] = 1
        if wake:
            queue.wake(wake)
        return TakenFragment(self, index) if index >= 0 else None

    def _check_written(self, index: int) -> None:
        queue = self._queue
        if not self.spec.record.is_written(queue.records[index], int(queue.length[index])):
            writer = self.spec.writers[int(queue.writer[index])]
            raise StreamError(
                f"stream {self.spec.name!r}: slot {index} was committed by {writer} with steps "
                "that were never written. The writer must fill every tick before it commits."
            )

    def _release(self, index: int) -> None:
        queue = self._queue
        with queue.lock():
            queue.taken[self._reader] += 1
            queue.free(index, self._reader)
            waiting = queue.writers_to_wake()
        queue.wake(waiting)

    def acknowledge(self, count: int) -> None:
        """Counts released fragments as consumed, after the update that used them."""
        self._queue.consumed[self._reader] += count
        self._admission.first_unacknowledged[self._reader] += count

    @property
    def due(self) -> int:
        """The version at which the next batch will be consumed, as `expect` or the start set it."""
        return int(self._admission.base_version[0]) + self._admission.next_batch(self._reader)

    def expect(self, version: int) -> None:
        """Sets the version at which the next batch will be consumed; later batches count on from
        it."""
        self._admission.base_version[0] = version - self._admission.next_batch(self._reader)
        self._queue.wake(self.spec.writers)

    def skip_batch(self, held: int) -> None:
        """Gives up the next batch, because the other ranks have finished theirs. `held` fragments
        of it were released already. The others are dropped when they come."""
        with self._queue.lock():
            self._admission.skip_batch(self._reader, held)

    def close(self) -> None:
        """Leaves the stream: when all readers have left, writers see it closed."""
        self._queue.open_readers[self._reader] = 2
        self._queue.wake(self.spec.writers)


def create_sample(spec: SampleSpec, arena: Arena, *, owned_elsewhere: bool = False) -> None:
    """Reserves the stream's memory; `owned_elsewhere`: another host grants its slots. The first
    claim of a slot marks its memory as unwritten."""
    admission = open_queue(spec, arena)
    admission.base_version[0] = spec.base_version
    admission.queue.owned_elsewhere[0] = owned_elsewhere


def reclaim_writer(spec: SampleSpec, arena: Arena, writer: int) -> int:
    """Takes back the slots of a writer whose death is certain, and returns the number of fragments
    that are lost. They are counted as dropped: here, or by the owner if slots are granted."""
    admission = open_queue(spec, arena)
    queue = admission.queue
    with queue.lock():
        lost = admission.give_back(writer, died=True)
        if not queue.owned_elsewhere[0]:
            queue.dropped[WRITER_DIED] += lost
        queue.open_writers[writer] = 0
    queue.wake_all()
    return lost


def reclaim_reader(spec: SampleSpec, arena: Arena, reader: int) -> int:
    """Frees the slots of a reader whose death is certain, and returns the number of fragments that
    are lost: all that it took and did not acknowledge. They are counted as dropped."""
    admission = open_queue(spec, arena)
    queue = admission.queue
    with queue.lock():
        held = queue.held(reader)
        lost = admission.lose_taken(reader, held)
        for index in held.tolist():
            queue.free(index, reader)
        queue.taken[reader] = queue.consumed[reader]
        queue.dropped[READER_DIED] += lost
        queue.open_readers[reader] = 0
        queue.waiting_writers[:] = 0
    queue.wake(spec.writers)
    return lost


def propagate_version(
    spec: SampleSpec, upstream: list[SampleSpec], arena: Arena, version: int
) -> None:
    """Restarts the version count of the streams that lead to this one: fragments that leave them
    next are for `version`. Needs no lock.

    This is needed after fragments of this stream were lost, because the upstream streams do not
    know which fragments replace them. Fragments that are being written in this stream are consumed
    first. So afterwards the bound on policy age is too wide by their number, but never so narrow
    that a batch cannot be filled. If another host owns an upstream stream, it is asked to do this.
    """
    written = int((open_queue(spec, arena).queue.status == WRITING).sum())
    for other in upstream:
        # Workers in between may write more or fewer fragments than they read.
        under_way = -(-written * other.fragments_per_batch // spec.fragments_per_batch)
        admission = open_queue(other, arena)
        if admission.queue.owned_elsewhere[0]:
            admission.restart_request[1:] = version, under_way
            admission.restart_request[0] += 1
            arena.wake(*other.readers)
            continue
        with admission.queue.lock():
            admission.restart_version_count(version, under_way)
        arena.wake(*other.writers)
