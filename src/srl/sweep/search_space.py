"""Reads search spaces such as `algorithm.learning_rate=log(1e-4,1e-2)`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from srl.errors import ConfigError
from srl.experiment import Experiment
from srl.overrides import override, parse_pairs
from srl.settings import show

if TYPE_CHECKING:
    from optuna.trial import Trial

Kind = Literal["log", "uniform", "int", "choice"]
_FORMS = "log(a,b), uniform(a,b), int(a,b) or choice(x,y,...)"
_SPACE = re.compile(r"\s*(log|uniform|int|choice)\s*\((.*)\)\s*", re.S)
_RESERVED = ("seed", "name", "launcher")
"""Settings that a sweep chooses for itself, or that must be the same for all trials."""


@dataclass(frozen=True)
class Dimension:
    """The values that one setting may take."""

    key: str
    kind: Kind
    values: tuple[Any, ...]
    """The two bounds, or all choices."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The choices as text: Optuna keeps no lists."""
        return tuple(show(value) for value in self.values)

    def suggest(self, trial: Trial) -> Any:
        """The value of one trial."""
        if self.kind == "choice":
            label = trial.suggest_categorical(self.key, self.labels)
            return self.values[self.labels.index(label)]
        low, high = self.values
        if self.kind == "int":
            return trial.suggest_int(self.key, low, high)
        return trial.suggest_float(self.key, low, high, log=self.kind == "log")


def parse_search(texts: Sequence[str]) -> list[Dimension]:
    """Reads `KEY=FORM` texts; raises for one that does not parse."""
    found: dict[str, Dimension] = {}
    for text in texts:
        key, equals, form = text.partition("=")
        key = key.strip()
        match = _SPACE.fullmatch(form)
        if not equals or not key or match is None:
            raise ConfigError(f"--search: expected KEY={_FORMS}, got {text!r}.")
        if key in found:
            raise ConfigError(f"--search {key}: expected one space, got two.")
        if key in _RESERVED:
            raise ConfigError(
                f"--search {key}: expected a setting that trials may have their own of, got "
                f"{key!r}. For several seeds of each trial use --seeds."
            )
        kind: Any = match[1]
        values = _values(key, match[2], text)
        if kind != "choice":
            values = _bounds(key, kind, values, text)
        found[key] = Dimension(key, kind, tuple(values))
    if not found:
        raise ConfigError(f"--search: expected at least one KEY={_FORMS}, got none.")
    return list(found.values())


def _values(key: str, body: str, text: str) -> list[Any]:
    """What is between the parentheses, as YAML."""
    try:
        values: list[Any] = parse_pairs([f"{key}=[{body}]"], "--search")[key]
    except ConfigError:
        raise ConfigError(f"--search {key}: expected values with commas, got {text!r}.") from None
    if not values:
        raise ConfigError(f"--search {key}: expected values in the parentheses, got {text!r}.")
    if len({show(value) for value in values}) < len(values):
        raise ConfigError(f"--search {key}: expected each value once, got {text!r}.")
    return values


def _bounds(key: str, kind: Kind, values: list[Any], text: str) -> list[Any]:
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    if len(values) != 2 or len(numbers) != 2 or not all(math.isfinite(v) for v in numbers):
        raise ConfigError(f"--search {key}: expected two numbers in {kind}(a,b), got {text!r}.")
    low, high = numbers
    if low >= high:
        raise ConfigError(f"--search {key}: expected a below b in {kind}(a,b), got {text!r}.")
    if kind == "log" and low <= 0:
        raise ConfigError(f"--search {key}: expected bounds above 0 in log(a,b), got {text!r}.")
    if kind == "int" and not all(float(v).is_integer() for v in numbers):
        raise ConfigError(f"--search {key}: expected whole numbers in int(a,b), got {text!r}.")
    return [int(v) for v in numbers] if kind == "int" else [float(v) for v in numbers]


def check_search(experiment: Experiment, space: Sequence[Dimension]) -> None:
    """Raises if a dimension names no setting, or if the setting takes one of its values not."""
    for dimension in space:
        for value in dimension.values:
            try:
                override(experiment, {dimension.key: value})
            except ConfigError as error:
                raise ConfigError(f"--search {dimension.key}: {error}") from None


def suggest(trial: Trial, space: Sequence[Dimension]) -> dict[str, Any]:
    """The settings of one trial. A trial that is asked again has the same."""
    return {dimension.key: dimension.suggest(trial) for dimension in space}


def described(settings: Mapping[str, Any]) -> str:
    """Settings in one line."""
    return "  ".join(
        f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={show(value)}"
        for key, value in settings.items()
    )
