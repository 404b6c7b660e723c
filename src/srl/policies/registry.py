"""The policies with a short name; any other is found by its import path."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from srl.errors import ConfigError, nearest
from srl.resolve import owner_of, resolve

if TYPE_CHECKING:
    from srl.policies.protocol import Policy

POLICIES = {
    "actor_critic": "srl.policies.actor_critic:ActorCritic",
    "q_network": "srl.policies.q_network:QNetwork",
    "deterministic": "srl.policies.deterministic:Deterministic",
    "random": "srl.policies.random:RandomPolicy",
    "squashed_gaussian": "srl.policies.squashed_gaussian:SquashedGaussian",
}
ENCODERS = {
    "auto": "srl.policies.nets.encoder:Encoder",
    "entities": "srl.policies.nets.entities:EntityEncoder",
}
"""The encoders with a short name (`network.encoder`); any other is found by its import path."""
_CONFIGS = {
    "actor_critic": "srl.policies.actor_critic_config:ActorCriticConfig",
    "deterministic": "srl.policies.deterministic_config:DeterministicConfig",
    "q_network": "srl.policies.q_network_config:QNetworkConfig",
    "squashed_gaussian": "srl.policies.squashed_gaussian_config:SquashedGaussianConfig",
}
"""Settings classes that can be imported without the policy, which would import torch."""


def find_policy(name: str) -> type[Policy]:
    """The policy class behind a short name or an import path (`module:Class`, `file.py:Class`)."""
    from srl.policies.protocol import Policy

    if name not in POLICIES and ":" not in name:
        raise ConfigError(f"policy: no policy is named {name!r}; {nearest(name, POLICIES)}")
    found = resolve(POLICIES.get(name, name))
    if not (isinstance(found, type) and issubclass(found, Policy)):
        raise ConfigError(
            f"policy: expected a subclass of srl.policies.protocol.Policy, got {found!r}."
        )
    if not dataclasses.is_dataclass(getattr(found, "Config", None)):
        raise ConfigError(
            f"policy {name!r}: expected a dataclass `Config` in the class, with the settings "
            "network.* as its fields, got none. Without settings: @dataclass class Config: pass."
        )
    return found


def policy_config(name: str) -> type:
    """The settings class of a policy, by short name or import path."""
    return resolve(_CONFIGS[name]) if name in _CONFIGS else find_policy(name).Config


def policy_of(config: object, where: str) -> str:
    """The short name or import path of the policy class that a settings object belongs to."""
    return owner_of(config, _CONFIGS, POLICIES, "srl.policies.protocol:Policy", where)
