"""The limits of a run, and whether a checkpoint has already reached them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from srl.errors import RunError, printable
from srl.experiment import Experiment
from srl.launch.plan.build import learning_policies
from srl.reporting.bottleneck import Diagnosis
from srl.reporting.summary import Summary, read_summary, summarise, write_summary
from srl.services.checkpoints import Checkpoint, CheckpointStore, read_part
from srl.services.metric_names import MetricNames
from srl.services.metrics import Collector, saved_names
from srl.services.until import parse_until
from srl.settings import show

COLLECTOR_PART = "collector"
"""Name of the checkpoint part that holds the metrics."""


class Goals:
    """The limits of a run. Each method returns why the run is over, or an empty text."""

    def __init__(self, experiment: Experiment, names: MetricNames) -> None:
        self.steps, self.seconds = experiment.steps, experiment.seconds
        self.until = parse_until(experiment.until, names) if experiment.until else None

    def by_steps(self, env_steps: int) -> str:
        """The reason if the run was trained on enough steps."""
        over = self.steps and env_steps >= self.steps
        return f"trained on {env_steps:,} steps" if over else ""

    def by_seconds(self, seconds: float) -> str:
        """The reason if the run was trained for long enough."""
        return f"trained for {seconds:.0f} s" if self.seconds and seconds >= self.seconds else ""

    def by_until(self, snapshot: Mapping[str, float]) -> str:
        """The reason if the run's `until` condition holds."""
        over = self.until is not None and self.until.reached(snapshot)
        return f"reached {self.until.text}" if self.until is not None and over else ""


def already_over(
    experiment: Experiment, before: Experiment, path: Path, store: CheckpointStore, last: Checkpoint
) -> Summary | None:
    """The summary of a run that has reached a limit; None if the run can go on.

    `before` has the settings with which the run made the checkpoint `last`.
    """
    if _limits(experiment) == _limits(before):
        try:
            summary = read_summary(path)
        except RunError:
            pass  # The run was killed before it wrote one.
        else:
            # Its `until` condition may not hold any more, because episodes ended while it stopped.
            if summary.status == "finished":
                return summary
    saved = read_part(last, COLLECTOR_PART)
    names = saved_names(saved, learning_policies(experiment.policies))
    collector = Collector(path, experiment.logging, names)
    collector.restore(saved)
    snapshot, manifest, goals = collector.snapshot(), last.manifest, Goals(experiment, names)
    reason = (
        goals.by_steps(manifest.env_steps)
        or goals.by_seconds(manifest.seconds)
        or goals.by_until(snapshot)
    )
    if not reason:
        return None
    summary = summarise(
        "finished",
        snapshot,
        names.results(snapshot, store.best()),
        [],
        Diagnosis(text="", part=""),
        observed_seconds=0.0,
        reason=reason,
        name=experiment.name,
        seed=experiment.seed,
    )
    write_summary(path, summary)
    return summary


def how_to_go_further(experiment: Experiment, summary: Summary, path: Path) -> str:
    """The message for a user who resumes a finished run: which limit to raise, and how."""
    limits: dict[str, Any] = {}
    if experiment.steps and summary.env_steps >= experiment.steps:
        limits["steps"] = 2 * experiment.steps
    if experiment.seconds and summary.seconds >= experiment.seconds:
        limits["seconds"] = 2 * experiment.seconds
    if not limits:
        limits["until"] = "none"
        if not experiment.steps:
            limits["steps"] = 2 * summary.env_steps
    options = " ".join(f"--{name} {show(value)}" for name, value in limits.items())
    arguments = ", ".join(f"{name}={value!r}" for name, value in limits.items())
    # The reason is text from the run's files, which another user may have written.
    return printable(
        f"{path} is finished ({summary.reason}), so nothing was trained. Raise its limit to train "
        f"further: `srl resume {shlex.quote(str(path))} {options}`, or in Python "
        f"srl.resume({str(path)!r}, {arguments})."
    )


def _limits(experiment: Experiment) -> tuple[int, float, str]:
    return experiment.steps, experiment.seconds, experiment.until
