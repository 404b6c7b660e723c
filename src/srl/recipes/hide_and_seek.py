"""Hide-and-seek by self-play, from a chase that a laptop learns to the full game."""

from __future__ import annotations

from typing import Any

from srl.envs.protocol import EnvConfig
from srl.experiment import Experiment
from srl.workers.actor import ActorConfig

_ORIGINAL_PPO: dict[str, Any] = {
    "name": "ppo",
    "rollout_length": 160,
    "chunk_length": 10,
    "epochs": 4,
    "minibatches": 15,
    "learning_rate": 3e-4,
    "gamma": 0.998,
    "gae_lambda": 0.95,
    "clip": 0.2,
    "entropy_coefficient": 0.01,
    "max_grad_norm": 5.0,
}
"""The settings of Baker et al. (2019), but for the size of a batch."""

_SMALL_PPO: dict[str, Any] = {
    "name": "ppo",
    "rollout_length": 60,
    "chunk_length": 10,
    "epochs": 3,
    "minibatches": 8,
    "learning_rate": 1e-3,
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "entropy_coefficient": 0.01,
    "max_policy_age": 1,
}


def _network(*, recurrent_size: int, **sizes: int) -> dict[str, Any]:
    """Entities, a memory and five choices; the critic is a network of its own that sees all."""
    return {
        "name": "actor_critic",
        "encoder": "entities",
        "encoder_args": sizes,
        "critic_encoder_args": {"omniscient": True},
        "recurrent": "lstm",
        "recurrent_size": recurrent_size,
        "normalize_obs": True,
        "normalize_returns": True,
    }


_ORIGINAL = _network(embedding=128, heads=4, filters=9, features=256, recurrent_size=256)
"""1.6 million parameters."""
_SMALL = _network(embedding=32, heads=4, filters=3, features=32, recurrent_size=32)
"""About 44 thousand parameters with a lidar, 36 thousand without."""


def hide_and_seek() -> Experiment:
    """The full randomised game of Baker et al. 2019, with the published network and settings."""
    return Experiment(
        name="hide_and_seek",
        env=EnvConfig(id="hide_and_seek"),
        actor=ActorConfig(envs=64),
        algorithm=_ORIGINAL_PPO,
        network=_ORIGINAL,
        steps=1_000_000_000,
    )


def hide_and_seek_quadrant() -> Experiment:
    """Two against two around a room with one or two doors, two boxes and a ramp."""
    return Experiment(
        name="hide_and_seek_quadrant",
        env=EnvConfig(id="hide_and_seek_quadrant"),
        actor=ActorConfig(envs=64),
        algorithm=_ORIGINAL_PPO,
        network=_ORIGINAL,
        steps=1_000_000_000,
    )


def hide_and_seek_chase() -> Experiment:
    """One against one around a room, in the plane: seekers learn to find, hiders to flee."""
    return Experiment(
        name="hide_and_seek_chase",
        env=EnvConfig(id="hide_and_seek_chase"),
        actor=ActorConfig(envs=128),
        algorithm=_SMALL_PPO,
        network=_SMALL,
        steps=10_000_000,
    )


def hide_and_seek_fort() -> Experiment:
    """One against one with a door and a box, in the plane: hiders learn to block the door.

    Most episodes start with the box on the way to the door, which is a curriculum; `srl eval` with
    `--env-arg easy_starts=0` measures without it.
    """
    return Experiment(
        name="hide_and_seek_fort",
        env=EnvConfig(id="hide_and_seek_fort", args={"easy_starts": 0.8}),
        actor=ActorConfig(envs=128),
        algorithm=_SMALL_PPO,
        network=_SMALL,
        steps=20_000_000,
    )
