"""Settings of the squashed Gaussian, in a module of their own: reading them does not import
torch."""

from __future__ import annotations

from dataclasses import dataclass

from srl.policies.bounded_actor_config import BoundedActorConfig


@dataclass(frozen=True, kw_only=True)
class SquashedGaussianConfig(BoundedActorConfig):
    """Settings of the squashed Gaussian, `--set network.*`."""

    log_std_min: float = -20.0
    """Least log of the standard deviation before the tanh."""
    log_std_max: float = 2.0
    """Largest log of the standard deviation before the tanh."""

    def __post_init__(self) -> None:
        super().__post_init__()
        ordered = self.log_std_min < self.log_std_max
        self._expect("log_std_min", ordered, f"less than log_std_max ({self.log_std_max})")
