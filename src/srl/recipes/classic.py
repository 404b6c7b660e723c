"""Small control tasks that learn within seconds to minutes on a laptop."""

from __future__ import annotations

from srl.envs.protocol import EnvConfig
from srl.experiment import Experiment
from srl.workers.actor import ActorConfig


def cartpole() -> Experiment:
    """Balance a pole on a cart; solved at a mean return of 475 (of 500)."""
    return Experiment(
        name="cartpole",
        env=EnvConfig(id="CartPole-v1"),
        actor=ActorConfig(envs=16),
        algorithm={
            "name": "ppo",
            "rollout_length": 64,
            "epochs": 8,
            "minibatches": 4,
            "learning_rate": 2e-3,
            "learning_rate_schedule": "linear",
            "entropy_coefficient": 0.0,
            "gae_lambda": 0.9,
            "gamma": 0.98,
        },
        steps=300_000,
        until="return>=475",
    )


def acrobot() -> Experiment:
    """Swing a two-link arm above a line; solved at a mean return of -100."""
    return Experiment(
        name="acrobot",
        env=EnvConfig(id="Acrobot-v1"),
        actor=ActorConfig(envs=16),
        algorithm={
            "name": "ppo",
            "rollout_length": 128,
            "learning_rate": 1e-3,
            "learning_rate_schedule": "linear",
        },
        network={"name": "actor_critic", "normalize_obs": True, "normalize_returns": True},
        steps=500_000,
        until="return>=-90",
    )


def mountaincar_continuous() -> Experiment:
    """Rock a car out of a valley with real-valued forces; solved at a mean return of 90."""
    return Experiment(
        name="mountaincar_continuous",
        env=EnvConfig(id="MountainCarContinuous-v0"),
        actor=ActorConfig(envs=16),
        algorithm={
            "name": "ppo",
            "rollout_length": 256,
            "epochs": 10,
            "learning_rate": 3e-4,
            "gae_lambda": 0.9,
            "gamma": 0.9999,
            "entropy_coefficient": 0.01,
            "max_policy_age": 0,
        },
        network={
            "name": "actor_critic",
            "normalize_obs": True,
            "normalize_returns": True,
            "initial_log_std": 1.0,
        },
        steps=500_000,
        until="return>=90",
    )


def pendulum() -> Experiment:
    """Swing a pendulum up and hold it with real-valued torques; random play returns about -1200."""
    return Experiment(
        name="pendulum",
        env=EnvConfig(id="Pendulum-v1"),
        actor=ActorConfig(envs=16),
        algorithm={
            "name": "ppo",
            "rollout_length": 128,
            "epochs": 10,
            "minibatches": 8,
            "learning_rate": 1e-3,
            "learning_rate_schedule": "linear",
            "gamma": 0.9,
            "entropy_coefficient": 0.0,
            "max_policy_age": 0,
        },
        network={"name": "actor_critic", "normalize_obs": True, "normalize_returns": True},
        steps=200_000,
    )


def lunarlander() -> Experiment:
    """Land a craft between two flags; solved at a mean return of 200."""
    return Experiment(
        name="lunarlander",
        env=EnvConfig(id="LunarLander-v3"),
        actor=ActorConfig(envs=16),
        algorithm={
            "name": "ppo",
            "rollout_length": 512,
            "epochs": 4,
            "minibatches": 16,
            "learning_rate": 1e-3,
            "learning_rate_schedule": "linear",
            "gamma": 0.999,
            "gae_lambda": 0.98,
        },
        network={"name": "actor_critic", "normalize_obs": True, "normalize_returns": True},
        steps=1_000_000,
        until="return>=200",
    )
