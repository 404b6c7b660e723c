"""JAX environments: one compiled call steps all environments of an actor."""

from __future__ import annotations

import dataclasses
from typing import Any

from srl.envs.protocol import EnvConfig
from srl.experiment import Experiment
from srl.recipes.classic import cartpole
from srl.workers.actor import ActorConfig

_TEAM: dict[str, Any] = {
    "name": "mappo",
    "rollout_length": 64,
    "epochs": 4,
    "minibatches": 4,
    "learning_rate": 1e-3,
    "learning_rate_schedule": "linear",
    "gamma": 0.99,
    "entropy_coefficient": 0.01,
    "max_policy_age": 0,
}


def cartpole_jax() -> Experiment:
    """The pole on the cart by Gymnax; solved at a mean return of 475 (of 500)."""
    return dataclasses.replace(
        cartpole(), name="cartpole_jax", env=EnvConfig(id="jax:gymnax:CartPole-v1")
    )


def smax() -> Experiment:
    """Five marines against five that follow fixed rules, by JaxMARL and MAPPO."""
    return Experiment(
        name="smax",
        env=EnvConfig(id="jax:jaxmarl:HeuristicEnemySMAX"),
        actor=ActorConfig(envs=32),
        algorithm=_TEAM,
        network={"name": "actor_critic", "normalize_returns": True},
        steps=1_000_000,
    )


def overcooked() -> Experiment:
    """Two cooks of one policy make soups in a small kitchen, by JaxMARL."""
    return Experiment(
        name="overcooked",
        env=EnvConfig(id="jax:jaxmarl:overcooked"),
        actor=ActorConfig(envs=32),
        algorithm={**_TEAM, "name": "ppo"},
        network={"name": "actor_critic", "normalize_returns": True},
        steps=1_000_000,
    )


def hanabi() -> Experiment:
    """Two players of one policy give each other hints in Hanabi, by JaxMARL."""
    return Experiment(
        name="hanabi",
        env=EnvConfig(id="jax:jaxmarl:hanabi"),
        actor=ActorConfig(envs=32),
        algorithm={**_TEAM, "name": "ppo", "rollout_length": 128},
        network={"name": "actor_critic", "hidden_sizes": (256, 256), "normalize_returns": True},
        steps=2_000_000,
    )
