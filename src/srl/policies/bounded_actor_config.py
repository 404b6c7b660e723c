"""Settings that policies over bounded actions share; reading them does not import torch."""

from __future__ import annotations

from dataclasses import dataclass

from srl.errors import ConfigError
from srl.policies.nets.config import Activation, NetworkConfig


@dataclass(frozen=True, kw_only=True)
class BoundedActorConfig(NetworkConfig):
    """Base class of the settings of policies over bounded actions, `--set network.*`."""

    hidden_sizes: tuple[int, ...] = (256, 256)
    """Widths of the fully connected layers. Observations that are only images have none."""
    activation: Activation = "relu"
    """Activation between fully connected layers, of the critics too: tanh, relu or elu."""
    policy_gain: float = 0.01
    """Initial scale of the last layer. If it is small, a new policy chooses around the middle of
    the bounds for any observation."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._expect("recurrent", self.recurrent == "none", "none (this policy has no memory)")

    def _expect(self, name: str, condition: bool, expected: str) -> None:
        """Raises unless a condition on a setting holds."""
        if not condition:
            raise ConfigError(f"network.{name}: expected {expected}, got {getattr(self, name)!r}.")
