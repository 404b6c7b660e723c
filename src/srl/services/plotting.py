"""A picture of runs: return, throughput and policy age over environment steps."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from srl.errors import RunError
from srl.services.metrics import read_metrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Colours that people with any colour vision can tell apart (Okabe and Ito).
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_PANELS = (
    ("episode_return_mean", "episode return\n(mean of the last episodes)"),
    ("env_steps_per_second", "throughput\n(environment steps / s)"),
    ("policy_age_mean", "policy age\n(versions)"),
)
_SEED = re.compile(r"[-_. ]?\bseed[-_=. ]?\d+|[-_. ]s\d+$")
_OWN_SETTING = re.compile(r"\s*(seed|run_dir)\s*:")
_GRID_POINTS = 300

Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class _Curve:
    """One line of one panel: the runs (seeds) behind it, each as steps and values."""

    label: str
    runs: list[tuple[Array, Array]]


def plot_runs(run_dirs: Sequence[Path], output: Path) -> Path:
    """Draws runs over each other into a PNG; seeds of one experiment become a mean with a band.

    Runs belong together where their config.yaml differs in nothing but the seed, or, without one,
    where their folders' names do.
    """
    if not run_dirs:
        raise RunError("plot: expected at least one run directory, got none.")
    groups = _group(run_dirs)
    lines = {path: read_metrics(path) for path in run_dirs}
    empty = [path for path in run_dirs if not lines[path]]
    if empty:
        raise RunError(f"{empty[0]}: expected measurements, got none yet. Let the run go on a bit.")

    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 9.0), dpi=130, layout="constrained")
    panels = figure.subplots(len(_PANELS), 1, sharex=True, height_ratios=(1.6, 1, 1))
    colours = _Colours()
    for panel, (key, title) in zip(panels, _PANELS, strict=True):
        for curve in _curves(groups, lines, key):
            _draw(panel, curve, colours.of(curve.label))
        _dress(panel, key, title)
    _draw_evaluations(panels[0], groups, lines, colours)
    panels[-1].set_xlabel("environment steps")
    panels[-1].set_xlim(left=0)
    figure.align_ylabels(panels)
    handles, labels = panels[0].get_legend_handles_labels()
    if len(labels) > 1:
        panels[0].legend(handles, labels, frameon=False, fontsize=9, loc="best")
    figure.suptitle(" · ".join(groups) if len(groups) <= 3 else f"{len(groups)} experiments")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(output, format="png")
    except OSError as error:
        raise RunError(f"{output}: cannot write the plot ({error.strerror or error}).") from error
    return output


class _Colours:
    """The same label has the same colour in every panel."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def of(self, label: str) -> str:
        return self._known.setdefault(label, _COLOURS[len(self._known) % len(_COLOURS)])


def _group(run_dirs: Sequence[Path]) -> dict[str, list[Path]]:
    """Runs of one experiment under one name."""
    by_key: dict[str, list[Path]] = {}
    for path in run_dirs:
        by_key.setdefault(_experiment(path), []).append(path)
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


def _experiment(path: Path) -> str:
    """What runs of the same experiment share: all settings but the seed."""
    try:
        lines = (path / "config.yaml").read_text().splitlines()
    except OSError:
        return _SEED.sub("", str(path.resolve()))
    return "\n".join(line for line in lines if not _OWN_SETTING.match(line))


def _curves(
    groups: dict[str, list[Path]], lines: dict[Path, list[dict[str, Any]]], key: str
) -> list[_Curve]:
    """A curve for each experiment, or for each of its policies where it has several."""
    curves = []
    for name, paths in groups.items():
        policies = sorted(
            {
                found[9 : -len(key) - 1]
                for path in paths
                for found in (lines[path] or [{}])[-1]
                if found.startswith("policies.") and found.endswith(f".{key}")
            }
        )
        keys = {policy: f"policies.{policy}.{key}" for policy in policies} or {"": key}
        for policy, column in keys.items():
            label = " ".join((name, policy)).strip() if len(groups) > 1 else policy or "training"
            runs = [_series(lines[path], column) for path in paths]
            runs = [run for run in runs if len(run[0])]
            if runs:
                curves.append(_Curve(label, runs))
    return curves


def _series(lines: list[dict[str, Any]], key: str) -> tuple[Array, Array]:
    """Steps and values, one for each number of steps (the last)."""
    points = {line["env_steps"]: line[key] for line in lines if line.get(key) is not None}
    return np.array(list(points), float), np.array(list(points.values()), float)


def _draw(panel: Axes, curve: _Curve, colour: str) -> None:
    if len(curve.runs) == 1:
        steps, values = curve.runs[0]
        marker = "o" if len(steps) == 1 else None
        panel.plot(steps, values, color=colour, lw=1.6, label=curve.label, marker=marker)
        return
    steps, mean, spread = _mean_and_spread(curve.runs)
    alone = "o" if any(len(s) == 1 for s, _ in curve.runs) else None
    panel.plot(steps, mean, color=colour, lw=1.8, label=curve.label, marker=alone, ms=3)
    panel.fill_between(steps, mean - spread, mean + spread, color=colour, alpha=0.18, lw=0)


def _mean_and_spread(runs: list[tuple[Array, Array]]) -> tuple[Array, Array, Array]:
    """Mean and standard deviation over seeds on common steps, each seed only as far as it went; NaN
    where none is."""
    grid = np.linspace(min(s[0] for s, _ in runs), max(s[-1] for s, _ in runs), _GRID_POINTS)
    inside = np.array([(grid >= s[0]) & (grid <= s[-1]) for s, _ in runs])
    values = np.array([np.interp(grid, s, v) for s, v in runs])
    count = np.where(inside.any(0), inside.sum(0), np.nan)
    mean = np.where(inside, values, 0.0).sum(0) / count
    variance = np.where(inside, (values - mean) ** 2, 0.0).sum(0) / count
    return grid, mean, np.sqrt(variance)


def _draw_evaluations(
    panel: Axes,
    groups: dict[str, list[Path]],
    lines: dict[Path, list[dict[str, Any]]],
    colours: _Colours,
) -> None:
    """Evaluations are points, because they are few and of fixed weights."""
    fresh = {path: _fresh_evaluations(run) for path, run in lines.items()}
    for curve in _curves(groups, fresh, "eval_return_mean"):
        colour = colours.of(curve.label)
        label = "evaluation" if curve.label == "training" else f"{curve.label}, evaluation"
        for steps, values in curve.runs:
            panel.plot(steps, values, "o", ms=4, mfc="white", color=colour, label=label)
            label = "_"  # The legend leaves out what starts with an underscore.


def _fresh_evaluations(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The lines that bring an evaluation: later ones repeat it until there is a newer version."""
    fresh, last = [], None
    for line in lines:
        versions = {k: v for k, v in line.items() if k.endswith("eval_policy_version")}
        if versions and versions != last:
            fresh.append(line)
            last = versions
    return fresh


def _dress(panel: Axes, key: str, title: str) -> None:
    from matplotlib.ticker import EngFormatter

    panel.set_ylabel(title)
    panel.grid(alpha=0.25, lw=0.6)
    panel.spines[["top", "right"]].set_visible(False)
    panel.xaxis.set_major_formatter(EngFormatter(sep=""))
    panel.margins(x=0.01)
    if key != "episode_return_mean":
        panel.set_ylim(bottom=0)
    if key == "policy_age_mean":
        panel.set_ylim(top=max(1.0, panel.get_ylim()[1]))
    else:
        panel.yaxis.set_major_formatter(EngFormatter(sep=""))
