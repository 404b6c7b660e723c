"""Settings that algorithms with one loss and one optimizer share.

Nothing here imports torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from srl.algorithms.config import AlgorithmConfig
from srl.settings import check_types

Schedule = Literal["constant", "linear"]


@dataclass(frozen=True, kw_only=True)
class GradientConfig(AlgorithmConfig):
    """Base class of the settings of algorithms that follow the gradient of one loss."""

    learning_rate: float = 2.5e-4
    """The optimizer's step size at the start."""
    learning_rate_schedule: Schedule = "constant"
    """`linear` goes to 0 at the end of the experiment."""
    max_grad_norm: float | None = 0.5
    """Longer gradients are shortened to this norm; unset: never."""

    def __post_init__(self) -> None:
        check_types(self, "algorithm")
        self._expect_positive("learning_rate")
        self._expect_positive_or_nothing("max_grad_norm")
        known = self.learning_rate_schedule in get_args(Schedule)
        self._expect("learning_rate_schedule", known, "constant or linear")

    def learning_rate_at(self, progress: float) -> float:
        """The learning rate after this share of the experiment."""
        if self.learning_rate_schedule == "constant":
            return self.learning_rate
        return self.learning_rate * max(0.0, 1.0 - progress)

    def _expect_positive(self, *names: str) -> None:
        for name in names:
            self._expect(name, 0 < getattr(self, name) < math.inf, "a positive number")

    def _expect_positive_or_nothing(self, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            self._expect(name, value is None or value > 0, "a positive number or nothing")

    def _expect_share(self, *names: str) -> None:
        for name in names:
            self._expect(name, 0 <= getattr(self, name) <= 1, "a number from 0 to 1")

    def _expect_age(self, name: str) -> None:
        age = getattr(self, name)
        self._expect(name, age is None or age >= 0, "at least 0 or nothing")
