"""Copies of a Gymnasium environment, stepped one after another in a tight loop.

Seeds, autoreset, errors and masks are handled here, so that an environment has to be only what
Gymnasium asks for. Beyond that it may declare attributes (on itself or a wrapper):

    metrics = ("score",)       numbers that its info holds at the end of an episode
    has_action_mask = True     its info holds "action_mask" after each reset and step
    frame_stack = 4            the policy sees the last frames; the environment emits one
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from srl.data.records import EnvStep
from srl.data.spec import ActionSpec, AgentSpec, Box, EnvSpec
from srl.data.tree import Tree
from srl.envs import state as env_state
from srl.envs.buffers import (
    FIX_NUMBERS,
    FIX_SPACE,
    NO_MASK,
    BadObservation,
    MaskRows,
    ObsBuffer,
    blank_step,
    env_error,
    restore_step,
    step_state,
)
from srl.envs.protocol import Lanes, OnCall
from srl.envs.spaces import ActionAdapter, AgentSpaces, agent_spec, split_mask
from srl.errors import EnvError

AGENT = "agent"
"""The name of the one agent of an environment that knows no names."""

_MASKLESS = ("ale_py", "gymnasium.envs.classic_control", "gymnasium.envs.box2d")
"""Modules whose environments are known to have no action masks; others show it by a reset."""


def declared(env: gymnasium.Env[Any, Any], name: str, default: Any) -> Any:
    """An attribute that the environment or one of its wrappers declares."""
    if isinstance(env, gymnasium.Wrapper):
        return env.get_wrapper_attr(name) if env.has_wrapper_attr(name) else default
    return getattr(env, name, default)


def declared_metrics(value: Any) -> tuple[str, ...]:
    """Declared metric names; an attribute of that name that means something else is left alone."""
    if isinstance(value, tuple | list) and all(isinstance(name, str) for name in value):
        return tuple(value)
    return ()


class GymGroup:
    """Environments stepped one by one, as a group. Returned arrays are written again each tick."""

    def __init__(
        self, envs: list[gymnasium.Env[Any, Any]], lanes: Lanes | None, on_call: OnCall
    ) -> None:
        self._envs = envs
        self._on_call = on_call
        self.num_envs = len(envs)
        first = envs[0]
        self._metrics = declared_metrics(declared(first, "metrics", ()))
        seen, self._mask_in_obs = split_mask(first.observation_space)
        agent = agent_spec(
            first.observation_space,
            first.action_space,
            stack=int(declared(first, "frame_stack", 1)),
        )
        if not self._mask_in_obs and self._info_has_mask(agent.action):
            agent = AgentSpec(obs=agent.obs, action=agent.action, has_action_mask=True)
        self.spec = EnvSpec(agents={AGENT: agent}, metrics=self._metrics)
        self.spaces = {AGENT: AgentSpaces(seen, first.action_space)}
        self.lanes: Lanes = lanes if lanes is not None else {AGENT: (AGENT,)}
        self._lane = next(iter(self.lanes))
        self._obs = ObsBuffer(seen, self.num_envs)
        self._actions = ActionAdapter(first.action_space)
        self._step = blank_step(
            agent, self._obs.arrays, rows=self.num_envs, envs=self.num_envs, metrics=self._metrics
        )
        self._final = [False] * self.num_envs
        # Bare loops: most environments have no mask, and a branch per row costs more than a method.
        masked = self._mask_in_obs or agent.has_action_mask
        self._write = self._write_masked if masked else self._write_plain
        self._masks = MaskRows(agent, self._step) if masked else None

    def _info_has_mask(self, action: ActionSpec) -> bool:
        """Whether masks come in info: declared, or seen in a first reset."""
        if isinstance(action, Box):
            return False
        first = self._envs[0]
        wanted = declared(first, "has_action_mask", None)
        if wanted is not None:
            return bool(wanted)
        if type(first.unwrapped).__module__.startswith(_MASKLESS):
            return False
        return "action_mask" in self._reset_one(0, seed=0)[1]

    def reset(self, seed: int) -> dict[str, EnvStep]:
        """Starts an episode in every environment; environment i is seeded with `seed + i`."""
        self._final = [False] * self.num_envs
        for index in range(self.num_envs):
            obs, info = self._reset_one(index, seed=seed + index)
            self._put(index, obs, info)
        step = self._step
        step.reward.fill(0.0)
        step.terminated.fill(False)
        step.truncated.fill(False)
        step.is_first.fill(True)
        step.turn.fill(True)
        self._check_numbers("reset", [])
        return {self._lane: step}

    def step(self, actions: dict[str, np.ndarray]) -> dict[str, EnvStep]:
        """Steps every environment once; those whose last observation was final reset instead."""
        step, final, on_call, write = self._step, self._final, self._on_call, self._write
        rewards: list[Any] = [0.0] * self.num_envs
        step.terminated.fill(False)
        step.truncated.fill(False)
        step.is_first[:] = final
        index, call = 0, "step"
        try:
            for index, (env, action) in enumerate(
                zip(self._envs, self._actions.batch(actions[self._lane]), strict=True)
            ):
                if final[index]:
                    call = "reset"
                    on_call("reset", index)
                    obs, info = env.reset()
                    final[index] = False
                else:
                    call = "step"
                    on_call("step", index)
                    obs, rewards[index], terminated, truncated, info = env.step(action)
                    if terminated or truncated:
                        final[index] = True
                        step.terminated[index] = terminated
                        step.truncated[index] = truncated and not terminated
                        if step.metrics is not None:
                            self._read_metrics(index, info, bool(terminated))
                write(index, obs, info)
        except EnvError:
            raise
        except BadObservation as problem:
            raise env_error(str(problem), index, call, FIX_SPACE) from None
        except Exception as error:
            raise env_raised(error, index, call) from error
        self._write_rewards(rewards)
        np.logical_not(final, out=step.turn)
        self._check_numbers("step", rewards)
        return {self._lane: step}

    def _reset_one(self, index: int, seed: int | None) -> tuple[Any, dict[str, Any]]:
        self._on_call("reset", index)
        try:
            obs, info = self._envs[index].reset(seed=seed)
        except EnvError:
            raise
        except Exception as error:
            raise env_raised(error, index, "reset") from error
        return obs, info

    def _put(self, index: int, obs: Any, info: dict[str, Any]) -> None:
        try:
            self._write(index, obs, info)
        except BadObservation as problem:
            raise env_error(str(problem), index, "reset", FIX_SPACE) from None

    def _write_plain(self, index: int, obs: Any, info: dict[str, Any]) -> None:
        self._obs.write(index, obs)

    def _write_masked(self, index: int, obs: Any, info: dict[str, Any]) -> None:
        masks = self._masks
        assert masks is not None
        if self._mask_in_obs:
            obs, value = obs["observation"], obs["action_mask"]
        else:
            value = info.get("action_mask")
        self._obs.write(index, obs)
        if self._final[index]:
            masks.allow_all(index)
        elif value is None:
            raise BadObservation(NO_MASK)
        else:
            masks.write(index, value)

    def _read_metrics(self, index: int, info: dict[str, Any], terminated: bool) -> None:
        """A time limit set from outside ends episodes that the environment sees go on: NaN then."""
        assert self._step.metrics is not None
        for name, values in self._step.metrics.items():
            if name not in info and terminated:
                raise env_error(
                    f"info[{name!r}]: expected a number at the end of the episode, got no such key",
                    index,
                    "step",
                    "Add it to info at the final step, or remove it from the `metrics` attribute.",
                )
            values[index] = info.get(name, np.nan)

    def _write_rewards(self, rewards: list[Any]) -> None:
        try:
            self._step.reward[:] = rewards
        except (TypeError, ValueError):
            for index, reward in enumerate(rewards):
                if np.ndim(reward) or np.asarray(reward).dtype.kind not in "fiub":
                    got = f"{type(reward).__name__} {reward!r:.60}"
                    raise env_error(
                        f"reward: expected one number, got {got}", index, "step", "Return a float."
                    ) from None
            raise

    def _check_numbers(self, call: str, rewards: list[Any]) -> None:
        broken = self._obs.broken_row()
        if broken is not None:
            index, problem = broken
            raise env_error(
                problem, index, "reset" if self._step.is_first[index] else call, FIX_NUMBERS
            )
        reward = self._step.reward
        if not np.isfinite(reward).all():
            index = int(np.argmin(np.isfinite(reward)))
            raise env_error(
                f"reward: expected a finite number, got {rewards[index]}", index, call, FIX_NUMBERS
            )

    def render(self, index: int) -> np.ndarray:
        """A picture of one environment."""
        return picture_of(self._envs[index], index)

    def state(self) -> Tree | None:
        """Every environment's exact state, or None where they offer none."""
        states = [env_state.get_state(env) for env in self._envs]
        if any(found is None for found in states):
            return None
        return {"envs": states, "final": list(self._final), "step": step_state(self._step)}

    def restore(self, state: Tree) -> dict[str, EnvStep]:
        """Continues from `state`."""
        for env, saved in zip(self._envs, state["envs"], strict=True):
            env_state.set_state(env, saved)
        self._final = [bool(value) for value in state["final"]]
        restore_step(self._step, state["step"])
        return {self._lane: self._step}

    def close(self) -> None:
        """Closes all environments."""
        envs, self._envs = self._envs, []
        for env in envs:
            env.close()


def env_raised(error: Exception, index: int, call: str) -> EnvError:
    """The error that says which environment raised, and in which call."""
    text = str(error) or "no message"
    which = f"environment {index}" if index >= 0 else "the vector environment"
    return EnvError(
        f"{which} raised {type(error).__name__} in {call}(): {text}. "
        "The traceback above is the environment's own; `srl check` tries it alone."
    )


def picture_of(env: Any, index: int) -> np.ndarray:
    """What an environment draws, if that is a picture."""
    picture = env.render()
    if not isinstance(picture, np.ndarray):
        raise EnvError(
            f"render: expected uint8[height,width,3], got {type(picture).__name__}, from "
            f"environment {index}. Support render_mode='rgb_array'."
        )
    return picture
