"""`--until 'return>=475'`: the condition at which a run ends."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from srl.errors import ConfigError, nearest
from srl.services.metric_names import MetricNames
from srl.services.metric_table import RUN_METRICS

ALIASES = {
    "return": "episode_return_mean",
    "length": "episode_length_mean",
    "eval_return": "eval_return_mean",
    "eval_length": "eval_length_mean",
    "age": "policy_age_mean",
    "version": "policy_version",
    "steps": "env_steps",
}
_PLAIN = {*ALIASES.values(), *RUN_METRICS, "update_seconds"}
_OPEN = ("train.", "episode.", "workers.")
"""Prefixes of metrics whose names only the run itself knows."""
_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_CONDITION = re.compile(r"\s*([A-Za-z_][\w.-]*)(?:/([^\s<>=]+))?\s*(>=|<=|>|<)\s*(\S+)\s*")
_WINDOWED = ("episode_return_mean", "episode_length_mean")


@dataclass(frozen=True)
class Condition:
    """One comparison of a metric with a number."""

    metric: str
    """A key of the collector's snapshot."""
    op: str
    threshold: float
    name: str
    """The metric as the user wrote it."""

    def reached(self, snapshot: Mapping[str, float]) -> bool:
        """Whether it holds now. It does not hold while the metric has not been reported."""
        value = snapshot.get(self.metric)
        if value is None:
            self._check_reported(snapshot)
            return False
        prefix, _, last = self.metric.rpartition(".")
        # Only the means over the window wait until it is full; "episode.return" is a metric of the
        # environment.
        if last in _WINDOWED and not snapshot.get(f"{prefix}.window_full".lstrip("."), True):
            return False
        return _OPERATORS[self.op](value, self.threshold)

    def _check_reported(self, snapshot: Mapping[str, float]) -> None:
        # After the first update all metrics of the learner are known, so a misspelt one would never
        # be reached.
        head, found, _ = self.metric.rpartition("train.")
        known = [key for key in snapshot if key.startswith(f"{head}train.")] if found else []
        if known:
            raise ConfigError(f"--until: no metric {self.metric!r}: {nearest(self.metric, known)}")


@dataclass(frozen=True)
class Until:
    """Conditions that must hold together."""

    text: str
    conditions: tuple[Condition, ...]

    def reached(self, snapshot: Mapping[str, float]) -> bool:
        """Whether all conditions hold."""
        return all([condition.reached(snapshot) for condition in self.conditions])

    def progress(self, snapshot: Mapping[str, float]) -> str:
        """The current values of the metrics, such as "return 312.4 (>= 475)"."""

        def one(condition: Condition) -> str:
            value = snapshot.get(condition.metric)
            now = "-" if value is None else f"{value:.4g}"
            return f"{condition.name} {now} ({condition.op} {condition.threshold:g})"

        return ", ".join(one(condition) for condition in self.conditions)


def parse_until(text: str, names: MetricNames) -> Until:
    """Reads `<metric><op><number>`, several joined by ` and `; op is >=, >, <= or <.

    `return` and `length` are means over the window of training episodes, and wait until it is full.
    `eval_return` is the mean of the last evaluation. Other metrics (`train.entropy`) may be named,
    too. `return/red` is of a policy, `return/red/tank_*` of some of its agents.
    """
    parts = re.split(r"\s+and\s+", text)
    return Until(text, tuple(_condition(part, text, names) for part in parts))


def _condition(part: str, text: str, names: MetricNames) -> Condition:
    match = _CONDITION.fullmatch(part)
    if match is None:
        raise ConfigError(
            f"--until: expected <metric><op><number> with op one of >= > <= <, such as "
            f"'return>=475' or 'return/POLICY>=475' (several joined by ' and '), got "
            f"{part.strip()!r} in {text!r}."
        )
    name, whose, op, number = match.groups()
    try:
        threshold = float(number)
    except ValueError:
        threshold = float("nan")
    if threshold != threshold:
        raise ConfigError(f"--until: expected a number after {name}{op}, got {number!r}.")
    key = metric_key(name, whose or "", names, "--until")
    return Condition(key, op, threshold, f"{name}/{whose}" if whose else name)


def metric_key(name: str, whose: str, names: MetricNames, option: str) -> str:
    """The key in a snapshot of a metric that a user names in an option, like `return`, of one
    policy if `whose` is not empty."""
    metric = ALIASES.get(name, name)
    if metric not in _PLAIN and not metric.startswith(_OPEN):
        raise ConfigError(
            f"{option}: unknown metric {name!r}: {nearest(name, {*ALIASES, *_PLAIN})} "
            "(METRIC/POLICY is that of one policy)"
        )
    try:
        return names.find(metric, whose, name)
    except ConfigError as error:
        raise ConfigError(f"{option}: {error}") from None
