"""The board: what every worker is doing and has done, where the controller can read it even after a
death.

Each worker has a row of numbers that its own loop writes: heartbeat, the call it is in, busy and
waiting time, counters. The controller writes two numbers for all to read: stop, and the checkpoint
that is asked for.
"""

from __future__ import annotations

import time
from typing import Literal

import msgspec
import numpy as np

from srl.arena.arena import Arena
from srl.data.counts import MOST
from srl.errors import SpecError

ACTIVITIES = ("starting", "running", "waiting", "make", "reset", "step", "finished", "failed")
Activity = Literal["starting", "running", "waiting", "make", "reset", "step", "finished", "failed"]
WAITS = (
    "samples", "slots", "inference", "policy_age", "requests", "weights", "workers", "other",
)  # fmt: skip
COUNTERS = (
    "env_steps", "agent_steps", "episodes", "fragments", "requests", "rows", "updates",
    "minibatches", "policy_version", "lost_updates", "env_failures",
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
_MOST = np.array([MOST if n.startswith("count_") else 1 << 62 for n in _FIELDS], np.int64)
"""What a row from elsewhere may hold, so that sums over all workers can be held, too."""
_ACTIVITY_CODE = {name: i for i, name in enumerate(ACTIVITIES)}
_LEAST[_INDEX["activity"]], _MOST[_INDEX["activity"]] = 0, len(ACTIVITIES) - 1


class BoardRow:
    """One worker's row. Writing a number costs about as much as setting an attribute."""

    def __init__(self, cells: memoryview) -> None:
        self._cells = cells

    def enter(self, activity: Activity, env_index: int = -1) -> None:
        """Says what the worker is about to do; the controller measures timeouts from here."""
        now = time.monotonic_ns()
        cells = self._cells
        cells[0] = now
        cells[2] = now
        cells[3] = env_index
        cells[1] = _ACTIVITY_CODE[activity]

    def beat(self) -> None:
        """Says that the worker's loop is alive."""
        self._cells[0] = time.monotonic_ns()

    def worked(self, start_ns: int, end_ns: int) -> None:
        """Counts time at work, by the monotonic clock, and says that the loop is alive."""
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
        """Nanoseconds by what was waited for."""
        return dict(zip(WAITS, self._cells[_WAITS].tolist(), strict=True))

    def counters(self) -> dict[str, int]:
        """All counters by their names."""
        return dict(zip(COUNTERS, self._cells[_COUNTERS].tolist(), strict=True))

    @property
    def activity(self) -> str:
        """What the worker said it is doing."""
        return ACTIVITIES[self.get("activity")]

    def dump(self) -> bytes:
        """The whole row, for a board on another host."""
        return bytes(self._cells)

    def load(self, row: bytes, shift_ns: int) -> None:
        """Takes over a row from another host, whose clock is `shift_ns` behind this one's.
        SpecError if it is none."""
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
    def load_all(rows: list[BoardRow], data: list[bytes], shift_ns: int) -> bool:
        """Loads many rows at once, which takes a part of the time; False, with nothing done, if one
        of them is none."""
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


class BoardPart(msgspec.Struct, frozen=True, kw_only=True):
    """Some of a board's rows: what a process needs that writes a few of thousands."""

    count: int
    """How many rows the board has."""
    places: dict[str, int]
    """Workers, and which row is whose."""


class Board:
    """All rows (or some), and the two numbers that the controller writes."""

    def __init__(self, arena: Arena, workers: tuple[str, ...] | BoardPart) -> None:
        if not isinstance(workers, BoardPart):
            places = {name: place for place, name in enumerate(workers)}
            workers = BoardPart(count=len(workers), places=places)
        width = len(_FIELDS)
        region = arena.region("board", 64 + 8 * width * workers.count)
        self._orders = region[:64].view(np.int64).data
        cells = region[64:].view(np.int64).data
        self.rows = {
            name: BoardRow(cells[place * width : (place + 1) * width])
            for name, place in workers.places.items()
        }

    @property
    def stop(self) -> bool:
        """Whether all workers should finish."""
        return bool(self._orders[0])

    @stop.setter
    def stop(self, value: bool) -> None:
        self._orders[0] = int(value)

    @property
    def checkpoint(self) -> int:
        """The number of the checkpoint that workers should write their part of; 0 is none."""
        return int(self._orders[1])

    @checkpoint.setter
    def checkpoint(self, number: int) -> None:
        self._orders[1] = number
