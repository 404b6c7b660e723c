"""Settings of SAC, each checked when it is set."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from srl.algorithms.continuous_config import ContinuousConfig


@dataclass(frozen=True, kw_only=True)
class SACConfig(ContinuousConfig):
    """Settings of SAC, `--set algorithm.*`."""

    network: ClassVar[str] = "squashed_gaussian"

    temperature: float | None = None
    """Weight of the entropy, in units of reward; unset: it is learned, so that the policy keeps the
    target entropy."""
    initial_temperature: float = 1.0
    """The first weight of the entropy where it is learned."""
    target_entropy: float | None = None
    """Entropy that a learned temperature aims at, of actions from -1 to 1; unset: minus the numbers
    of an action."""
    temperature_learning_rate: float | None = None
    """Adam's step size for the temperature; unset: learning_rate."""

    def __post_init__(self) -> None:
        super().__post_init__()
        fixed = self.temperature
        self._expect("temperature", fixed is None or 0 <= fixed < math.inf, "at least 0 or nothing")
        first = self.initial_temperature
        self._expect("initial_temperature", 0 < first < math.inf, "a positive number")
        rate = self.temperature_learning_rate
        positive = rate is None or 0 < rate < math.inf
        self._expect("temperature_learning_rate", positive, "a positive number")
        target = self.target_entropy
        finite = target is None or math.isfinite(target)
        self._expect("target_entropy", finite, "a finite number or nothing")
