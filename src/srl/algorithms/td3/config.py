"""Settings of TD3, each checked when it is set."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from srl.algorithms.continuous_config import ContinuousConfig


@dataclass(frozen=True, kw_only=True)
class TD3Config(ContinuousConfig):
    """Settings of TD3, `--set algorithm.*`."""

    network: ClassVar[str] = "deterministic"

    policy_delay: int = 2
    """Gradient steps of the critics for each one of the policy and the target networks."""
    target_noise: float = 0.2
    """Standard deviation of the noise on the target policy's actions, as a share of half the
    distance between the bounds."""
    target_noise_clip: float = 0.5
    """Largest such noise."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._expect("policy_delay", self.policy_delay >= 1, "at least 1")
        for name in ("target_noise", "target_noise_clip"):
            self._expect(name, 0 <= getattr(self, name) < math.inf, "a number of at least 0")
