"""Values of actions from a replay: DQN, and R2D2 where the policy has to remember."""

from __future__ import annotations

from srl.envs.protocol import EnvConfig
from srl.experiment import Experiment
from srl.workers.actor import ActorConfig


def cartpole_dqn() -> Experiment:
    """Balance a pole on a cart with DQN; solved at a mean return of 475 (of 500)."""
    return Experiment(
        name="cartpole_dqn",
        env=EnvConfig(id="CartPole-v1"),
        actor=ActorConfig(envs=8),
        algorithm={
            "name": "dqn",
            "n_steps": 5,
            "gamma": 0.98,
            "learning_rate": 2e-3,
            "learning_rate_schedule": "linear",
            "batch_size": 128,
            "target_steps": 50,
            "epsilon_steps": 6000,
            "epsilon_end": 0.02,
        },
        network={"name": "q_network", "hidden_sizes": (64, 64), "normalize_obs": True},
        steps=100_000,
        until="return>=475",
    )


def memory_r2d2() -> Experiment:
    """Name a cue that was shown eight steps ago, by a recurrent DQN; else it is 0.25."""
    return Experiment(
        name="memory_r2d2",
        env=EnvConfig(id="srl.envs.tasks.memory:CueRecall"),
        actor=ActorConfig(envs=16),
        algorithm={
            "name": "dqn",
            "sequence_length": 12,
            "fragment_length": 12,
            "gamma": 0.98,
            "learning_rate": 2e-3,
            "batch_size": 32,
            "updates_per_step": 0.125,
            "target_steps": 50,
            "epsilon_steps": 10_000,
            "epsilon_end": 0.02,
        },
        network={
            "name": "q_network",
            "hidden_sizes": (32,),
            "recurrent": "lstm",
            "recurrent_size": 32,
        },
        steps=60_000,
        until="return>=0.9",
    )
