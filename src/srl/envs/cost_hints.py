"""How expensive an environment's steps are, judged by its family before it is made.

A family is the package of Gymnasium that has the environment. EnvPool has the same environments by
the same names, and Atari games of version 5.
"""

from __future__ import annotations

import gymnasium

from srl.envs.ids import OWN_GROUPS
from srl.envs.protocol import EnvConfig

_TINY = ("gymnasium.envs.classic_control", "gymnasium.envs.toy_text")
_BODIES = ("gymnasium.envs.mujoco", "gymnasium.envs.box2d")


def is_tiny(id: str) -> bool:
    """Whether a step takes only a few microseconds: classic control and toy text.

    It does not pay to wake another thread for such a step.
    """
    return _family(id).startswith(_TINY)


def simulates_bodies(id: str) -> bool:
    """Whether the environment simulates bodies: MuJoCo, Box2D and hide-and-seek."""
    return id in OWN_GROUPS or _family(id).startswith(_BODIES)


def has_pixels(id: str) -> bool:
    """Whether observations are known to be images: Atari."""
    if not (id.startswith("envpool:") and id.endswith("-v5")):
        return id.startswith("ALE/")
    # Gymnasium has Atari's games only in a process that has imported ale_py.
    family = _family(id)
    return not family or family.startswith("ale_py.")


def pool_threads(config: EnvConfig) -> int:
    """Threads that step an EnvPool group: 0 means one for each core, -1 that it is not EnvPool."""
    if not config.id.startswith("envpool:"):
        return -1
    chosen = config.threads or (1 if is_tiny(config.id) else 0)
    return int(config.args.get("num_threads", chosen))


def _family(id: str) -> str:
    """Where Gymnasium has an environment of this name in any version; empty if it has none."""
    name = id.rpartition(":")[2].rpartition("-v")[0]
    for spec in gymnasium.registry.values():
        if spec.name == name and isinstance(spec.entry_point, str):
            return spec.entry_point
    return ""
