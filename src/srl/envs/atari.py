"""Atari games the way the field compares them: 84x84 gray frames, four per step, 30 no-ops.

One frame travels per step; the four that a policy sees are stacked by the system (`frame_stack`).
Rewards are the game's own. Sticky actions are what the id says (0.25 in the `ALE/...-v5` ids).
"""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium.wrappers import AtariPreprocessing

_PREPROCESSING = (
    "noop_max",
    "frame_skip",
    "screen_size",
    "terminal_on_life_loss",
    "grayscale_obs",
    "grayscale_newaxis",
    "scale_obs",
)


class AtariFrames(AtariPreprocessing):
    """Gymnasium's preprocessing, saying that its frames are to be stacked."""

    def __init__(
        self, env: gymnasium.Env[Any, Any], *, stack: int = 4, **preprocessing: Any
    ) -> None:
        super().__init__(env, **preprocessing)
        self.frame_stack = stack


def make_atari(
    id: str, *, render_mode: str | None = None, stack: int = 4, **args: Any
) -> gymnasium.Env[Any, Any]:
    """One game; settings of the preprocessing and of the game are told apart by their names."""
    preprocessing = {key: args.pop(key) for key in _PREPROCESSING if key in args}
    if isinstance(preprocessing.get("screen_size"), list):
        preprocessing["screen_size"] = tuple(preprocessing["screen_size"])
    if args.get("obs_type") == "ram":
        return gymnasium.make(id, render_mode=render_mode, disable_env_checker=True, **args)
    # The wrapper skips the frames, because it takes the maximum of the last two.
    args["frameskip"] = 1
    env = gymnasium.make(id, render_mode=render_mode, disable_env_checker=True, **args)
    return AtariFrames(env, stack=stack, **preprocessing)
