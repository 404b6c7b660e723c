"""Compares groups of runs of one task: several seeds of each, with intervals.

Reads settings and metrics of the runs only, and imports nothing that they name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from srl.errors import ConfigError, RunError, nearest
from srl.experiment import Experiment
from srl.launch.directory.run_dir import CONFIG_FILE, RunDir
from srl.launch.plan.build import metric_names
from srl.reporting.comparison_plot import GroupResult, draw_comparison
from srl.reporting.seed_statistics import (
    Array,
    Bootstrap,
    Interval,
    curve_at,
    interquartile_mean,
    probability_of_improvement,
)
from srl.services.metrics import read_metrics
from srl.services.until import metric_key

GRID_POINTS = 100
_DEFAULT_METRICS = ("eval_return", "return")
"""The first of these that all runs have."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Groups of runs of one task, compared by one metric."""

    task: str
    metric: str
    at_steps: int
    """Environment steps at which scores were taken: all runs have come so far."""
    grid: Array
    """Environment steps of the curves."""
    groups: tuple[GroupResult, ...]

    def table(self) -> str:
        """The result as text."""
        width = max(5, *(len(group.name) for group in self.groups))
        head = (
            f"{'group':<{width}}  runs       IQM  95 % interval          mean       min       max"
        )
        lines = [f"{self.metric} of {self.task} at {self.at_steps:,} environment steps", "", head]
        for group in self.groups:
            scores = group.scores
            more = "".join(f"{f(scores):>10.4g}" for f in (np.mean, np.min, np.max))
            count = len(group.runs)
            interval = _shown(group.iqm_interval)
            lines.append(f"{group.name:<{width}}  {count:>4}{group.iqm:>10.4g}  {interval}{more}")
        first = self.groups[0].name
        lines.append("")
        for group in self.groups[1:]:
            assert group.better is not None
            interval = _shown(group.better_interval)
            lines.append(
                f"{group.name} better than {first}: probability {group.better:.2f}  {interval}"
            )
        alone = [group.name for group in self.groups if len(group.runs) == 1]
        if alone:
            lines.append(
                f"one run says nothing about chance ({', '.join(alone)}): train several seeds "
                "with --seeds"
            )
        return "\n".join(line.rstrip() for line in lines)

    def plot(self, output: str | Path) -> Path:
        """Draws curves, means and probabilities into a PNG file, and returns it."""
        titles = {"task": self.task, "metric": self.metric}
        return draw_comparison(self.groups, self.grid, titles, Path(output))

    def record(self) -> dict[str, Any]:
        """The result as plain values, for JSON."""
        groups = {
            group.name: {
                "runs": [str(path) for path in group.runs],
                "scores": group.scores.tolist(),
                "iqm": group.iqm,
                "iqm_interval": _known(group.iqm_interval),
                "better": group.better,
                "better_interval": _known(group.better_interval),
            }
            for group in self.groups
        }
        return {
            "task": self.task,
            "metric": self.metric,
            "at_steps": self.at_steps,
            "groups": groups,
        }


def compare(
    *groups: str | Path | Sequence[str | Path],
    metric: str = "",
    at: int | None = None,
    names: Sequence[str] | None = None,
) -> Comparison:
    """Compares groups of runs: each is a run, a folder of runs, or a list of these.

    `metric` is named as for `until`: `return`, `eval_return`, `return/POLICY`, `train.loss`; the
    default is `eval_return` if all runs have it, else `return`. Scores are those at `at`
    environment steps, by default as many as all runs have.
    """
    if len(groups) < 2:
        raise ConfigError(f"compare: expected at least two groups of runs, got {len(groups)}.")
    found = [_runs_of(group) for group in groups]
    shown = list(names or _names(found))
    experiments = {path: RunDir(path).read_config() for paths in found for path in paths}
    task = _one_task(experiments)
    lines = {path: read_metrics(path) for path in experiments}
    metric, curves = _curves(experiments, lines, metric)
    reached = int(min(steps[-1] for steps, _ in curves.values()))
    if at is not None and not 0 < at <= reached:
        raise ConfigError(
            f"compare: expected scores at 1 to {reached:,} environment steps, which all runs have "
            f"reached, got {at:,}."
        )
    grid = np.linspace(0, max(steps[-1] for steps, _ in curves.values()), GRID_POINTS)
    bootstrap = Bootstrap()
    results: list[GroupResult] = []
    for name, paths in zip(shown, found, strict=True):
        first = results[0].scores if results else None
        own = {path: curves[path] for path in paths}
        results.append(_result(name, own, at or reached, grid, first, bootstrap))
    return Comparison(
        task=task, metric=metric, at_steps=at or reached, grid=grid, groups=tuple(results)
    )


def _result(
    name: str,
    curves: Mapping[Path, tuple[Array, Array]],
    at: int,
    grid: Array,
    first: Array | None,
    bootstrap: Bootstrap,
) -> GroupResult:
    """The statistics of one group; `first` has the scores of the group it is compared with."""
    scores = np.array([np.interp(at, steps, values) for steps, values in curves.values()])
    each = np.array([curve_at(steps, values, grid) for steps, values in curves.values()])
    known = ~np.isnan(each).any(axis=0)
    low, high = np.full((2, len(grid)), np.nan)
    if known.any():
        low[known], high[known] = bootstrap.interval(interquartile_mean, each[:, known])
    better, better_interval = None, None
    if first is not None:
        better = float(probability_of_improvement(first, scores))
        better_interval = _pair(bootstrap.interval(probability_of_improvement, first, scores))
    return GroupResult(
        name=name,
        runs=tuple(curves),
        scores=scores,
        iqm=float(interquartile_mean(scores)),
        iqm_interval=_pair(bootstrap.interval(interquartile_mean, scores)),
        curve=interquartile_mean(each),
        curve_low=low,
        curve_high=high,
        better=better,
        better_interval=better_interval,
    )


def _pair(interval: tuple[Array, Array]) -> Interval:
    return float(interval[0]), float(interval[1])


def _known(interval: Interval | None) -> list[float] | None:
    return None if interval is None else list(interval)


def _shown(interval: Interval | None) -> str:
    return "" if interval is None else f"{f'[{interval[0]:.4g}, {interval[1]:.4g}]':<19}"


def _runs_of(group: str | Path | Sequence[str | Path]) -> list[Path]:
    """The runs of a group; folders stand for the runs in them."""
    if not isinstance(group, str | Path):
        found = [path for one in group for path in _runs_of(one)]
        return list(dict.fromkeys(found))
    path = Path(group)
    if (path / CONFIG_FILE).exists():
        return [path]
    inside = sorted(
        {file.parent for depth in ("*", "*/*") for file in path.glob(f"{depth}/{CONFIG_FILE}")}
    )
    if not inside:
        raise RunError(
            f"{path}: expected a run, or a folder of runs, got none (no {CONFIG_FILE} in it). Give "
            "the folder that `srl train` printed."
        )
    return inside


def _names(groups: Sequence[Sequence[Path]]) -> list[str]:
    """A short name for each group, from the folders of its runs."""
    paths = [runs[0] if len(runs) == 1 else runs[0].parent for runs in groups]
    names = [path.resolve().name for path in paths]
    if len(set(names)) < len(names):
        names = [str(path) for path in paths]
    return [name if names.count(name) == 1 else f"{name} {i}" for i, name in enumerate(names, 1)]


def _one_task(experiments: Mapping[Path, Experiment]) -> str:
    """The environment of all runs; raises if there are several."""
    tasks: dict[str, Path] = {}
    for path, experiment in experiments.items():
        env = experiment.env
        arguments = f" {json.dumps(env.args, sort_keys=True)}" if env.args else ""
        tasks.setdefault(f"{env.id}{arguments}", path)
    if len(tasks) > 1:
        (one, its), (other, others), *_ = tasks.items()
        raise ConfigError(
            f"compare: expected runs of one task, got {one} ({its}) and {other} ({others}). "
            "Compare runs of the same environment with the same arguments."
        )
    return next(iter(tasks))


def _curves(
    experiments: Mapping[Path, Experiment], lines: Mapping[Path, list[dict[str, Any]]], metric: str
) -> tuple[str, dict[Path, tuple[Array, Array]]]:
    """The name of the metric that is compared, and its curve in each run."""
    for name in (metric,) if metric else _DEFAULT_METRICS:
        keys = {path: _key(name, experiment) for path, experiment in experiments.items()}
        found = {path: _series(lines[path], key) for path, key in keys.items()}
        missing = [path for path, (steps, _) in found.items() if not len(steps)]
        if not missing:
            return next(iter(keys.values())), found
    known = sorted({key for run in lines.values() for key in (run or [{}])[-1]})
    hint = nearest(next(iter(keys.values())), known).replace("see `srl list`", "see metrics.jsonl")
    raise RunError(f"{missing[0]}: expected values of {name!r} in metrics.jsonl, got none: {hint}")


def _key(name: str, experiment: Experiment) -> str:
    """A metric's key in metrics.jsonl, from its name as for `until`."""
    metric, _, whose = name.partition("/")
    names = metric_names(experiment.policies, None)
    return metric_key(metric, whose, names, "--metric")


def _series(lines: Sequence[Mapping[str, Any]], key: str) -> tuple[Array, Array]:
    """Steps and values of a metric; of several values at the same steps, the last one."""
    points = {line["env_steps"]: line[key] for line in lines if line.get(key) is not None}
    return np.array(list(points), float), np.array(list(points.values()), float)
