"""Atari games as papers compare them: 84x84 gray frames, four per step, up to 30 no-ops.

The environment returns one frame per step. The system stacks the four that a policy sees
(`frame_stack`). Rewards are the game's own. The id says how likely sticky actions are (0.25 in
`ALE/...-v5`).
"""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium.spaces import Box
from gymnasium.vector import VectorObservationWrapper
from gymnasium.wrappers import AtariPreprocessing

from srl.errors import ConfigError

_PREPROCESSING = (
    "noop_max",
    "frame_skip",
    "screen_size",
    "terminal_on_life_loss",
    "grayscale_obs",
    "grayscale_newaxis",
    "scale_obs",
)


class StickyActions(gymnasium.Wrapper[Any, Any, Any, Any]):  # type: ignore[misc]
    """Repeats the last frame's action with some probability, as ALE itself would.

    A saved state of ALE leaves out its last action, so a run could not continue exactly. The state
    of this wrapper holds it.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], probability: float) -> None:
        super().__init__(env)
        self.probability = probability
        self.last_action: Any = 0

    def reset(self, **options: Any) -> Any:
        """Starts a game; no action is pending."""
        self.last_action = 0
        return self.env.reset(**options)

    def step(self, action: Any) -> Any:
        """Plays one frame."""
        if self.unwrapped.np_random.random() >= self.probability:
            self.last_action = action
        return self.env.step(self.last_action)


class AtariFrames(AtariPreprocessing):  # type: ignore[misc]
    """Gymnasium's Atari preprocessing; `frame_stack` tells the system to stack its frames."""

    def __init__(
        self, env: gymnasium.Env[Any, Any], *, stack: int = 4, **preprocessing: Any
    ) -> None:
        super().__init__(env, **preprocessing)
        self.frame_stack = stack


def make_atari(id: str, *, render_mode: str | None = None, **args: Any) -> gymnasium.Env[Any, Any]:
    """Makes one game; the names in `args` tell preprocessing settings from settings of the game."""
    preprocessing = {key: args.pop(key) for key in ("stack", *_PREPROCESSING) if key in args}
    if isinstance(preprocessing.get("screen_size"), list):
        preprocessing["screen_size"] = tuple(preprocessing["screen_size"])
    if args.get("obs_type") == "ram":
        if preprocessing:
            raise ConfigError(
                f"env.args: expected no settings of images with obs_type='ram', got "
                f"{', '.join(preprocessing)}. Remove them, or obs_type."
            )
        return gymnasium.make(id, render_mode=render_mode, disable_env_checker=True, **args)
    # The wrapper skips the frames, because it takes the maximum of the last two.
    args["frameskip"] = 1
    declared = gymnasium.spec(id).kwargs.get("repeat_action_probability", 0.25)
    sticky = float(args.pop("repeat_action_probability", declared))
    args["repeat_action_probability"] = 0.0
    env = gymnasium.make(id, render_mode=render_mode, disable_env_checker=True, **args)
    if sticky:
        env = StickyActions(env, sticky)
    return AtariFrames(env, **preprocessing)


class AtariVectorFrames(VectorObservationWrapper):  # type: ignore[misc]
    """ALE's vector environment with stacks of one frame; the system stacks its single frames."""

    def __init__(self, vector: gymnasium.vector.VectorEnv[Any, Any, Any], stack: int) -> None:
        super().__init__(vector)
        self.frame_stack = stack
        frames = vector.single_observation_space
        self.single_observation_space = Box(frames.low[0], frames.high[0], dtype=frames.dtype.type)

    def observations(self, observations: Any) -> Any:
        """Drops the stack axis: [envs, 1, ...] becomes [envs, ...]."""
        return observations[:, 0]
