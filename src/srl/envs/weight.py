"""How heavy an environment's steps are: what its name tells before one is made."""

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
    """Whether a step takes the few microseconds after which it does not pay to wake another thread
    for it: classic control and toy text."""
    return _name(id).startswith(_TINY)


def is_body(id: str) -> bool:
    """Whether a step moves bodies through simulated time, and what is seen of them is a vector."""
    return _name(id).startswith(_BODIES)


def has_pixels(id: str) -> bool:
    """Whether it is known to be seen as an image: Atari, which EnvPool has as version 5."""
    atari = id.startswith("envpool:") and id.endswith("-v5")
    return id.startswith("ALE/") or (atari and not is_body(id))


def pool_threads(config: EnvConfig) -> int:
    """Threads that step an EnvPool group, 0 for one on each core; -1 for environments of others."""
    if not config.id.startswith("envpool:"):
        return -1
    chosen = config.threads or (1 if is_tiny(config.id) else 0)
    return int(config.args.get("num_threads", chosen))


def _name(id: str) -> str:
    return id.rpartition(":")[2].rpartition("/")[2]
