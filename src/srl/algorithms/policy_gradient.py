"""Settings that policy-gradient algorithms share.

Nothing here imports torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from srl.algorithms.config import RewardClip
from srl.algorithms.gradient import GradientConfig


@dataclass(frozen=True, kw_only=True)
class PolicyGradientConfig(GradientConfig):
    """Base class of the settings of algorithms that train an actor and a critic on fragments."""

    rollout_length: int = 128
    """Ticks of a fragment that the loss sees."""
    gamma: float = 0.99
    """Discount per action."""
    value_coefficient: float = 0.5
    """Weight of the value loss."""
    entropy_coefficient: float = 0.01
    """Weight of the entropy bonus at the start."""
    entropy_coefficient_end: float | None = None
    """Its weight at the end of the experiment, reached linearly; unset: constant."""
    clip_reward: RewardClip = None
    """`sign` learns from the sign of rewards, a number bounds them; unset: rewards as they are."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._expect("rollout_length", self.rollout_length >= 1, "at least 1")
        for name in ("value_coefficient", "entropy_coefficient"):
            self._expect(name, 0 <= getattr(self, name) < math.inf, "a number of at least 0")
        end = self.entropy_coefficient_end
        self._expect("entropy_coefficient_end", end is None or end >= 0, "at least 0 or nothing")
        self._expect_share("gamma")
        self._expect_reward_clip("clip_reward")

    def entropy_coefficient_at(self, progress: float) -> float:
        """The weight of the entropy bonus after this share of the experiment."""
        start, end = self.entropy_coefficient, self.entropy_coefficient_end
        return start if end is None else start + (end - start) * min(1.0, progress)
