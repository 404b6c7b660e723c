"""Copies of a Gymnasium environment as a group, stepped one after another in a tight loop.

The group handles seeds, autoreset, errors and masks, so an environment only needs what Gymnasium
asks for. It may also declare these attributes (on itself or a wrapper):

    metrics = ("score",)       numbers that its info holds at the end of an episode
    has_action_mask = True     its info holds "action_mask" after each reset and step
    frame_stack = 4            the policy sees the last 4 frames; the environment returns one
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
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
from srl.envs.protocol import OnCall, PolicyAgents
from srl.envs.spaces import ActionAdapter, agent_spaces, agent_spec
from srl.errors import EnvError, SrlError
from srl.tracebacks import USER_ERRORS, described

AGENT = "agent"
"""The agent's name in environments that have one agent without a name."""

_WITHOUT_MASKS = ("ale_py", "gymnasium.envs.classic_control", "gymnasium.envs.box2d")
"""Modules whose environments are known to have no action masks; a reset shows it for others."""


def declared(env: gymnasium.Env[Any, Any], name: str, default: Any) -> Any:
    """An attribute that the environment or one of its wrappers declares."""
    if isinstance(env, gymnasium.Wrapper):
        return env.get_wrapper_attr(name) if env.has_wrapper_attr(name) else default
    return getattr(env, name, default)


def declared_metrics(value: Any) -> tuple[str, ...]:
    """Declared metric names; an attribute `metrics` of another kind is ignored."""
    if isinstance(value, tuple | list) and all(isinstance(name, str) for name in value):
        return tuple(value)
    return ()


class GymGroup:
    """Environments stepped one by one, as a group. Returned arrays are written again each tick."""

    def __init__(
        self,
        envs: list[gymnasium.Env[Any, Any]],
        policy_agents: PolicyAgents | None,
        on_call: OnCall,
    ) -> None:
        self._envs = envs
        self._on_call = on_call
        self.num_envs = len(envs)
        first = envs[0]
        self._metrics = declared_metrics(declared(first, "metrics", ()))
        own = self._agent_spaces = agent_spaces(first.observation_space, first.action_space)
        agent = agent_spec(
            first.observation_space,
            first.action_space,
            stack=int(declared(first, "frame_stack", 1)),
        )
        if not agent.has_action_mask and self._info_has_mask(agent.action):
            agent = AgentSpec(obs=agent.obs, action=agent.action, has_action_mask=True)
        self.spec = EnvSpec(agents={AGENT: agent}, metrics=self._metrics)
        self.spaces = {AGENT: own}
        self.policy_agents: PolicyAgents = (
            policy_agents if policy_agents is not None else {AGENT: (AGENT,)}
        )
        self._policy = next(iter(self.policy_agents))
        self._obs = ObsBuffer(own.observation, self.num_envs)
        self._actions = ActionAdapter(own.action)
        self._step = blank_step(
            agent, self._obs.arrays, rows=self.num_envs, envs=self.num_envs, metrics=self._metrics
        )
        self._final = [False] * self.num_envs
        # Most environments have no mask; to choose a method once is cheaper than a branch per row.
        masked = agent.has_action_mask
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
        if type(first.unwrapped).__module__.startswith(_WITHOUT_MASKS):
            return False
        return "action_mask" in self._reset_one(0, seed=0)[1]

    def reset(self, seed: int) -> dict[str, EnvStep]:
        """Starts an episode in every environment; environment i is seeded with `seed + i`."""
        self._final = [False] * self.num_envs
        for index in range(self.num_envs):
            obs, info = self._reset_one(index, seed=seed + index)
            self._write_reset(index, obs, info)
        step = self._step
        step.reward.fill(0.0)
        step.terminated.fill(False)
        step.truncated.fill(False)
        step.is_first.fill(True)
        step.turn.fill(True)
        self._check_numbers("reset", [])
        return {self._policy: step}

    def step(self, actions: dict[str, np.ndarray]) -> dict[str, EnvStep]:
        """Steps every environment once, or resets it after its final observation."""
        step, final, on_call, write = self._step, self._final, self._on_call, self._write
        rewards: list[Any] = [0.0] * self.num_envs
        step.terminated.fill(False)
        step.truncated.fill(False)
        step.is_first[:] = final
        index, call = 0, "step"
        try:
            for index, (env, action) in enumerate(
                zip(self._envs, self._actions.batch(actions[self._policy]), strict=True)
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
        except USER_ERRORS as error:
            raise env_raised(error, index, call) from error
        self._write_rewards(rewards)
        np.logical_not(final, out=step.turn)
        self._check_numbers("step", rewards)
        return {self._policy: step}

    def _reset_one(self, index: int, seed: int | None) -> tuple[Any, dict[str, Any]]:
        self._on_call("reset", index)
        try:
            obs, info = self._envs[index].reset(seed=seed)
        except EnvError:
            raise
        except USER_ERRORS as error:
            raise env_raised(error, index, "reset") from error
        return obs, info

    def _write_reset(self, index: int, obs: Any, info: dict[str, Any]) -> None:
        try:
            self._write(index, obs, info)
        except BadObservation as problem:
            raise env_error(str(problem), index, "reset", FIX_SPACE) from None

    def _write_plain(self, index: int, obs: Any, info: dict[str, Any]) -> None:
        self._obs.write(index, obs)

    def _write_masked(self, index: int, obs: Any, info: dict[str, Any]) -> None:
        masks = self._masks
        assert masks is not None
        obs, value = self._agent_spaces.take_mask(obs, info)
        self._obs.write(index, obs)
        if self._final[index]:
            masks.allow_all(index)
        elif value is None:
            raise BadObservation(NO_MASK)
        else:
            masks.write(index, value)

    def _read_metrics(self, index: int, info: dict[str, Any], terminated: bool) -> None:
        """Reads the declared metrics.

        A time limit from outside may truncate an episode before its info has them: NaN then.
        """
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
            where = "reset" if self._step.is_first[broken.row] else call
            raise env_error(broken.problem, broken.row, where, broken.fix)
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
        states = []
        for index, env in enumerate(self._envs):
            with env_call(index, "state"):
                states.append(env_state.get_state(env))
        if any(found is None for found in states):
            return None
        return {"envs": states, "final": list(self._final), "step": step_state(self._step)}

    def restore(self, state: Tree) -> dict[str, EnvStep]:
        """Continues from `state`."""
        for index, (env, saved) in enumerate(zip(self._envs, state["envs"], strict=True)):
            with env_call(index, "restore"):
                env_state.set_state(env, saved)
        self._final = [bool(value) for value in state["final"]]
        restore_step(self._step, state["step"])
        return {self._policy: self._step}

    def close(self) -> None:
        """Closes all environments."""
        envs, self._envs = self._envs, []
        close_all(envs)


def env_raised(error: BaseException, index: int, call: str) -> EnvError:
    """The error that says which environment raised, in which call, and where in its code."""
    which = f"environment {index}" if index >= 0 else "the vector environment"
    text = described(error, "Run `srl check` to test the environment alone.")
    name, _, rest = text.partition(": ")
    return EnvError(f"{which} raised {name} in {call}(): {rest}")


@contextmanager
def env_call(index: int, call: str) -> Iterator[None]:
    """Turns an exception of an environment into an EnvError; for calls that are rare."""
    try:
        yield
    except SrlError:
        raise
    except USER_ERRORS as error:
        raise env_raised(error, index, call) from error


def close_all(envs: list[Any]) -> None:
    """Closes all environments, even if some raise; then raises the first error."""
    failed: EnvError | None = None
    for index, env in enumerate(envs):
        try:
            env.close()
        except USER_ERRORS as error:
            failed = failed or env_raised(error, index, "close")
    if failed is not None:
        raise failed


def picture_of(env: Any, index: int) -> np.ndarray:
    """A picture of one environment; raises if a video cannot use it."""
    with env_call(index, "render"):
        try:
            picture = env.render()
        except NotImplementedError:
            picture = None
    return checked_picture(picture, index)


def checked_picture(picture: Any, index: int) -> np.ndarray:
    """Returns a picture of any group's environment; raises if a video cannot use it."""
    if isinstance(picture, np.ndarray):
        right = picture.dtype == np.uint8 and picture.ndim == 3 and picture.shape[2] in (3, 4)
        if right and picture.size:
            return picture
        got = f"{picture.dtype}{list(picture.shape)}"
    else:
        got = "none" if picture is None else type(picture).__name__
    raise EnvError(
        f"render: expected uint8[height,width,3], got {got}, from environment {index}. "
        "Support render_mode='rgb_array': take it in __init__, return a picture in render()."
    )
