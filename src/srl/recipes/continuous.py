"""Real-valued actions from a replay: few environment steps, with a gradient step for each."""

from __future__ import annotations

from srl.envs.protocol import EnvConfig
from srl.experiment import Experiment
from srl.workers.actor import ActorConfig


def pendulum_sac() -> Experiment:
    """Swing up and balance a pendulum with SAC; about -150 is as good as it gets."""
    return _pendulum("sac", "squashed_gaussian")


def pendulum_td3() -> Experiment:
    """Swing up and balance a pendulum with TD3; about -150 is as good as it gets."""
    return _pendulum("td3", "deterministic")


def halfcheetah_sac() -> Experiment:
    """Run with a two-legged cheetah, with SAC; random play returns about -300."""
    return _halfcheetah("halfcheetah_sac", "HalfCheetah-v5")


def halfcheetah_sac_envpool() -> Experiment:
    """The same cheetah by EnvPool, with SAC."""
    return _halfcheetah("halfcheetah_sac_envpool", "envpool:HalfCheetah-v5")


def _pendulum(algorithm: str, network: str) -> Experiment:
    return Experiment(
        name=f"pendulum_{algorithm}",
        env=EnvConfig(id="Pendulum-v1"),
        actor=ActorConfig(envs=4),
        algorithm={
            "name": algorithm,
            "buffer_size": 50_000,
            "learning_starts": 500,
            "learning_rate": 1e-3,
            "batch_size": 128,
            "critic_hidden_sizes": (64, 64),
        },
        network={"name": network, "hidden_sizes": (64, 64)},
        steps=10_000,
    )


def _halfcheetah(name: str, id: str) -> Experiment:
    return Experiment(
        name=name,
        env=EnvConfig(id=id),
        actor=ActorConfig(envs=4),
        algorithm={"name": "sac", "learning_starts": 10_000, "gradient_steps": 16},
        network={"name": "squashed_gaussian"},
        steps=1_000_000,
    )
