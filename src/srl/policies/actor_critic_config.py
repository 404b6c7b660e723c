"""Settings of the actor-critic, in a module of their own: reading them does not import torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from srl.errors import ConfigError
from srl.policies.nets.config import NetworkConfig


@dataclass(frozen=True, kw_only=True)
class ActorCriticConfig(NetworkConfig):
    """Settings of the networks, `--set network.*`."""

    critic_encoder: str | None = None
    """The critic's `encoder`; unset: as the actor's."""
    critic_encoder_args: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the critic's class. If `critic_encoder` is unset, `encoder_args` with
    these changes."""
    actor_obs: tuple[str, ...] = ()
    """Parts of the observation that the actor reads, by their paths. Empty: all."""
    critic_obs: tuple[str, ...] = ()
    """Parts of the observation that the critic reads, by their paths. Empty: all."""
    shared: bool | None = None
    """Whether actor and critic share all but their last layers. If not, each has a memory of its
    own. Unset: yes for images and memory, no otherwise, and not where the critic has an encoder or
    observations of its own."""
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
        used = self.encoder if self.critic_encoder is None else self.critic_encoder
        self._expect_encoder("critic_encoder", used, self.critic_encoder_args)
        if self.shared and self.has_own_critic_encoder:
            raise ConfigError(
                "network.shared: expected false or unset where the critic has an encoder or "
                "observations of its own (network.critic_*, network.actor_obs), got true."
            )

    @property
    def has_own_critic_encoder(self) -> bool:
        """Whether the critic's features are not those of the actor."""
        own = self.critic_encoder is not None or bool(self.critic_encoder_args)
        return own or self.actor_obs != self.critic_obs
