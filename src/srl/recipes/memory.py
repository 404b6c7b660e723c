"""Tasks that the current observation does not solve: the policy has to remember."""

from __future__ import annotations

from typing import Any

from srl.envs.protocol import EnvConfig
from srl.experiment import Experiment
from srl.workers.actor import ActorConfig


def memory() -> Experiment:
    """Name a cue that was shown eight steps ago; an LSTM reaches 1, without memory it is 0.25."""
    return Experiment(
        name="memory",
        env=EnvConfig(id="srl.envs.tasks.memory:CueRecall"),
        actor=ActorConfig(envs=32),
        algorithm={
            "name": "ppo",
            "rollout_length": 64,
            "chunk_length": 32,
            "learning_rate": 2e-3,
            "entropy_coefficient": 0.01,
        },
        network=_lstm(64),
        steps=400_000,
        until="return>=0.95",
    )


def cartpole_masked() -> Experiment:
    """CartPole without velocities: an LSTM infers them from earlier observations."""
    return Experiment(
        name="cartpole_masked",
        env=EnvConfig(id="srl.envs.tasks.memory:MaskedCartPole"),
        actor=ActorConfig(envs=32),
        algorithm={
            "name": "ppo",
            "rollout_length": 64,
            "chunk_length": 32,
            "learning_rate": 2e-3,
            "learning_rate_schedule": "linear",
            "gamma": 0.98,
            "gae_lambda": 0.9,
            "entropy_coefficient": 0.0,
        },
        network=_lstm(64),
        steps=600_000,
        until="return>=400",
    )


def _lstm(size: int) -> dict[str, Any]:
    return {
        "name": "actor_critic",
        "hidden_sizes": [size],
        "recurrent": "lstm",
        "recurrent_size": size,
    }
