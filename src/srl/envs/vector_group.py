"""A native vector environment as a group, stepped by one call.

Only next-step autoreset fits SRL's ticks; the two other modes cannot be adapted from outside and
are refused. With same-step autoreset the first observation of an episode would have to wait for a
tick while the other environments go on. With autoreset disabled, a reset and a step of the others
would be two calls. A vector environment gets one seed and makes the seeds of its environments
itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from srl.data.flags import all_true, any_true
from srl.data.records import EnvStep
from srl.data.spec import AgentSpec, Box, EnvSpec
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
from srl.envs.gym_group import AGENT, checked_picture, declared_metrics, env_call, env_raised
from srl.envs.protocol import OnCall, PolicyAgents
from srl.envs.spaces import ActionAdapter, agent_spaces, agent_spec
from srl.errors import ConfigError, EnvError
from srl.tracebacks import USER_ERRORS


class VectorGroup:
    """A Gymnasium VectorEnv as a group. Returned arrays are written again each tick."""

    def __init__(
        self, vector: Any, num_envs: int, policy_agents: PolicyAgents | None, on_call: OnCall
    ) -> None:
        if vector.num_envs != num_envs:
            raise ConfigError(
                f"vector environment: expected {num_envs} environments, got {vector.num_envs}. "
                "Pass `num_envs` on."
            )
        _check_autoreset(vector)
        self._vector = vector
        self._prepare(
            num_envs,
            policy_agents,
            on_call,
            observation=vector.single_observation_space,
            action=vector.single_action_space,
            metrics=declared_metrics(getattr(vector, "metrics", ())),
            stack=int(getattr(vector, "frame_stack", 1)),
        )

    def _prepare(
        self,
        num_envs: int,
        policy_agents: PolicyAgents | None,
        on_call: OnCall,
        *,
        observation: Any,
        action: Any,
        metrics: tuple[str, ...] = (),
        stack: int = 1,
    ) -> None:
        self.num_envs = num_envs
        self._on_call = on_call
        agent = agent_spec(observation, action, stack=stack)
        if not agent.has_action_mask and self._info_has_mask(agent):
            agent = AgentSpec(obs=agent.obs, action=agent.action, has_action_mask=True)
        self.spec = EnvSpec(agents={AGENT: agent}, metrics=metrics)
        self.policy_agents: PolicyAgents = (
            policy_agents if policy_agents is not None else {AGENT: (AGENT,)}
        )
        self._policy = next(iter(self.policy_agents))
        self._agent_spaces = agent_spaces(observation, action)
        self.spaces = {AGENT: self._agent_spaces}
        self._obs = ObsBuffer(self._agent_spaces.observation, num_envs)
        self._actions = ActionAdapter(self._agent_spaces.action)
        self._step = blank_step(
            agent, self._obs.arrays, rows=num_envs, envs=num_envs, metrics=metrics
        )
        self._masks = MaskRows(agent, self._step) if agent.has_action_mask else None
        self._steps = {self._policy: self._step}
        self._final = np.zeros(num_envs, bool)
        self._finite = np.zeros(num_envs, bool)

    def _info_has_mask(self, agent: AgentSpec) -> bool:
        vector = self._vector
        wanted = getattr(vector, "has_action_mask", None)
        if wanted is not None or isinstance(agent.action, Box):
            return bool(wanted)
        if type(vector.unwrapped).__module__.startswith(("gymnasium.envs", "ale_py")):
            return False
        self._on_call("reset", -1)
        return "action_mask" in self._call("reset", lambda: vector.reset(seed=0))[1]

    def reset(self, seed: int) -> dict[str, EnvStep]:
        """Starts an episode in every environment, with one seed for all."""
        return self._start(seed)

    def _start(self, seed: int | None) -> dict[str, EnvStep]:
        self._on_call("reset", -1)
        options = {} if seed is None else {"seed": seed}
        obs, info = self._call("reset", lambda: self._vector.reset(**options))
        self._final[:] = False
        step = self._step
        for flag in (step.terminated, step.truncated):
            flag.fill(False)
        step.reward.fill(0.0)
        step.is_first.fill(True)
        step.turn.fill(True)
        step.quiet = False
        self._write(obs, info, "reset")
        return self._steps

    def step(self, actions: dict[str, np.ndarray]) -> dict[str, EnvStep]:
        """Steps all environments by one call."""
        batch = self._actions.batch(actions[self._policy])
        self._on_call("step", -1)
        return self._note(self._call("step", lambda: self._vector.step(batch)))

    def _note(self, stepped: Any) -> dict[str, EnvStep]:
        """Writes what the environments returned into the tick's record."""
        obs, reward, terminated, truncated, info = stepped
        step = self._step
        step.reward[...] = reward
        if not step.quiet or any_true(terminated) or any_true(truncated):
            self._mark(terminated, truncated, info)
        self._write(obs, info, "step")
        return self._steps

    def _mark(self, terminated: np.ndarray, truncated: np.ndarray, info: dict[str, Any]) -> None:
        """Marks rows that begin or end an episode; the tick is quiet if there are none."""
        step, final = self._step, self._final
        step.is_first[...] = final
        step.terminated[...] = terminated
        step.truncated[...] = truncated
        np.logical_or(step.terminated, step.truncated, out=final)
        np.logical_not(final, out=step.turn)
        begins, ends = any_true(step.is_first), any_true(final)
        if ends:
            # An episode that terminates in the step of its time limit is not truncated.
            step.truncated[step.terminated] = False
            if step.metrics is not None:
                self._read_metrics(info)
        if begins:
            step.reward[step.is_first] = 0.0
            self._check_autoreset(final & step.is_first)
        step.quiet = not (begins or ends)

    def _check_autoreset(self, ended_at_once: np.ndarray) -> None:
        if any_true(ended_at_once):
            raise env_error(
                "autoreset: expected a new episode after a final observation, got another final "
                "one (an episode of no steps)",
                int(np.argmax(ended_at_once)),
                "step",
                "Reset in the step after the end, as AutoresetMode.NEXT_STEP says.",
            )

    def _call(self, name: str, call: Any) -> Any:
        try:
            return call()
        except EnvError:
            raise
        except USER_ERRORS as error:
            raise env_raised(error, -1, name) from error

    def _write(self, obs: Any, info: dict[str, Any], call: str) -> None:
        try:
            if self._masks is None:
                self._show(obs)
            else:
                shown, masks = self._agent_spaces.take_mask(obs, info)
                self._show(shown)
                self._write_masks(self._masks, masks)
        except BadObservation as problem:
            raise env_error(str(problem), -1, call, FIX_SPACE) from None
        broken = self._obs.broken_row()
        if broken is not None:
            raise env_error(broken.problem, broken.row, call, broken.fix)
        reward = self._step.reward
        if not all_true(np.isfinite(reward, out=self._finite)):
            index = int(np.argmin(np.isfinite(reward)))
            raise env_error(
                f"reward: expected a finite number, got {reward[index]}", index, call, FIX_NUMBERS
            )

    def _show(self, obs: Any) -> None:
        """Copies the observations, because the environments may write their arrays again."""
        self._obs.write_all(obs)

    def _write_masks(self, masks: MaskRows, values: Any) -> None:
        if values is None:
            raise BadObservation(NO_MASK)
        if masks.write_all(values, self._final):
            return
        for index, value in enumerate(values):
            if self._final[index]:
                masks.allow_all(index)
            elif value is None:
                raise BadObservation(f"{NO_MASK} for environment {index}")
            else:
                masks.write(index, value)

    def _read_metrics(self, info: dict[str, Any]) -> None:
        assert self._step.metrics is not None
        for name, values in self._step.metrics.items():
            if name not in info:
                raise env_error(
                    f"info[{name!r}]: expected numbers at the end of an episode, got no such key",
                    -1,
                    "step",
                    "Add it to info at the final step, or remove it from the `metrics` attribute.",
                )
            values[self._final] = np.asarray(info[name])[self._final]

    def render(self, index: int) -> np.ndarray:
        """A picture of one environment."""
        with env_call(-1, "render"):
            pictures = self._vector.render()
        if pictures is None or len(pictures) != self.num_envs:
            raise EnvError(
                "render: expected one picture per environment, got none. "
                "Set env.backend=single, or support render_mode='rgb_array'."
            )
        return checked_picture(pictures[index], index)

    def state(self) -> Tree | None:
        """The vector environment's exact state, or None where it offers none."""
        with env_call(-1, "state"):
            saved = env_state.get_state(self._vector)
        if saved is None:
            return None
        return {"vector": saved, "final": self._final.copy(), "step": step_state(self._step)}

    def restore(self, state: Tree) -> dict[str, EnvStep]:
        """Continues from `state`."""
        with env_call(-1, "restore"):
            env_state.set_state(self._vector, state["vector"])
        self._final[:] = state["final"]
        self._step.quiet = False
        restore_step(self._step, state["step"])
        return self._steps

    def close(self) -> None:
        """Closes the vector environment."""
        vector, self._vector = self._vector, None
        if vector is not None:
            with env_call(-1, "close"):
                vector.close()


def _check_autoreset(vector: Any) -> None:
    mode = vector.metadata.get("autoreset_mode")
    if mode == AutoresetMode.NEXT_STEP:
        return
    if mode is None:
        got, fix = "none", "Declare metadata['autoreset_mode']"
    else:
        got, fix = str(mode), "Make it with AutoresetMode.NEXT_STEP, or set env.backend=single"
    raise ConfigError(
        f"vector environment: expected next-step autoreset, got {got}. A new episode must begin in "
        f"the step after a final observation; SRL cannot change this from outside. {fix}."
    )
