"""Settings of the actor-critic, in a module of their own: reading them does not import torch."""

from __future__ import annotations

from dataclasses import dataclass

from srl.errors import ConfigError
from srl.policies.nets.config import NetworkConfig


@dataclass(frozen=True, kw_only=True)
class ActorCriticConfig(NetworkConfig):
    """Settings of the networks, `--set network.*`."""

    shared: bool | None = None
    """Whether actor and critic share all but their last layers. Unset: yes for images and memory,
    no otherwise."""
    normalize_returns: bool = True
    """Let the critic predict in units of the running standard deviation of returns. Without this,
    large returns make the value loss drown the policy's gradient, because both are shortened
    together."""
    initial_log_std: float = 0.0
    """Log of the initial standard deviation of real-valued actions."""
    policy_gain: float = 0.01
    """Initial scale of the actor's last layer. If it is small, all actions are about equally likely
    at the start."""
    value_gain: float = 1.0
    """Initial scale of the critic's last layer."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shared is False and self.recurrent != "none":
            raise ConfigError(
                "network.shared: expected true or unset with network.recurrent (actor "
                "and critic read one memory), got false."
            )
