"""Settings that policy-gradient algorithms share.

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
class PolicyGradientConfig(AlgorithmConfig):
    """Base class of the settings of algorithms that train an actor and a critic on fragments."""

    rollout_length: int = 128
    """Ticks of a fragment that the loss sees."""
    learning_rate: float = 2.5e-4
    """The optimizer's step size at the start."""
    learning_rate_schedule: Schedule = "constant"
    """`linear` goes to 0 at the end of the experiment."""
    gamma: float = 0.99
    """Discount per action."""
    value_coefficient: float = 0.5
    """Weight of the value loss."""
    entropy_coefficient: float = 0.01
    """Weight of the entropy bonus at the start."""
    entropy_coefficient_end: float | None = None
    """Its weight at the end of the experiment, reached linearly; unset: constant."""
    max_grad_norm: float | None = 0.5
    """Longer gradients are shortened to this norm; unset: never."""
    clip_reward: Literal["sign"] | float | None = None
    """`sign` learns from the sign of rewards, a number bounds them; unset: rewards as they are."""

    def __post_init__(self) -> None:
        check_types(self, "algorithm")
        self._expect("rollout_length", self.rollout_length >= 1, "at least 1")
        self._expect_positive("learning_rate")
        for name in ("value_coefficient", "entropy_coefficient"):
            self._expect(name, 0 <= getattr(self, name) < math.inf, "a number of at least 0")
        end = self.entropy_coefficient_end
        self._expect("entropy_coefficient_end", end is None or end >= 0, "at least 0 or nothing")
        self._expect_share("gamma")
        self._expect_positive_or_nothing("max_grad_norm")
        known = self.learning_rate_schedule in get_args(Schedule)
        self._expect("learning_rate_schedule", known, "constant or linear")
        bound = self.clip_reward
        positive = not isinstance(bound, str) and (bound is None or bound > 0)
        self._expect(
            "clip_reward", bound == "sign" or positive, "sign, a positive number or nothing"
        )

    def learning_rate_at(self, progress: float) -> float:
        """The learning rate after this share of the experiment."""
        if self.learning_rate_schedule == "constant":
            return self.learning_rate
        return self.learning_rate * max(0.0, 1.0 - progress)

    def entropy_coefficient_at(self, progress: float) -> float:
        """The weight of the entropy bonus after this share of the experiment."""
        start, end = self.entropy_coefficient, self.entropy_coefficient_end
        return start if end is None else start + (end - start) * min(1.0, progress)

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
