"""What a sweep has found: a table, importances, a picture, and the command of the best trial."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from srl.errors import RunError, printable
from srl.sweep.definition import SweepDefinition
from srl.sweep.search_space import Dimension, described
from srl.sweep.sweep import trial_folder, words_of

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial

PLOT_FILE = "sweep.png"
_SHOWN = 10
_MAX_PANELS = 7
_COLOUR, _PRUNED = "#0072B2", "#999999"


def settings_of(trial: FrozenTrial, space: Sequence[Dimension]) -> dict[str, Any]:
    """The settings of a trial; choices as they were written."""
    found = {}
    for dimension in space:
        value = trial.params[dimension.key]
        if dimension.kind == "choice":
            value = dimension.values[dimension.labels.index(value)]
        found[dimension.key] = value
    return found


def scored(study: Study) -> list[FrozenTrial]:
    """Trials with a score, the best ones first."""
    from optuna.study import StudyDirection
    from optuna.trial import TrialState

    found = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    sign = -1.0 if study.direction == StudyDirection.MAXIMIZE else 1.0
    return sorted(found, key=lambda trial: sign * (trial.value or 0.0))


def importances(study: Study) -> dict[str, float]:
    """How much of the difference between trials each setting explains; empty if there are too few
    trials to say."""
    from optuna.importance import get_param_importances

    if len(scored(study)) < 4:
        return {}
    try:
        found: dict[str, float] = get_param_importances(study)
    except (ValueError, RuntimeError):
        return {}
    return found if all(math.isfinite(value) for value in found.values()) else {}


def report(
    study: Study, definition: SweepDefinition, space: Sequence[Dimension], folder: Path
) -> str:
    """The result as text; raises if no trial has a score."""
    best = scored(study)
    states = [trial.state.name.lower() for trial in study.get_trials(deepcopy=False)]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    if not best:
        raise RunError(f"{folder}: expected at least one trial with a score, got {counts}.")
    lines = [f"{len(states)} trials: {counts}", "", f"{'trial':>5}  {definition.metric:>10}"]
    for trial in best[:_SHOWN]:
        settings = described(settings_of(trial, space))
        lines.append(f"{trial.number:>5}  {trial.value:>10.4g}  {settings}")
    if found := importances(study):
        lines += ["", "importance"]
        lines += [f"  {value:>6.1%}  {key}" for key, value in found.items()]
    command = definition.train.command(settings_of(best[0], space), definition.seed)
    runs = trial_folder(folder, best[0].number)
    lines += ["", f"best  trial {best[0].number}, {runs}", f"again  {words_of(command)}"]
    return "\n".join(lines)


def draw(
    study: Study, definition: SweepDefinition, space: Sequence[Dimension], folder: Path
) -> Path:
    """Draws scores by trial, importances, and scores by each setting; returns the PNG file."""
    from matplotlib.figure import Figure

    shown = list(space)[:_MAX_PANELS]
    weights = importances(study)
    panels = 1 + bool(weights) + len(shown)
    columns = min(3, panels)
    rows = -(-panels // columns)
    figure = Figure(figsize=(4.2 * columns, 3.2 * rows), dpi=130, layout="constrained")
    spots = iter(figure.subplots(rows, columns, squeeze=False).reshape(-1))
    _draw_history(next(spots), study, definition)
    if weights:
        panel = next(spots)
        keys = list(weights)[::-1]
        panel.barh([_text(key) for key in keys], [weights[key] for key in keys], color=_COLOUR)
        panel.set_title("importance", fontsize=9)
        panel.tick_params(labelsize=7)
    for dimension in shown:
        _draw_dimension(next(spots), study, dimension, definition.metric)
    for panel in spots:
        panel.set_visible(False)
    output = folder / PLOT_FILE
    try:
        figure.savefig(output, format="png")
    except OSError as error:
        raise RunError(f"{output}: cannot write the plot ({error.strerror or error}).") from error
    return output


def _draw_history(panel: Any, study: Study, definition: SweepDefinition) -> None:
    found = sorted(scored(study), key=lambda trial: trial.number)
    numbers = [trial.number for trial in found]
    values = [trial.value or 0.0 for trial in found]
    best = min if definition.minimize else max
    panel.plot(numbers, values, "o", color=_COLOUR, ms=4, label="trials")
    running = [best(values[: index + 1]) for index in range(len(values))]
    panel.step(numbers, running, where="post", color="#D55E00", lw=1.4, label="best so far")
    pruned = [t for t in study.get_trials(deepcopy=False) if t.state.name == "PRUNED"]
    points = [
        (t.number, t.intermediate_values[t.last_step]) for t in pruned if t.last_step is not None
    ]
    if points:
        panel.plot(*zip(*points, strict=True), "x", color=_PRUNED, ms=4, label="pruned")
    panel.set_xlabel("trial")
    panel.set_ylabel(_text(definition.metric))
    panel.legend(frameon=False, fontsize=7)
    panel.grid(alpha=0.25, lw=0.6)


def _draw_dimension(panel: Any, study: Study, dimension: Dimension, metric: str) -> None:
    found = scored(study)
    values = [trial.params[dimension.key] for trial in found]
    if dimension.kind == "choice":
        labels = dimension.labels
        panel.set_xticks(range(len(labels)), [_text(label) for label in labels], fontsize=7)
        values = [labels.index(value) for value in values]
    elif dimension.kind == "log":
        panel.set_xscale("log")
    panel.plot(values, [trial.value for trial in found], "o", color=_COLOUR, ms=4)
    panel.set_xlabel(_text(dimension.key), fontsize=8)
    panel.set_ylabel(_text(metric), fontsize=8)
    panel.grid(alpha=0.25, lw=0.6)


def _text(name: str) -> str:
    return printable(name).replace("$", r"\$")
