"""Settings of the deterministic policy, in a module of their own: reading them does not import
torch."""

from __future__ import annotations

import math
from dataclasses import dataclass

from srl.policies.bounded_actor_config import BoundedActorConfig


@dataclass(frozen=True, kw_only=True)
class DeterministicConfig(BoundedActorConfig):
    """Settings of the deterministic policy, `--set network.*`."""

    exploration_noise: float = 0.1
    """Standard deviation of the normal noise on its actions, as a share of half the distance
    between the bounds."""

    def __post_init__(self) -> None:
        super().__post_init__()
        fits = 0 <= self.exploration_noise < math.inf
        self._expect("exploration_noise", fits, "a number of at least 0")
