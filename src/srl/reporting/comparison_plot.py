"""The picture of `srl compare`: curves over steps, interquartile means, and who is better."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from srl.errors import RunError, printable
from srl.reporting.seed_statistics import Array, Interval

# Colours that people with any colour vision can tell apart (Okabe and Ito).
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")


@dataclass(frozen=True, kw_only=True)
class GroupResult:
    """The runs of one group together."""

    name: str
    runs: tuple[Path, ...]
    scores: Array
    """One for each run."""
    iqm: float
    iqm_interval: Interval
    curve: Array
    """Interquartile mean over the runs, at the steps of the comparison's grid."""
    curve_low: Array
    curve_high: Array
    better: float | None = None
    """Probability that one of its runs scores more than one of the first group; None for the first
    group."""
    better_interval: Interval | None = None


def draw_comparison(
    groups: Sequence[GroupResult], grid: Array, titles: Mapping[str, str], output: Path
) -> Path:
    """Draws groups of runs into a PNG; `titles` has `metric` and `task`."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11.0, 4.6), dpi=130, layout="constrained")
    curves, means, better = figure.subplots(1, 3, width_ratios=(3, 1.4, 1.4))
    for index, group in enumerate(groups):
        _draw_group(curves, means, better, group, grid, len(groups) - 1 - index, _colour(index))
    _style_curves(curves, titles["metric"], many=len(groups) > 1)
    for panel, title in (
        (means, "interquartile mean\n(95 % interval)"),
        (better, f"better than {_text(groups[0].name)}\n(probability)"),
    ):
        panel.set_title(title, fontsize=9)
        panel.set_yticks([])
        panel.set_ylim(-0.6, len(groups) - 0.4)
        panel.grid(axis="x", alpha=0.25, lw=0.6)
        panel.spines[["top", "right", "left"]].set_visible(False)
    better.set_xlim(-0.03, 1.03)
    better.axvline(0.5, color="grey", lw=0.8, ls="--")
    figure.suptitle(_text(titles["task"]), fontsize=11)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(output, format="png")
    except OSError as error:
        raise RunError(f"{output}: cannot write the plot ({error.strerror or error}).") from error
    return output


def _draw_group(
    curves: Any,
    means: Any,
    better: Any,
    group: GroupResult,
    grid: Array,
    height: int,
    colour: str,
) -> None:
    """Draws one group: its curve, its mean with interval and runs, and its probability."""
    number = len(group.runs)
    label = f"{_text(group.name)} ({number} run{'s' if number > 1 else ''})"
    curves.plot(grid, group.curve, color=colour, lw=1.8, label=label)
    curves.fill_between(grid, group.curve_low, group.curve_high, color=colour, alpha=0.2, lw=0)
    means.plot(group.iqm_interval, (height, height), color=colour, lw=5, alpha=0.35)
    means.plot(group.scores, [height - 0.2] * number, "|", color=colour, ms=7)
    means.plot(group.iqm, height, "o", color=colour, ms=6)
    means.text(group.iqm, height + 0.16, f"{group.iqm:.4g}", ha="center", fontsize=8)
    if group.better is not None and group.better_interval is not None:
        better.plot(group.better_interval, (height, height), color=colour, lw=5, alpha=0.35)
        better.plot(group.better, height, "o", color=colour, ms=6)
        better.text(group.better, height + 0.16, f"{group.better:.2f}", ha="center", fontsize=8)


def _style_curves(panel: Any, metric: str, *, many: bool) -> None:
    from matplotlib.ticker import EngFormatter

    panel.set_xlabel("environment steps")
    panel.set_ylabel(_text(metric))
    panel.set_title("interquartile mean over runs, 95 % interval", fontsize=9)
    panel.xaxis.set_major_formatter(EngFormatter(sep=""))
    panel.set_xlim(left=0)
    panel.grid(alpha=0.25, lw=0.6)
    panel.spines[["top", "right"]].set_visible(False)
    if many:
        panel.legend(frameon=False, fontsize=9)


def _colour(index: int) -> str:
    return _COLOURS[index % len(_COLOURS)]


def _text(name: str) -> str:
    """Escapes a name, because matplotlib reads text between dollar signs as a formula."""
    return printable(name).replace("$", r"\$")
