"""The metrics of a run as arrays, or as a frame of pandas or polars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from srl.errors import ConfigError
from srl.extras import import_extra

Frame = Literal["pandas", "polars"]
FRAMES = ("pandas", "polars")
Columns = dict[str, np.ndarray[Any, Any]]


def columns_of(lines: Sequence[Mapping[str, Any]]) -> Columns:
    """One array for each metric, all of the same length: a value for each line of metrics.jsonl.

    Whole numbers are int64 and truth values are bool where every line has one; all else is float64,
    with NaN where a line has no value.
    """
    names = dict.fromkeys(key for line in lines for key in line)
    return {name: _column([line.get(name) for line in lines]) for name in names}


def _column(values: list[Any]) -> np.ndarray[Any, Any]:
    kinds = {type(value) for value in values}
    if kinds == {bool}:
        return np.array(values, bool)
    if kinds == {int}:
        return np.array(values, np.int64)
    return np.array([np.nan if value is None else float(value) for value in values])


def frame_of(columns: Columns, frame: Frame) -> Any:
    """The columns as a frame of an optional package."""
    if frame not in FRAMES:
        raise ConfigError(f"run.metrics: expected frame pandas or polars, got {frame!r}.")
    package = import_extra(frame, f"run.metrics(frame={frame!r})")
    return package.DataFrame(columns)
