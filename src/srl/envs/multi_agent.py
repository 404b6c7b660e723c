"""The rows of environments with several agents: writes each agent's data to the right row.

Both PettingZoo groups write through a `TeamRows`. It knows policies, alive masks and the flags of a
tick; a group knows how to call its environments. An environment may declare `metrics` and
`has_action_mask` as in `gym_group`, and `state_space` with `state()` for a global state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from srl.data.records import EnvStep
from srl.data.spec import AgentSpec, Box, EnvSpec
from srl.envs.buffers import (
    FIX_NUMBERS,
    FIX_SPACE,
    BadObservation,
    MaskRows,
    ObsBuffer,
    blank_step,
    env_error,
)
from srl.envs.gym_group import declared_metrics
from srl.envs.protocol import PolicyAgents
from srl.envs.spaces import ActionAdapter, AgentSpaces, agent_spaces, agent_spec, obs_spec
from srl.errors import EnvError


class PolicyRows:
    """The rows of one policy's agents: [envs, agents of the policy]."""

    def __init__(self, env: Any, agents: tuple[str, ...], spec: EnvSpec, num_envs: int) -> None:
        self.spaces = _spaces_of(env, agents[0])
        self.agents = agents
        self.rows = num_envs * len(agents)
        self.obs = ObsBuffer(self.spaces.observation, self.rows)
        self.step = blank_step(
            spec.agents[agents[0]], self.obs.arrays, rows=self.rows, envs=num_envs
        )
        self.step.alive.fill(False)
        agent = spec.agents[agents[0]]
        self.masks = MaskRows(agent, self.step) if agent.has_action_mask else None
        self.unmasked = np.zeros(self.rows, bool)
        """Rows whose last observation had no mask, or an empty mask."""
        self._actions = [ActionAdapter(_spaces_of(env, agent).action) for agent in agents]

    def env_actions(self, actions: np.ndarray) -> list[np.ndarray]:
        """Actions as the environments take them: one array [envs, ...] per agent."""
        count = len(self.agents)
        return [
            adapter.batch(actions[column::count]) for column, adapter in enumerate(self._actions)
        ]


class TeamRows:
    """The rows of all policies of a group, written agent by agent during a tick."""

    def __init__(
        self, env: Any, spec: EnvSpec, policy_agents: PolicyAgents | None, num_envs: int
    ) -> None:
        self.spec = spec
        self.policy_agents: PolicyAgents = (
            policy_agents if policy_agents is not None else {a: (a,) for a in spec.agents}
        )
        self._policy_rows = {
            name: PolicyRows(env, agents, spec, num_envs)
            for name, agents in self.policy_agents.items()
        }
        self._positions = {
            agent: (name, column)
            for name, agents in self.policy_agents.items()
            for column, agent in enumerate(agents)
        }
        self._env_state = (
            ObsBuffer(env.state_space, num_envs, "state") if spec.env_state is not None else None
        )
        self._metrics = {name: np.zeros(num_envs) for name in spec.metrics}
        for policy_rows in self._policy_rows.values():
            policy_rows.step.env_state = None if self._env_state is None else self._env_state.arrays
            policy_rows.step.metrics = self._metrics or None

    def begin_tick(self) -> None:
        """Clears the rewards, flags and metrics of the last tick, but not `alive`."""
        for policy_rows in self._policy_rows.values():
            step = policy_rows.step
            step.reward.fill(0.0)
            for flag in (step.terminated, step.truncated, step.is_first, step.turn):
                flag.fill(False)
        for values in self._metrics.values():
            # Metrics are known when the episode ends; an agent that is done earlier has none.
            values.fill(np.nan)

    def begin_episode(self, index: int) -> None:
        """Clears the rows of one environment; its new episode is written after this."""
        for agent in self._positions:
            self.leave(index, agent)

    def leave(self, index: int, agent: str) -> None:
        """Takes an agent out of the game: its row is not alive, and is zero."""
        policy_rows, row = self._row(index, agent)
        if policy_rows.step.alive[row]:
            policy_rows.step.alive[row] = False
            policy_rows.obs.clear(row)

    def enter(self, index: int, agent: str, obs: Any, info: Mapping[str, Any], call: str) -> None:
        """Writes the first observation of an agent's episode."""
        policy_rows, row = self._row(index, agent)
        policy_rows.step.is_first[row] = True
        policy_rows.step.alive[row] = True
        self.show(index, agent, obs, info, call)

    def show(self, index: int, agent: str, obs: Any, info: Mapping[str, Any], call: str) -> None:
        """Writes an agent's observation, and the action mask that comes with it."""
        policy_rows, row = self._row(index, agent)
        try:
            obs, value = policy_rows.spaces.take_mask(obs, info)
            policy_rows.obs.write(row, obs)
            if policy_rows.masks is None:
                if value is not None:
                    raise BadObservation(
                        "action_mask: expected none, because its first info had none (a class with "
                        "masks declares has_action_mask = True), got one"
                    )
                return
            # Turn-based games give an empty mask to an agent that is not on turn.
            policy_rows.unmasked[row] = value is None or not np.any(value)
            if policy_rows.unmasked[row]:
                policy_rows.masks.allow_all(row)
            else:
                policy_rows.masks.write(row, value)
        except BadObservation as problem:
            raise env_error(f"{agent}: {problem}", index, call, FIX_SPACE) from None

    def take_turn(self, index: int, agent: str) -> None:
        """Marks an agent as acting now; raises if its mask allows nothing."""
        policy_rows, row = self._row(index, agent)
        if policy_rows.unmasked[row]:
            raise env_error(
                f"{agent}: action_mask: expected at least one allowed action, got none",
                index,
                "reset" if policy_rows.step.is_first[row] else "step",
                "Give a mask with every observation that an agent acts on.",
            )
        policy_rows.step.turn[row] = True

    def earn(self, index: int, agent: str, reward: Any) -> None:
        """Adds a reward to what an agent earned in this tick."""
        policy_rows, row = self._row(index, agent)
        try:
            policy_rows.step.reward[row] += reward
        except (TypeError, ValueError):
            raise env_error(
                f"{agent}: reward: expected one number, got {reward!r:.60}",
                index,
                "step",
                "Return a float per agent.",
            ) from None

    def finish(self, index: int, agent: str, *, terminated: Any) -> None:
        """Marks an agent's final observation as terminated, or else as truncated."""
        policy_rows, row = self._row(index, agent)
        policy_rows.step.terminated[row] = bool(terminated)
        policy_rows.step.truncated[row] = not terminated
        if policy_rows.masks is not None:
            policy_rows.masks.allow_all(row)

    def finished(self, index: int, agent: str) -> bool:
        """Whether the agent's row holds a final observation."""
        policy_rows, row = self._row(index, agent)
        return bool(policy_rows.step.terminated[row] or policy_rows.step.truncated[row])

    def read_metrics(
        self, index: int, infos: Mapping[Any, Mapping[str, Any]], *, out_of_time: bool
    ) -> None:
        """Reads the declared metrics from any agent's info that has them.

        The value is NaN where `max_episode_steps` cuts an episode short.
        """
        for name, values in self._metrics.items():
            found = [info[name] for info in infos.values() if name in info]
            if not found and not out_of_time:
                raise env_error(
                    f"info[{name!r}]: expected a number at the end of the episode, got none",
                    index,
                    "step",
                    "Add it to an agent's info, or remove it from the `metrics` attribute.",
                )
            values[index] = found[0] if found else np.nan

    def write_state(self, index: int, env: Any) -> None:
        """Copies the environment's global state, if it has one."""
        if self._env_state is None:
            return
        try:
            self._env_state.write(index, env.state())
        except BadObservation as problem:
            raise env_error(str(problem), index, "state", FIX_SPACE) from None

    def env_actions(self, actions: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Actions as the environments take them, [envs, ...] by agent."""
        return {
            agent: batch
            for name, policy_rows in self._policy_rows.items()
            for agent, batch in zip(
                policy_rows.agents, policy_rows.env_actions(actions[name]), strict=True
            )
        }

    def steps(self, call: str) -> dict[str, EnvStep]:
        """The finished tick by policy; raises if it has numbers that no network can use."""
        if self._env_state is not None and (broken := self._env_state.broken_row()) is not None:
            raise env_error(broken.problem, broken.row, "state", broken.fix)
        for policy_rows in self._policy_rows.values():
            broken = policy_rows.obs.broken_row()
            if broken is not None:
                index, column = divmod(broken.row, len(policy_rows.agents))
                problem = f"{policy_rows.agents[column]}: {broken.problem}"
                raise env_error(problem, index, call, broken.fix)
            finite = np.isfinite(policy_rows.step.reward)
            if not finite.all():
                row = int(np.argmin(finite))
                index, column = divmod(row, len(policy_rows.agents))
                raise env_error(
                    f"{policy_rows.agents[column]}: reward: expected a finite number, got "
                    f"{policy_rows.step.reward[row]}",
                    index,
                    call,
                    FIX_NUMBERS,
                )
        return {name: policy_rows.step for name, policy_rows in self._policy_rows.items()}

    def _row(self, index: int, agent: str) -> tuple[PolicyRows, int]:
        if agent not in self._positions:
            raise EnvError(
                f"agent {agent!r}: expected one of possible_agents {list(self._positions)}, got an "
                f"unknown agent, from environment {index}. List every agent in possible_agents."
            )
        name, column = self._positions[agent]
        policy_rows = self._policy_rows[name]
        return policy_rows, index * len(policy_rows.agents) + column


def team_spec(env: Any, *, first_infos: Mapping[Any, Any] | None, turn_based: bool) -> EnvSpec:
    """The spec of a PettingZoo environment; `first_infos` come from a first reset, if needed."""
    agents: dict[str, AgentSpec] = {}
    for agent in env.possible_agents:
        info = (first_infos or {}).get(agent, {})
        declared = getattr(env, "has_action_mask", "action_mask" in info)
        agents[str(agent)] = agent_spec(
            env.observation_space(agent),
            env.action_space(agent),
            has_action_mask=bool(declared),
            agent=str(agent),
        )
    state_space = getattr(env, "state_space", None)
    return EnvSpec(
        agents=agents,
        env_state=obs_spec(state_space, name="state") if state_space is not None else None,
        metrics=declared_metrics(getattr(env, "metrics", ())),
        turn_based=turn_based,
    )


def team_spaces(env: Any) -> dict[str, AgentSpaces]:
    """The spaces of a PettingZoo environment's agents."""
    return {str(agent): _spaces_of(env, agent) for agent in env.possible_agents}


def _spaces_of(env: Any, agent: Any) -> AgentSpaces:
    return agent_spaces(env.observation_space(agent), env.action_space(agent))


def may_have_masks(env: Any) -> bool:
    """Whether a first reset is needed to know if action masks come in the infos."""
    if hasattr(env, "has_action_mask"):
        return False
    spec = team_spec(env, first_infos=None, turn_based=False)
    return any(
        not agent.has_action_mask and not isinstance(agent.action, Box)
        for agent in spec.agents.values()
    )
