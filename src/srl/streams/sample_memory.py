"""The memory of a sample stream: its slots, and the books that all its ends keep together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, overload

import numpy as np

from srl.arena.arena import Arena
from srl.data.layout import Shape, layout_bytes, layout_views
from srl.data.records import Trajectory
from srl.data.trajectory import TrajectorySpec

if TYPE_CHECKING:
    from srl.streams.sample import SampleSpec

FREE, WRITING, READY, GRANTED, LEFT, LOST = range(6)
"""The last three only where slots are granted by another host: granted and not begun; given back
by a writer that left; given back for one that died."""
WRITER_DIED, READER_DIED, OUT_OF_TURN, HOST_LOST, TOO_LATE = range(5)
DROP_REASONS = ("writer died", "reader died", "out of turn", "host lost", "too late")
LATE = -1
"""In place of the ticket of a slot whose writer is overdue: it gets another when it comes."""


class Items(Sequence[Trajectory]):
    """Slots as trajectories, each made when it is first looked at: of thousands of slots most ends
    see a few."""

    def __init__(self, spec: TrajectorySpec, raw: list[np.ndarray]) -> None:
        self._spec = spec
        self._raw = raw
        self._made: list[Trajectory | None] = [None] * len(raw)

    def __len__(self) -> int:
        return len(self._raw)

    @overload
    def __getitem__(self, index: int) -> Trajectory: ...
    @overload
    def __getitem__(self, index: slice) -> list[Trajectory]: ...
    def __getitem__(self, index: int | slice) -> Trajectory | list[Trajectory]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        made = self._made[index]
        if made is None:
            made = self._made[index] = self._spec.views(self._raw[index])
        return made


class SampleMemory:
    """The stream's bookkeeping and slots."""

    def __init__(self, spec: SampleSpec, arena: Arena) -> None:
        slots = spec.slots
        shapes = {
            "status": Shape((slots,), "uint8"),
            "writer": Shape((slots,), "int32"),
            "reader": Shape((slots,), "int32"),
            "pending": Shape((slots,), "int64"),
            "ticket": Shape((slots,), "int64"),
            "length": Shape((slots,), "int64"),
            "env_steps": Shape((slots,), "int64"),
            "since": Shape((slots,), "int64"),
            "usual": Shape((len(spec.writers),), "float64"),
            "next_ticket": Shape((1,), "int64"),
            "next_taken": Shape((max(1, len(spec.readers)),), "int64"),
            "open_from": Shape((max(1, len(spec.readers)),), "int64"),
            # What slots hold, and what readers hold: a batch in use and one that fills.
            "returned": Shape((2 * slots + 4 * spec.items_per_batch,), "int64"),
            "num_returned": Shape((1,), "int64"),
            "num_lost": Shape((1,), "int64"),
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
        }
        header = layout_bytes(shapes)
        nbytes = spec.trajectory.nbytes
        size = -(-nbytes // 4096) * 4096
        region = arena.region(f"sample/{spec.name}", header + slots * size, "sample.slots")
        for name, view in layout_views(shapes, region[:header]).items():
            setattr(self, name, view)
        self.raw = [region[header + i * size : header + i * size + nbytes] for i in range(slots)]
        self.items = Items(spec.trajectory, self.raw)

    status: np.ndarray
    writer: np.ndarray
    reader: np.ndarray
    """Who is reading (-1: nobody yet), for `any` and `key`."""
    pending: np.ndarray
    """A bit for each reader that has not released it, for `all`; a second set of bits marks who
    took it."""
    ticket: np.ndarray
    length: np.ndarray
    env_steps: np.ndarray
    since: np.ndarray
    """When it was claimed, in nanoseconds of this host's clock, where writers may be overdue."""
    usual: np.ndarray
    """Seconds that a fragment of each writer usually takes there; 0 before its first one."""
    next_ticket: np.ndarray
    next_taken: np.ndarray
    """The ticket that each reader takes next, where tickets are taken in turn."""
    open_from: np.ndarray
    """The first ticket that it has not acknowledged, there."""
    returned: np.ndarray
    """Tickets that nobody writes, to be handed out again: their writer or reader died, or is
    overdue."""
    num_returned: np.ndarray
    base_version: np.ndarray
    """The version at which the first batch would have been consumed."""
    num_lost: np.ndarray
    """Items that do not count towards the batches to come: they never came out, where tickets are
    not taken in turn, or came before `base_version` was last set from further down the line."""
    produced: np.ndarray
    produced_before: np.ndarray
    """What `produced` was before the commit ..."""
    committing: np.ndarray
    """... that each writer is in, of the slot with this number less one; 0 if it is in none."""
    taken: np.ndarray
    """Items whose slots each reader has released."""
    consumed: np.ndarray
    """Of those, items that it is done with."""
    dropped: np.ndarray
    open_writers: np.ndarray
    open_readers: np.ndarray
    waiting_writers: np.ndarray
    waiting_readers: np.ndarray
    granted: np.ndarray
    """1: the readers are on another host, which grants the slots here."""
    anew: np.ndarray
    """What a trainer here asks of that host: how often it has asked, and with what `count_anew` is
    to be done."""
