"""Atari games from pixels, with the settings that the PPO paper uses."""

from __future__ import annotations

from typing import Any

from srl.envs.protocol import EnvConfig
from srl.experiment import Experiment
from srl.workers.actor import ActorConfig


def pong() -> Experiment:
    """Pong from pixels through Gymnasium and ALE; 20 of 21 points is mastery."""
    return _game("pong", EnvConfig(id="ALE/Pong-v5"), until="return>=18")


def pong_envpool() -> Experiment:
    """Pong from pixels through EnvPool, which steps many games by one call.

    It uses the smaller network of Mnih et al. 2013 (a third of the arithmetic), a higher learning
    rate, and a discount that looks 25 actions ahead.
    """
    return Experiment(
        name="pong_envpool",
        env=EnvConfig(id="envpool:Pong-v5"),
        actor=ActorConfig(envs=32),
        algorithm={
            "name": "ppo",
            "rollout_length": 64,
            "epochs": 3,
            "minibatches": 8,
            "gamma": 0.96,
            "learning_rate": 1e-3,
            "learning_rate_schedule": "linear",
            "entropy_coefficient": 0.01,
        },
        network={
            "name": "actor_critic",
            "convolutions": [[16, 8, 4], [32, 4, 2]],
            "image_features": 256,
        },
        steps=1_500_000,
        until="return>=18",
    )


def breakout() -> Experiment:
    """Breakout from pixels; one life is an episode."""
    env = EnvConfig(id="ALE/Breakout-v5", args={"terminal_on_life_loss": True})
    return _game("breakout", env)


def _game(name: str, env: EnvConfig, until: str = "") -> Experiment:
    algorithm: dict[str, Any] = {
        "name": "ppo",
        "rollout_length": 128,
        "epochs": 4,
        "minibatches": 4,
        "learning_rate": 2.5e-4,
        "learning_rate_schedule": "linear",
        "clip": 0.1,
        "entropy_coefficient": 0.01,
        "clip_reward": "sign",
    }
    return Experiment(
        name=name,
        env=env,
        actor=ActorConfig(envs=8),
        algorithm=algorithm,
        steps=10_000_000,
        until=until,
    )
