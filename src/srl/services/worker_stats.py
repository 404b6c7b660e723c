"""Worker stats: what each worker does and has done, in shared memory, readable after its death.

Each worker has a row of numbers that its own loop writes: heartbeat, activity, busy and waiting
time, counters. The controller writes two numbers that all workers read: the stop flag, and the
number of the checkpoint that they should write.
"""

from __future__ import annotations

import time
from typing import Literal

import msgspec
import numpy as np

from srl.arena.arena import Arena
from srl.data.counts import MAX_COUNT
from srl.errors import SpecError

ACTIVITIES = ("starting", "running", "waiting", "make", "reset", "step", "finished", "failed")
Activity = Literal["starting", "running", "waiting", "make", "reset", "step", "finished", "failed"]
WAITS = (
    "samples", "slots", "inference", "policy_age", "ratio", "requests", "weights", "workers",
    "other",
)  # fmt: skip
COUNTERS = (
    "env_steps", "agent_steps", "episodes", "fragments", "requests", "rows", "updates",
    "minibatches", "policy_version", "lost_updates", "too_old_updates", "env_failures",
    "dropped_actions", "inserted", "sampled", "stored", "lost", "reprioritized",
)  # fmt: skip

_FIELDS = (
    "heartbeat_ns", "activity", "since_ns", "env_index", "busy_ns", "cpu_ns", "checkpoint",
    "saved_policy_version", "saved_env_steps",
    *(f"wait_{name}" for name in WAITS),
    *(f"count_{name}" for name in COUNTERS),
)  # fmt: skip
_INDEX = {name: i for i, name in enumerate(_FIELDS)}
_BUSY = _INDEX["busy_ns"]
_WAITS = slice(_INDEX[f"wait_{WAITS[0]}"], _INDEX[f"wait_{WAITS[-1]}"] + 1)
_COUNTERS = slice(_INDEX[f"count_{COUNTERS[0]}"], _INDEX[f"count_{COUNTERS[-1]}"] + 1)
_TIMES = (_INDEX["heartbeat_ns"], _INDEX["since_ns"])
ROW_BYTES = 8 * len(_FIELDS)
_LEAST = np.full(len(_FIELDS), -1, np.int64)
_MOST = np.array([MAX_COUNT if n.startswith("count_") else 1 << 62 for n in _FIELDS], np.int64)
"""Limits for a row from another host, so that sums over all workers do not overflow."""
_ACTIVITY_CODE = {name: i for i, name in enumerate(ACTIVITIES)}
_LEAST[_INDEX["activity"]], _MOST[_INDEX["activity"]] = 0, len(ACTIVITIES) - 1


class WorkerStats:
    """One worker's row. Writing a number costs about as much as setting an attribute."""

    def __init__(self, cells: memoryview) -> None:
        self._cells = cells

    def enter(self, activity: Activity, env_index: int = -1) -> None:
        """Sets the worker's next activity; the controller measures timeouts from here."""
        now = time.monotonic_ns()
        cells = self._cells
        cells[0] = now
        cells[2] = now
        cells[3] = env_index
        cells[1] = _ACTIVITY_CODE[activity]

    def beat(self) -> None:
        """Sets the heartbeat: the worker's loop is alive."""
        self._cells[0] = time.monotonic_ns()

    def worked(self, start_ns: int, end_ns: int) -> None:
        """Adds busy time, by the monotonic clock, and sets the heartbeat."""
        cells = self._cells
        cells[_BUSY] += end_ns - start_ns
        cells[0] = end_ns

    def add(self, field: str, amount: int) -> None:
        """Adds to a counter ("count_...") or timer ("busy_ns", "wait_...")."""
        self._cells[_INDEX[field]] += amount

    def set(self, field: str, value: int) -> None:
        """Sets any field."""
        self._cells[_INDEX[field]] = value

    def get(self, field: str) -> int:
        """Reads any field."""
        return int(self._cells[_INDEX[field]])

    def waits(self) -> dict[str, int]:
        """Nanoseconds of waiting, by reason."""
        return dict(zip(WAITS, self._cells[_WAITS].tolist(), strict=True))

    def counters(self) -> dict[str, int]:
        """All counters by their names."""
        return dict(zip(COUNTERS, self._cells[_COUNTERS].tolist(), strict=True))

    @property
    def activity(self) -> str:
        """The worker's current activity."""
        return ACTIVITIES[self.get("activity")]

    def dump(self) -> bytes:
        """The whole row as bytes, for the stats table of another host."""
        return bytes(self._cells)

    def load(self, row: bytes, shift_ns: int) -> None:
        """Takes over a row from another host, whose clock is `shift_ns` behind this one's.

        Raises a SpecError if `row` is not a valid row.
        """
        if len(row) != ROW_BYTES:
            raise SpecError(f"row: expected {ROW_BYTES} bytes, got {len(row)}.")
        cells = np.frombuffer(row, np.int64)
        if (cells < _LEAST).any() or (cells > _MOST).any():
            raise SpecError(f"row: expected a worker's times and counts, got {cells.tolist()}.")
        self._cells[:] = cells.data
        now = time.monotonic_ns()
        for field in _TIMES:
            self._cells[field] = min(max(0, self._cells[field] + shift_ns), now)

    @staticmethod
    def load_all(rows: list[WorkerStats], data: list[bytes], shift_ns: int) -> bool:
        """Loads many rows at once, which is faster; returns whether it did.

        If one of them is not valid, it changes nothing.
        """
        if any(len(row) != ROW_BYTES for row in data):
            return False
        cells = np.frombuffer(bytearray().join(data), np.int64).reshape(-1, len(_FIELDS))
        if (cells < _LEAST).any() or (cells > _MOST).any():
            return False
        for field in _TIMES:
            times = cells[:, field]
            np.clip(times + shift_ns, 0, time.monotonic_ns(), out=times)
        for row, new in zip(rows, cells, strict=True):
            row._cells[:] = new.data
        return True


class StatsTablePart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a stats table, for a process that writes a few of thousands of rows."""

    count: int
    """Number of rows in the whole table."""
    indices: dict[str, int]
    """The index of each worker's row."""


class StatsTable:
    """All rows (or some) of worker stats, and the two numbers that the controller writes."""

    def __init__(self, arena: Arena, workers: tuple[str, ...] | StatsTablePart) -> None:
        if not isinstance(workers, StatsTablePart):
            indices = {name: index for index, name in enumerate(workers)}
            workers = StatsTablePart(count=len(workers), indices=indices)
        width = len(_FIELDS)
        region = arena.region("worker_stats", 64 + 8 * width * workers.count)
        self._control = region[:64].view(np.int64).data
        cells = region[64:].view(np.int64).data
        self.rows = {
            name: WorkerStats(cells[index * width : (index + 1) * width])
            for name, index in workers.indices.items()
        }

    @property
    def stop(self) -> bool:
        """Whether all workers should finish."""
        return bool(self._control[0])

    @stop.setter
    def stop(self, value: bool) -> None:
        self._control[0] = int(value)

    @property
    def checkpoint(self) -> int:
        """The number of the checkpoint of which workers should write their parts; 0: none."""
        return int(self._control[1])

    @checkpoint.setter
    def checkpoint(self, number: int) -> None:
        self._control[1] = number
