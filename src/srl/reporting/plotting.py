"""Plots of runs over environment steps: return, throughput, policy age, and what the environment
itself reports about its episodes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from srl.errors import RunError, printable
from srl.reporting.curves import Array, group_runs, mean_and_spread
from srl.services.metric_names import columns
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
_ROWS = 5
"""Panels below each other of what environments report."""
_MAX_REPORTED = 20
"""Most of these panels; what an environment reports beyond them is left out."""
_REPORTED = re.compile(r"(?:^|\.)(episode\.[^.]+)$")
"""The name of a metric that an environment declares, at the end of its key."""


@dataclass(frozen=True)
class _Curve:
    """One line of one panel: its runs (seeds), each as steps and values."""

    label: str
    runs: list[tuple[Array, Array]]


def plot_runs(run_dirs: Sequence[Path], output: Path) -> Path:
    """Draws runs into one PNG. Seeds of one experiment become a mean with a band.

    Runs are of one experiment if their config.yaml files differ only in the seed and the run
    directory. A run without this file is grouped by its folder's name without the seed.
    """
    if not run_dirs:
        raise RunError("plot: expected at least one run directory, got none.")
    groups = group_runs(run_dirs)
    lines = {path: read_metrics(path) for path in run_dirs}
    empty = [path for path in run_dirs if not lines[path]]
    if empty:
        raise RunError(f"{empty[0]}: expected measurements, got none yet. Let the run go on a bit.")

    from matplotlib.figure import Figure

    reported = _reported(lines)
    more = -(-len(reported) // _ROWS)
    figure = Figure(figsize=(8.0 + 4.0 * more, 9.0), dpi=130, layout="constrained")
    left: Any = figure
    right: Any = None
    colours = _Colours()
    if more:
        parts: Any = figure.subfigures(1, 2, width_ratios=(8, 4 * more))
        left, right = parts
    panels = left.subplots(len(_PANELS), 1, sharex=True, height_ratios=(1.6, 1, 1))
    for panel, (key, title) in zip(panels, _PANELS, strict=True):
        for curve in _curves(groups, lines, key):
            _draw(panel, curve, colours.of(curve.label))
        _style(panel, key, title)
    _draw_evaluations(panels[0], groups, lines, colours)
    panels[-1].set_xlabel("environment steps")
    panels[-1].set_xlim(left=0)
    left.align_ylabels(panels)
    if more:
        _draw_reported(right, reported, more, groups, lines, colours)
    handles, labels = panels[0].get_legend_handles_labels()
    if len(labels) > 1:
        panels[0].legend(handles, labels, frameon=False, fontsize=9, loc="best")
    title = " · ".join(groups) if len(groups) <= 3 else f"{len(groups)} experiments"
    figure.suptitle(_escaped(title))
    try:
        if output.is_symlink() and output.parent in run_dirs:
            raise RunError(f"{output}: expected no link in a run's folder. Give another --output.")
        output.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(output, format="png")
    except OSError as error:
        raise RunError(f"{output}: cannot write the plot ({error.strerror or error}).") from error
    return output


def _reported(lines: dict[Path, list[dict[str, Any]]]) -> list[str]:
    """The metrics that environments declare, in the order of their declaration."""
    keys = [
        match[1] for run in lines.values() for key in run[-1] if (match := _REPORTED.search(key))
    ]
    return list(dict.fromkeys(keys))[:_MAX_REPORTED]


def _draw_reported(
    part: Any,
    keys: list[str],
    num_columns: int,
    groups: dict[str, list[Path]],
    lines: dict[Path, list[dict[str, Any]]],
    colours: _Colours,
) -> None:
    """Draws a small panel for each metric of the environment, column by column."""
    panels = part.subplots(_ROWS, num_columns, sharex=True, squeeze=False)
    spots = panels.T.reshape(-1)
    for panel, key in zip(spots, keys, strict=False):
        for curve in _curves(groups, lines, key):
            _draw(panel, curve, colours.of(curve.label))
        _style(panel, key, "")
        panel.set_title(_escaped(key.partition(".")[2].replace("_", " ")), fontsize=9)
    for panel in spots[len(keys) :]:
        panel.set_visible(False)
    panels[0, 0].set_xlim(left=0)


def _escaped(text: str) -> str:
    """Escapes a name, because matplotlib reads text between dollar signs as a formula."""
    return printable(text).replace("$", r"\$")


class _Colours:
    """Gives each label one colour, the same in every panel."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def of(self, label: str) -> str:
        return self._known.setdefault(label, _COLOURS[len(self._known) % len(_COLOURS)])


def _curves(
    groups: dict[str, list[Path]], lines: dict[Path, list[dict[str, Any]]], key: str
) -> list[_Curve]:
    """The curves of a metric, one for each experiment.

    An experiment with several policies has one for each policy, and a policy that plays several
    sides has one for each side.
    """
    curves = []
    for name, paths in groups.items():
        found = columns({column for path in paths for column in (lines[path] or [{}])[-1]}, key)
        divided = {policy for policy, agents in found if agents}
        for (policy, agents), column in found.items():
            if policy in divided and not agents:
                continue
            owner = "/".join(part for part in (policy, agents) if part)
            label = " ".join((name, owner)).strip() if len(groups) > 1 else owner or "training"
            label = _escaped(label)
            runs = [_series(lines[path], column) for path in paths]
            runs = [run for run in runs if len(run[0])]
            if runs:
                curves.append(_Curve(label, runs))
    return curves


def _series(lines: list[dict[str, Any]], key: str) -> tuple[Array, Array]:
    """Steps and values of a metric; of several values at the same steps, the last one."""
    points = {line["env_steps"]: line[key] for line in lines if line.get(key) is not None}
    return np.array(list(points), float), np.array(list(points.values()), float)


def _draw(panel: Axes, curve: _Curve, colour: str) -> None:
    if len(curve.runs) == 1:
        steps, values = curve.runs[0]
        marker = "o" if len(steps) == 1 else None
        panel.plot(steps, values, color=colour, lw=1.6, label=curve.label, marker=marker)
        return
    steps, mean, spread = mean_and_spread(curve.runs)
    alone = "o" if any(len(s) == 1 for s, _ in curve.runs) else None
    panel.plot(steps, mean, color=colour, lw=1.8, label=curve.label, marker=alone, ms=3)
    panel.fill_between(steps, mean - spread, mean + spread, color=colour, alpha=0.18, lw=0)


def _draw_evaluations(
    panel: Axes,
    groups: dict[str, list[Path]],
    lines: dict[Path, list[dict[str, Any]]],
    colours: _Colours,
) -> None:
    """Draws evaluations as points, because they are few and of fixed weights."""
    fresh = {path: _fresh_evaluations(run) for path, run in lines.items()}
    for curve in _curves(groups, fresh, "eval_return_mean"):
        colour = colours.of(curve.label)
        label = "evaluation" if curve.label == "training" else f"{curve.label}, evaluation"
        for steps, values in curve.runs:
            panel.plot(steps, values, "o", ms=4, mfc="white", color=colour, label=label)
            label = "_"  # The legend leaves out labels that start with an underscore.


def _fresh_evaluations(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The lines with a new evaluation; later lines repeat it until the next one."""
    fresh, last = [], None
    for line in lines:
        versions = {k: v for k, v in line.items() if k.endswith("eval_policy_version")}
        if versions and versions != last:
            fresh.append(line)
            last = versions
    return fresh


def _style(panel: Axes, key: str, title: str) -> None:
    from matplotlib.ticker import EngFormatter

    panel.set_ylabel(title)
    panel.grid(alpha=0.25, lw=0.6)
    panel.spines[["top", "right"]].set_visible(False)
    panel.xaxis.set_major_formatter(EngFormatter(sep=""))
    panel.margins(x=0.01)
    if key.startswith("episode."):
        return
    if key != "episode_return_mean":
        panel.set_ylim(bottom=0)
    if key == "policy_age_mean":
        panel.set_ylim(top=max(1.0, panel.get_ylim()[1]))
    else:
        panel.yaxis.set_major_formatter(EngFormatter(sep=""))
