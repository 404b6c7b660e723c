"""The queue behind a sample stream: its slots, their status, and its accounts.

Everything is numbers in the stream's region, which change under the stream's lock. A process may be
killed between any two of these changes: then its own fragment is lost, and nothing else. A slot has
a ticket, a number that grows with each claim; readers take the oldest ticket first.

The queue knows nothing of policy versions. Which writers may claim a slot, and which ticket a slot
gets, is the business of `streams/admission.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from srl.arena.arena import Arena
from srl.data.counts import Count, Natural
from srl.data.memory_layout import Shape, layout_bytes, layout_views
from srl.data.record_spec import RecordSpec

if TYPE_CHECKING:
    from srl.streams.sample import SampleSpec

FREE, WRITING, READY, GRANTED, LEFT, LOST = range(6)
"""The status of a slot. The last three exist only where another host grants the slots. GRANTED: not
begun yet. LEFT: to be returned to the owner. LOST: the same, but its writer died while writing."""
WRITER_DIED, READER_DIED, OUT_OF_TURN, HOST_LOST, TOO_LATE = range(5)
DROP_REASONS = ("writer died", "reader died", "out of turn", "host lost", "too late")
SETTINGS = "actor.envs, algorithm.rollout_length or sample.slots"
"""Settings that make a stream smaller, for error messages."""


class FragmentInfo(msgspec.Struct, array_like=True, frozen=True):
    """What a writer says about a fragment when it commits it."""

    length: Count
    """Ticks written."""
    env_steps: Count = 0
    """Environment steps in it that count for the run."""
    origin: Natural = 0
    """The agent batch that acted: a number that no other agent batch of the stream has."""
    sequence: Natural = 0
    """Grows with each fragment of its origin: by 1 if the fragment goes on where the last one
    ended, else by more."""


class SlotViews:
    """Slots as records. Each is made at its first use, because most ends use only a few of
    thousands of slots."""

    def __init__(self, spec: RecordSpec, raw: list[np.ndarray]) -> None:
        self._spec = spec
        self._raw = raw
        self._made: list[Any] = [None] * len(raw)

    def __getitem__(self, index: int) -> Any:
        made = self._made[index]
        if made is None:
            made = self._made[index] = self._spec.views(self._raw[index])
        return made


class SampleQueue:
    """The slots and numbers of a sample stream. Callers hold the `lock` unless a method says that
    it needs none; what a method returns is for the caller to wake afterwards."""

    def __init__(self, spec: SampleSpec, arena: Arena, beside: Mapping[str, Shape]) -> None:
        """`beside` are arrays that the caller keeps in the same region, for its own use."""
        self.spec = spec
        self._arena, self._lock_name = arena, f"sample/{spec.name}"
        own, size, nbytes = _shapes(spec), _slot_bytes(spec), spec.record.nbytes
        shapes = {**own, **beside}
        header = layout_bytes(shapes)
        region = arena.region(f"sample/{spec.name}", header + spec.slots * size, SETTINGS)
        views = layout_views(shapes, region[:header])
        for name in own:
            setattr(self, name, views[name])
        self.beside: dict[str, np.ndarray] = {name: views[name] for name in beside}
        starts = range(header, header + spec.slots * size, size)
        self.raw = [region[start : start + nbytes] for start in starts]
        self.records = SlotViews(spec.record, self.raw)

    status: np.ndarray
    writer: np.ndarray
    reader: np.ndarray
    """The reader that took the slot (-1: none yet), for `any` and `key`."""
    pending: np.ndarray
    """A bit for each reader that has not released the slot, for `all`. A second set of bits marks
    the readers that took it."""
    ticket: np.ndarray
    length: np.ndarray
    env_steps: np.ndarray
    origin: np.ndarray
    sequence: np.ndarray
    marked: np.ndarray
    """1: the slot was marked as unwritten before its first use."""
    next_ticket: np.ndarray
    produced: np.ndarray
    """Fragments that each writer has committed."""
    produced_before: np.ndarray
    """The value of `produced` before the commit that is under way, to undo it."""
    committing: np.ndarray
    """The slot (plus 1) of the commit that each writer has under way; 0 if there is none."""
    taken: np.ndarray
    """Fragments whose slots each reader has released."""
    consumed: np.ndarray
    """Fragments that each reader has acknowledged."""
    dropped: np.ndarray
    open_writers: np.ndarray
    """0: not there, 1: open, 2: has left; `open_readers` likewise."""
    open_readers: np.ndarray
    waiting_writers: np.ndarray
    """1: the writer waits for a slot; `waiting_readers` likewise, for a fragment."""
    waiting_readers: np.ndarray
    owned_elsewhere: np.ndarray
    """1: the readers are on another host, which grants the slots here."""

    def lock(self) -> AbstractContextManager[None]:
        """The stream's lock."""
        return self._arena.lock(self._lock_name)

    def wake(self, processes: Sequence[str]) -> None:
        """Wakes processes. Needs no lock."""
        self._arena.wake(*processes)

    def wake_all(self) -> None:
        """Wakes the processes at all ends. Needs no lock."""
        self._arena.wake(*self.spec.readers, *self.spec.writers)

    # -- writing ---------------------------------------------------------------------------------

    def claim(self, writer: int, ticket: int | None = None) -> int | None:
        """Claims a free slot, with the next ticket if none is given. Notes that the writer waits if
        there is no slot."""
        free = np.flatnonzero(self.status == FREE)
        if not free.size:
            self.waiting_writers[writer] = 1
            return None
        index = int(free[0])
        next_ticket = self.next_ticket.item(0)
        ticket = next_ticket if ticket is None else ticket
        self.ticket[index] = ticket
        self.writer[index] = writer
        # A process that died at the very end of a commit may have left this number.
        self.committing[writer] = 0
        # From here on the slot shows that the ticket is in use, even if this process dies.
        self.status[index] = WRITING
        self.next_ticket[0] = max(next_ticket, ticket + 1)
        return index

    def find_granted(self, writer: int) -> int | None:
        """The oldest slot that the owner granted to a writer. Notes that the writer waits if there
        is none."""
        granted = np.flatnonzero((self.status == GRANTED) & (self.writer == writer))
        if not granted.size:
            self.waiting_writers[writer] = 1
            return None
        return int(granted[np.argmin(self.ticket[granted])])

    def claim_granted(self, writer: int) -> int | None:
        """Claims the oldest slot that the owner granted to a writer."""
        index = self.find_granted(writer)
        if index is not None:
            self.status[index] = WRITING
        return index

    def count(self, index: int, info: FragmentInfo) -> None:
        """The first half of a commit: counts the fragment. One in a granted slot is counted by the
        owner, once it arrives there."""
        self.length[index], self.env_steps[index] = info.length, info.env_steps
        self.origin[index], self.sequence[index] = info.origin, info.sequence
        self.reader[index] = -1
        self.pending[index] = (1 << len(self.spec.readers)) - 1
        if not self.owned_elsewhere[0]:
            writer = self.writer.item(index)
            self.produced_before[writer] = self.produced[writer]
            self.committing[writer] = index + 1
            self.produced[writer] += 1

    def hand_over(self, index: int) -> list[str]:
        """The second half: readers may take the fragment. Returns those that wait for one."""
        self.status[index] = READY
        self.committing[self.writer.item(index)] = 0
        waiting = np.flatnonzero(self.waiting_readers != 0)
        self.waiting_readers[waiting] = 0
        return [self.spec.readers[reader] for reader in waiting]

    def drop(self, index: int, reason: int) -> None:
        """Frees a slot whose fragment no reader gets."""
        self.dropped[reason] += 1
        self.status[index] = FREE
        writer = self.writer.item(index)
        if self.committing[writer] == index + 1:
            self.committing[writer] = 0

    def writers_to_wake(self) -> list[str]:
        """Writers that wait for a slot, because there is a free one now; clears their marks."""
        waiting = np.flatnonzero(self.waiting_writers != 0)
        self.waiting_writers[waiting] = 0
        return [self.spec.writers[writer] for writer in waiting]

    def unwritten(self, writer: int) -> np.ndarray:
        """The slots that a writer has begun and not committed."""
        return np.flatnonzero((self.status == WRITING) & (self.writer == writer))

    def free_unwritten(self, indices: np.ndarray) -> None:
        """Frees slots whose fragments will not come. The caller wakes the writers."""
        for index in indices.tolist():
            writer = self.writer.item(index)
            if self.committing[writer] == index + 1:
                # A commit counted the fragment and never handed it over.
                self.produced[writer] = self.produced_before[writer]
                self.committing[writer] = 0
        self.status[indices] = FREE
        self.waiting_writers[:] = 0

    def hand_back(self, writer: int, *, died: bool) -> int:
        """Marks the granted slots that a writer has not committed, so that the bridge returns them
        to the owner. Returns the number of fragments that were begun in them."""
        begun = self.unwritten(writer)
        self.status[begun] = LOST if died else LEFT
        self.status[(self.status == GRANTED) & (self.writer == writer)] = LEFT
        self.waiting_writers[writer] = 0
        return len(begun)

    # -- reading ---------------------------------------------------------------------------------

    def ready(self, reader: int) -> list[int]:
        """Slots with fragments for a reader, the oldest ticket first."""
        ready = np.flatnonzero((self.status == READY) & self.addressed_to(reader))
        order: list[int] = ready[np.argsort(self.ticket[ready])].tolist()
        return order

    def addressed_to(self, reader: int) -> np.ndarray:
        """For each slot whether its fragment is for a reader, which has not taken it."""
        mine: np.ndarray
        match self.spec.delivery:
            case "any":
                mine = self.reader == -1
            case "key":
                selected = self.writer % len(self.spec.readers) == reader
                mine = (self.reader == -1) & selected
            case "all":
                mine = (self.pending & (1 << reader | self._taken_bit(reader))) == 1 << reader
        return mine

    def _taken_bit(self, reader: int) -> int:
        return 1 << (reader + len(self.spec.readers))

    def take(self, index: int, reader: int) -> None:
        """Marks a slot as taken by a reader."""
        if self.spec.delivery == "all":
            self.pending[index] |= self._taken_bit(reader)
        else:
            self.reader[index] = reader

    def held(self, reader: int) -> np.ndarray:
        """Slots that a reader has taken and not released."""
        if self.spec.delivery == "all":
            mine = (self.pending & self._taken_bit(reader)) != 0
        else:
            mine = self.reader == reader
        return np.flatnonzero((self.status == READY) & mine)

    def free(self, index: int, reader: int) -> None:
        """Ends a reader's use of a slot; the last reader that it is for frees it."""
        if self.spec.delivery == "all":
            self.pending[index] &= ~(1 << reader | self._taken_bit(reader))
            if self.pending[index] & ((1 << len(self.spec.readers)) - 1):
                return
        self.status[index] = FREE

    def info(self, index: int) -> FragmentInfo:
        """What the writer said about the fragment in a slot. Needs no lock."""
        return FragmentInfo(
            length=self.length.item(index),
            env_steps=self.env_steps.item(index),
            origin=self.origin.item(index),
            sequence=self.sequence.item(index),
        )


def _slot_bytes(spec: SampleSpec) -> int:
    """Bytes from one slot to the next: whole pages."""
    return -(-spec.record.nbytes // 4096) * 4096


def queue_bytes(spec: SampleSpec, beside: Mapping[str, Shape]) -> int:
    """Bytes of a stream's region."""
    return layout_bytes({**_shapes(spec), **beside}) + spec.slots * _slot_bytes(spec)


def _shapes(spec: SampleSpec) -> dict[str, Shape]:
    slots, writers, readers = spec.slots, len(spec.writers), max(1, len(spec.readers))
    dtypes: dict[str, tuple[int, str]] = {
        "status": (slots, "uint8"),
        "writer": (slots, "int32"),
        "reader": (slots, "int32"),
        **dict.fromkeys(
            ("pending", "ticket", "length", "env_steps", "origin", "sequence"), (slots, "int64")
        ),
        "marked": (slots, "uint8"),
        "next_ticket": (1, "int64"),
        **dict.fromkeys(("produced", "produced_before", "committing"), (writers, "int64")),
        **dict.fromkeys(("taken", "consumed"), (readers, "int64")),
        "dropped": (len(DROP_REASONS), "int64"),
        **dict.fromkeys(("open_writers", "waiting_writers"), (writers, "uint8")),
        **dict.fromkeys(("open_readers", "waiting_readers"), (readers, "uint8")),
        "owned_elsewhere": (1, "uint8"),
    }
    return {name: Shape((count,), dtype) for name, (count, dtype) in dtypes.items()}
