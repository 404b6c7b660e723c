"""Hide-and-seek (Baker et al. 2019) on MuJoCo: hiders, seekers, boxes, ramps and walls.

`HideAndSeek` is a PettingZoo ParallelEnv of one game; `game.Game` steps many games with one call.
`VARIANTS` has the named games. docs/environments/hide_and_seek.md lists all constants.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from srl.envs.hide_and_seek.config import VARIANTS, HideAndSeekConfig, variant
from srl.envs.hide_and_seek.physics import PhysicsConfig

if TYPE_CHECKING:
    from srl.envs.hide_and_seek.env import HideAndSeek

__all__ = ["VARIANTS", "HideAndSeek", "HideAndSeekConfig", "PhysicsConfig", "variant"]


def __getattr__(name: str) -> Any:
    """Imports the environment only when it is used: it needs mujoco and pettingzoo."""
    if name != "HideAndSeek":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from srl.extras import require

    for package in ("mujoco", "pettingzoo"):
        require(package, "hide-and-seek")
    from srl.envs.hide_and_seek.env import HideAndSeek

    return HideAndSeek
