"""Actors that never wait for newer weights: learning corrects for the age of their data."""

from __future__ import annotations

from typing import Any

from srl.envs.protocol import EnvConfig
from srl.experiment import Experiment
from srl.workers.actor import ActorConfig


def cartpole_impala() -> Experiment:
    """Balance a pole on a cart with IMPALA; solved at a mean return of 475 (of 500)."""
    return _cartpole("impala", rollout_length=16, learning_rate=3e-3)


def cartpole_appo() -> Experiment:
    """Balance a pole on a cart with APPO; solved at a mean return of 475 (of 500)."""
    return _cartpole(
        "appo", rollout_length=64, epochs=4, learning_rate=1e-3, gamma=0.98, gae_lambda=0.9
    )


def _cartpole(algorithm: str, **settings: Any) -> Experiment:
    return Experiment(
        name=f"cartpole_{algorithm}",
        env=EnvConfig(id="CartPole-v1"),
        actor=ActorConfig(envs=16),
        algorithm={"name": algorithm, "entropy_coefficient": 0.0, **settings},
        network={"name": "actor_critic", "normalize_obs": True},
        steps=400_000,
        until="return>=475",
    )
