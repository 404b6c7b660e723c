"""Several runs in one chart: seeds of an experiment as mean and band."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from srl.reporting.curves import GRID_POINTS, Array, group_runs, mean_and_spread
from srl.services.metric_names import columns
from srl.watch.history import History, encode
from srl.watch.runs import WatchedRun

PANELS = (
    ("episode_return_mean", "Episode return"),
    ("eval_return_mean", "Evaluation return"),
    ("env_steps_per_second", "Environment steps per second"),
    ("policy_age_mean", "Policy age (versions)"),
)
MAX_RUNS = 200
"""Most runs in one chart."""


def overlay(runs: list[WatchedRun]) -> list[dict[str, Any]]:
    """A chart for each of the metrics that all runs have, with a curve for each experiment (and
    policy)."""
    for run in runs:
        run.history.update()
    runs = [run for run in runs if len(run.history)]
    if not runs:
        return []
    by_path = {run.path: run for run in runs}
    groups = {
        name: [by_path[path] for path in paths] for name, paths in group_runs(list(by_path)).items()
    }
    last = max(run.history.columns["env_steps"][-1] for run in runs)
    grid = np.linspace(0.0, max(last, 1.0), GRID_POINTS)
    panels = []
    for key, title in PANELS:
        curves = [
            curve for name, members in groups.items() for curve in _curves(name, members, key, grid)
        ]
        if curves:
            panels.append({"key": key, "title": title, "x": encode(grid), "curves": curves})
    return panels


def _curves(name: str, members: list[WatchedRun], key: str, grid: Array) -> list[dict[str, Any]]:
    histories = [run.history for run in members]
    found = columns({column for history in histories for column in history.columns}, key)
    divided = {policy for policy, agents in found if agents}
    curves = []
    for (policy, agents), column in found.items():
        if policy in divided and not agents:
            continue
        series = [one for history in histories if len((one := _series(history, column))[0])]
        if not series:
            continue
        _, mean, spread = mean_and_spread(series, grid)
        owner = "/".join(part for part in (policy, agents) if part)
        curve = {
            "label": f"{name} {owner}".strip(),
            "runs": [run.name for run in members],
            "mean": encode(mean),
        }
        if len(series) > 1:
            curve |= {"low": encode(mean - spread), "high": encode(mean + spread)}
        curves.append(curve)
    return curves


def _series(history: History, key: str) -> tuple[Array, Array]:
    if "eval_" in key:
        points = [(steps, line.get(key)) for steps, line in history.evaluations]
        known = [(s, v) for s, v in points if v is not None and math.isfinite(v)]
        return np.array([s for s, _ in known], float), np.array([v for _, v in known], float)
    return history.series(key)
