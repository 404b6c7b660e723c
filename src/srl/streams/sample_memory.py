"""The memory of a sample stream: its slots, and the numbers that all its ends share."""

from __future__ import annotations

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
LATE = -1
"""Replaces the ticket of a slot whose writer is overdue; its commit gets another ticket."""


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


class SampleMemory:
    """A stream's numbers and slots, as arrays in its region."""

    def __init__(self, spec: SampleSpec, arena: Arena) -> None:
        shapes, slots = _header_shapes(spec), spec.slots
        header, size = layout_bytes(shapes), _slot_bytes(spec)
        nbytes = spec.record.nbytes
        region = arena.region(f"sample/{spec.name}", header + slots * size, SETTINGS)
        for name, view in layout_views(shapes, region[:header]).items():
            setattr(self, name, view)
        self.raw = [region[header + i * size : header + i * size + nbytes] for i in range(slots)]
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
    since: np.ndarray
    """When the slot was claimed, in nanoseconds of this host's clock; only where writers can be
    overdue."""
    usual: np.ndarray
    """Seconds that a fragment of each writer usually takes; 0 before its first one. Only where
    writers can be overdue."""
    next_ticket: np.ndarray
    next_taken: np.ndarray
    """The ticket that each reader takes next; only where tickets are taken in order."""
    open_from: np.ndarray
    """The first ticket that each reader has not acknowledged. In order or not, it grows with each
    acknowledged fragment."""
    returned: np.ndarray
    """Tickets to be handed out again, because no process writes them: their writer or reader died,
    or their writer is overdue."""
    num_returned: np.ndarray
    base_version: np.ndarray
    """The version of batch 0; batch n is consumed at version `base_version + n`."""
    first_ticket: np.ndarray
    """The number of tickets before batch 0. It grows by the fragments that dead readers lost, where
    tickets are not taken in order. `count_anew` sets it, too."""
    produced: np.ndarray
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
    open_readers: np.ndarray
    waiting_writers: np.ndarray
    waiting_readers: np.ndarray
    granted: np.ndarray
    """1: the readers are on another host, which grants the slots here."""
    anew: np.ndarray
    """A request of a trainer here to the owner: how often it has asked, then the version and the
    number of fragments under way for `count_anew`."""
    marked: np.ndarray
    """1: the slot was marked as unwritten before its first use."""

    def info(self, index: int) -> FragmentInfo:
        """What the writer said about the fragment in a slot."""
        return FragmentInfo(
            length=self.length.item(index),
            env_steps=self.env_steps.item(index),
            origin=self.origin.item(index),
            sequence=self.sequence.item(index),
        )

    def set_info(self, index: int, info: FragmentInfo) -> None:
        """Keeps what the writer says about the fragment in a slot."""
        self.length[index], self.env_steps[index] = info.length, info.env_steps
        self.origin[index], self.sequence[index] = info.origin, info.sequence


def sample_bytes(spec: SampleSpec) -> int:
    """Bytes of a stream's region."""
    return layout_bytes(_header_shapes(spec)) + spec.slots * _slot_bytes(spec)


def _slot_bytes(spec: SampleSpec) -> int:
    """Bytes from one slot to the next: whole pages."""
    return -(-spec.record.nbytes // 4096) * 4096


def _header_shapes(spec: SampleSpec) -> dict[str, Shape]:
    slots = spec.slots
    return {
        "status": Shape((slots,), "uint8"),
        "writer": Shape((slots,), "int32"),
        "reader": Shape((slots,), "int32"),
        "pending": Shape((slots,), "int64"),
        "ticket": Shape((slots,), "int64"),
        "length": Shape((slots,), "int64"),
        "env_steps": Shape((slots,), "int64"),
        "origin": Shape((slots,), "int64"),
        "sequence": Shape((slots,), "int64"),
        "since": Shape((slots,), "int64"),
        "usual": Shape((len(spec.writers),), "float64"),
        "next_ticket": Shape((1,), "int64"),
        "next_taken": Shape((max(1, len(spec.readers)),), "int64"),
        "open_from": Shape((max(1, len(spec.readers)),), "int64"),
        # Room for the tickets of slots and of readers: a batch in use and one that fills.
        "returned": Shape((2 * slots + 4 * spec.fragments_per_batch,), "int64"),
        "num_returned": Shape((1,), "int64"),
        "first_ticket": Shape((1,), "int64"),
        "base_version": Shape((1,), "int64"),
        "produced": Shape((len(spec.writers),), "int64"),
        "produced_before": Shape((len(spec.writers),), "int64"),
        "committing": Shape((len(spec.writers),), "int64"),
        "taken": Shape((max(1, len(spec.readers)),), "int64"),
        "consumed": Shape((max(1, len(spec.readers)),), "int64"),
        "dropped": Shape((len(DROP_REASONS),), "int64"),
        "open_writers": Shape((len(spec.writers),), "uint8"),
        "open_readers": Shape((max(1, len(spec.readers)),), "uint8"),
        "waiting_writers": Shape((len(spec.writers),), "uint8"),
        "waiting_readers": Shape((max(1, len(spec.readers)),), "uint8"),
        "granted": Shape((1,), "uint8"),
        "anew": Shape((3,), "int64"),
        "marked": Shape((slots,), "uint8"),
    }
