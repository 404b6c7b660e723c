"""Runs side by side: which of them are seeds of one experiment, and the mean over seeds."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from srl.files import read_limited
from srl.settings import MAX_CONFIG_BYTES

_SEED = re.compile(r"[-_. ]?\bseed[-_=. ]?\d+|[-_. ]s\d+$")
_RUN_SETTING = re.compile(r"\s*(seed|run_dir)\s*:")
GRID_POINTS = 300

Array = np.ndarray[Any, np.dtype[np.float64]]


def group_runs(run_dirs: Sequence[Path]) -> dict[str, list[Path]]:
    """Groups runs by experiment: a name for each, with its runs."""
    by_key: dict[str, list[Path]] = {}
    for path in run_dirs:
        by_key.setdefault(experiment_of(path), []).append(path)
    common = os.path.commonpath([path.resolve().parent for path in run_dirs])
    names: dict[str, list[Path]] = {}
    for paths in by_key.values():
        short = os.path.relpath(paths[0].resolve(), common)
        name = _SEED.sub("", short).strip("/._- ") if len(paths) > 1 else short
        name = name or paths[0].resolve().parent.name
        if len(paths) > 1:
            name += f" ({len(paths)} seeds)"
        while name in names:
            name += "'"
        names[name] = paths
    return names


def experiment_of(path: Path) -> str:
    """The text that runs of one experiment share: all settings but seed and run directory."""
    try:
        text = read_limited(path / "config.yaml", MAX_CONFIG_BYTES).decode(errors="replace")
        lines = text.splitlines()
    except OSError:
        return _SEED.sub("", str(path.resolve()))
    return "\n".join(line for line in lines if not _RUN_SETTING.match(line))


def mean_and_spread(
    runs: Sequence[tuple[Array, Array]], grid: Array | None = None
) -> tuple[Array, Array, Array]:
    """Mean and standard deviation over seeds, at common steps: those of `grid`, or of one of its
    own.

    Each seed counts only up to its own last step; steps that no seed has are NaN.
    """
    if grid is None:
        ends = min(s[0] for s, _ in runs), max(s[-1] for s, _ in runs)
        grid = np.linspace(*ends, GRID_POINTS)
    inside = np.array([(grid >= s[0]) & (grid <= s[-1]) for s, _ in runs])
    values = np.array([np.interp(grid, s, v) for s, v in runs])
    count = np.where(inside.any(0), inside.sum(0), np.nan)
    mean = np.where(inside, values, 0.0).sum(0) / count
    variance = np.where(inside, (values - mean) ** 2, 0.0).sum(0) / count
    return grid, mean, np.sqrt(variance)
