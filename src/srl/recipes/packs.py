"""Tasks of the environments that EnvPool carries: football, Doom, grids, robots and games."""

from __future__ import annotations

from typing import Any

from srl.envs.protocol import EnvConfig
from srl.experiment import Experiment
from srl.workers.actor import ActorConfig

_PPO: dict[str, Any] = {
    "name": "ppo",
    "rollout_length": 64,
    "epochs": 4,
    "minibatches": 4,
    "learning_rate": 1e-3,
    "learning_rate_schedule": "linear",
    "entropy_coefficient": 0.01,
    "max_policy_age": 0,
}
_ROBOT: dict[str, Any] = {
    **_PPO,
    "epochs": 8,
    "minibatches": 8,
    "learning_rate": 5e-4,
    "entropy_coefficient": 0.0,
}


def football() -> Experiment:
    """Google football's first lesson: score into an empty goal that is close."""
    return _images("football", "gfootball/academy_empty_goal_close-v1", envs=8, steps=200_000)


def doom() -> Experiment:
    """VizDoom's first scenario: turn to a monster in a room, and shoot it."""
    return _images("doom", "Basic-v1", envs=16, steps=300_000)


def coinrun() -> Experiment:
    """Procgen's CoinRun with easy levels (it needs Qt 5)."""
    return _images("coinrun", "CoinrunEasy-v0", envs=32, steps=2_000_000)


def minigrid() -> Experiment:
    """Walk to the other corner of an empty grid and see only what lies ahead."""
    return Experiment(
        name="minigrid",
        env=EnvConfig(id="envpool:MiniGrid-Empty-5x5-v0"),
        actor=ActorConfig(envs=16),
        algorithm=_PPO,
        steps=150_000,
    )


def dmc_cartpole() -> Experiment:
    """dm_control's cart, which swings a pole up and holds it; random play returns about 30."""
    return _robot("dmc_cartpole", "CartpoleSwingup-v1", 1_000_000)


def panda_pick() -> Experiment:
    """MuJoCo Playground's arm, which picks a cube up and carries it to a target."""
    return _robot("panda_pick", "MuJoCoPlayground/PandaPickCube-v1", 2_000_000)


def metaworld_reach() -> Experiment:
    """Meta-World's arm, which reaches for a point."""
    return _robot("metaworld_reach", "MetaWorld/Reach-v3", 500_000)


def _robot(name: str, id: str, steps: int) -> Experiment:
    return Experiment(
        name=name,
        env=EnvConfig(id=f"envpool:{id}"),
        actor=ActorConfig(envs=32),
        algorithm=_ROBOT,
        network={"name": "actor_critic", "normalize_obs": True, "normalize_returns": True},
        steps=steps,
    )


def _images(name: str, id: str, *, envs: int, steps: int) -> Experiment:
    return Experiment(
        name=name,
        env=EnvConfig(id=f"envpool:{id}"),
        actor=ActorConfig(envs=envs),
        algorithm={**_PPO, "learning_rate": 5e-4},
        network={"name": "actor_critic", "normalize_returns": True},
        steps=steps,
    )
