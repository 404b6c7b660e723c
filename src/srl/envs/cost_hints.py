"""How expensive an environment's steps are, judged by its name before it is made."""

from __future__ import annotations

from srl.envs.protocol import EnvConfig

_TINY = (
    "CartPole", "Pendulum", "MountainCar", "Acrobot", "Catch", "FrozenLake", "Taxi", "NChain",
    "CliffWalking", "Blackjack",
)  # fmt: skip
_BODIES = (
    "Ant", "HalfCheetah", "Hopper", "Humanoid", "InvertedDoublePendulum", "InvertedPendulum",
    "Pusher", "Reacher", "Swimmer", "Walker2d", "BipedalWalker", "LunarLander",
)  # fmt: skip


def is_tiny(id: str) -> bool:
    """Whether a step takes only a few microseconds: classic control and toy text.

    It does not pay to wake another thread for such a step.
    """
    return _name(id).startswith(_TINY)


def simulates_bodies(id: str) -> bool:
    """Whether the environment simulates bodies, and its observation is a vector."""
    return _name(id).startswith(_BODIES)


def has_pixels(id: str) -> bool:
    """Whether observations are known to be images: Atari, which EnvPool has as version 5."""
    atari = id.startswith("envpool:") and id.endswith("-v5")
    return id.startswith("ALE/") or (atari and not simulates_bodies(id))


def pool_threads(config: EnvConfig) -> int:
    """Threads that step an EnvPool group: 0 means one for each core, -1 that it is not EnvPool."""
    if not config.id.startswith("envpool:"):
        return -1
    chosen = config.threads or (1 if is_tiny(config.id) else 0)
    return int(config.args.get("num_threads", chosen))


def _name(id: str) -> str:
    return id.rpartition(":")[2].rpartition("/")[2]
