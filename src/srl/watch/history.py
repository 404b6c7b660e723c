"""The history of a run's metrics, read as it grows: only new lines, and at a bounded length."""

from __future__ import annotations

import math
from array import array
from pathlib import Path

import msgspec
import numpy as np

from srl.errors import SrlError
from srl.files import read_part
from srl.reporting.curves import Array
from srl.services.metrics import MAX_LINE_BYTES, METRICS_FILE, decode_line

MAX_POINTS = 1000
"""Of a longer history every second line is left out, again and again."""
MAX_METRICS = 5000
"""Metrics beyond these are not read: the file may be another user's."""
_LEFT_OUT = ("worker_seconds.", "time")
_CHUNK_BYTES = 1 << 22
_TAIL_BYTES = 1 << 16

Line = dict[str, float | int | bool | None]


class History:
    """The metrics of one run, column by column."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / METRICS_FILE
        self._inode = 0
        self.generation = 0
        """Grows when points that were there have changed."""
        self._clear()

    def _clear(self) -> None:
        self._offset = 0
        self._rest = b""
        """The beginning of a line whose end is not written yet."""
        self._stride = 1
        self._seen = 0
        self.last: Line = {}
        self.columns: dict[str, array[float]] = {}
        self.evaluations: list[tuple[int, Line]] = []
        """Environment steps of each new evaluation, and its metrics."""
        self._versions: list[float | None] = []
        self._keys: list[str] = []
        """The keys of the last line. Most lines have the same, in the same order."""
        self._targets: list[array[float] | None] = []
        self._absent: list[array[float]] = []
        """Columns that the last line has no value for."""
        self._version_keys: list[str] = []

    def __len__(self) -> int:
        return len(self.columns.get("env_steps", ()))

    def update(self) -> bool:
        """Reads what is new; returns whether there was something."""
        before = (self.generation, self._offset)
        try:
            while self._read_chunk():
                pass
        except (OSError, SrlError):
            # No metrics yet, or a file that is none.
            return False
        return before != (self.generation, self._offset)

    def _read_chunk(self) -> bool:
        """Reads one more part of the file; returns whether there may be more."""
        data, size, inode = read_part(self._path, self._offset, _CHUNK_BYTES)
        if inode != self._inode or size < self._offset:
            self._clear()
            self._inode = inode
            self.generation += 1
            return True
        if self._offset == 0 and data:
            # Most of a long history is left out, so it is not even decoded.
            lines = size / max(1, data.find(b"\n") + 1)
            self._stride = max(1, 2 ** math.ceil(math.log2(max(1.0, lines / MAX_POINTS))))
        self._offset += len(data)
        *complete, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE_BYTES:
            self._rest = b""
        for raw in complete:
            self._seen += 1
            if self._seen % self._stride == 0 and (line := decode_line(raw)) is not None:
                self._add(line)
        if complete and (line := decode_line(complete[-1])) is not None:
            self.last = line
        return len(data) == _CHUNK_BYTES

    def _add(self, line: Line) -> None:
        steps = self.columns.setdefault("env_steps", array("d"))
        while steps and steps[-1] > line["env_steps"]:  # type: ignore[operator]
            # A resumed run starts from before the last line.
            self.generation += 1
            for column in self.columns.values():
                column.pop()
        while self.evaluations and self.evaluations[-1][0] > line["env_steps"]:  # type: ignore[operator]
            self.evaluations.pop()
        count = len(steps)
        if list(line) != self._keys:
            self._learn_keys(line, count)
        for target, value in zip(self._targets, line.values(), strict=True):
            if target is not None:
                target.append(math.nan if value is None else value)
        for column in self._absent:
            column.append(math.nan)
        versions = [line[key] for key in self._version_keys]
        if versions and versions != self._versions:
            self._versions = versions
            found = {key: value for key, value in line.items() if "eval_" in key}
            self.evaluations.append((int(line["env_steps"] or 0), found))
        if count + 1 > 2 * MAX_POINTS:
            self._thin_out()

    def _learn_keys(self, line: Line, count: int) -> None:
        """Finds the column of each value of this line and of those with the same keys."""
        self._keys = list(line)
        for key in self._keys:
            if key in self.columns or key.startswith(_LEFT_OUT):
                continue
            if len(self.columns) < MAX_METRICS:
                self.columns[key] = array("d", [math.nan]) * count
        self._targets = [self.columns.get(key) for key in self._keys]
        self._absent = [column for key, column in self.columns.items() if key not in line]
        self._version_keys = [key for key in self._keys if key.endswith("eval_policy_version")]

    def _thin_out(self) -> None:
        self._stride *= 2
        self.generation += 1
        for column in self.columns.values():
            column[:] = column[::2]

    def series(self, key: str) -> tuple[Array, Array]:
        """Steps and values of a metric, where it has values."""
        steps = np.array(self.columns.get("env_steps", ()), float)
        values = np.array(self.columns.get(key, ()), float)
        if not len(values):
            return np.empty(0), np.empty(0)
        known = np.isfinite(values)
        return steps[known], values[known]


def last_line(run_dir: Path) -> Line:
    """The last line of a run's metrics; empty if there is none."""
    try:
        data, _, _ = read_part(run_dir / METRICS_FILE, -_TAIL_BYTES, _TAIL_BYTES)
    except (OSError, SrlError):
        return {}
    for raw in reversed(data.split(b"\n")[:-1]):
        line = decode_line(raw)
        if line is not None:
            return line
    return {}


def encode(values: Array | array[float]) -> msgspec.Raw:
    """Numbers as JSON, five digits of each; what is not finite is null."""
    texts = (f"{value:.6g}" if math.isfinite(value) else "null" for value in values)
    return msgspec.Raw(("[" + ",".join(texts) + "]").encode())
