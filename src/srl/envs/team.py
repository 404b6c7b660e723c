"""The rows of a group whose environments hold several agents: where each agent's data goes.

Both PettingZoo groups write through this: it knows lanes, alive masks and the marks of a tick; they
know how their environments are called. An environment may declare `metrics` and `has_action_mask`
as in `gym_group`, and `state_space` with `state()` for a global state.
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
from srl.envs.protocol import Lanes
from srl.envs.spaces import ActionAdapter, AgentSpaces, agent_spec, obs_spec, split_mask
from srl.errors import EnvError


class Lane:
    """The rows of one policy's agents, [envs, agents of the lane]."""

    def __init__(self, env: Any, agents: tuple[str, ...], spec: EnvSpec, num_envs: int) -> None:
        seen, self.mask_in_obs = split_mask(env.observation_space(agents[0]))
        self.agents = agents
        self.rows = num_envs * len(agents)
        self.obs = ObsBuffer(seen, self.rows)
        self.step = blank_step(
            spec.agents[agents[0]], self.obs.arrays, rows=self.rows, envs=num_envs
        )
        self.step.alive.fill(False)
        agent = spec.agents[agents[0]]
        self.masks = MaskRows(agent, self.step) if agent.has_action_mask else None
        self.unmasked = np.zeros(self.rows, bool)
        """Rows whose last observation had no mask, or an empty one."""
        self._actions = [ActionAdapter(env.action_space(agent)) for agent in agents]

    def env_actions(self, actions: np.ndarray) -> list[np.ndarray]:
        """Actions as the environments take them: one array [envs, ...] per agent."""
        count = len(self.agents)
        return [
            adapter.batch(actions[column::count]) for column, adapter in enumerate(self._actions)
        ]


class Team:
    """All lanes of a group, written agent by agent during a tick."""

    def __init__(self, env: Any, spec: EnvSpec, lanes: Lanes | None, num_envs: int) -> None:
        self.spec = spec
        self.lanes: Lanes = lanes if lanes is not None else {a: (a,) for a in spec.agents}
        self._lanes = {
            name: Lane(env, agents, spec, num_envs) for name, agents in self.lanes.items()
        }
        self._places = {
            agent: (name, column)
            for name, agents in self.lanes.items()
            for column, agent in enumerate(agents)
        }
        self._state = ObsBuffer(env.state_space, num_envs) if spec.state is not None else None
        self._metrics = {name: np.zeros(num_envs) for name in spec.metrics}
        for lane in self._lanes.values():
            lane.step.state = None if self._state is None else self._state.arrays
            lane.step.metrics = self._metrics or None

    def begin_tick(self) -> None:
        """Forgets the marks of the last tick; who is alive stays."""
        for lane in self._lanes.values():
            step = lane.step
            step.reward.fill(0.0)
            for flag in (step.terminated, step.truncated, step.is_first, step.turn):
                flag.fill(False)
        for values in self._metrics.values():
            # Known when an episode ends; agents that are done before that have none.
            values.fill(np.nan)

    def begin_episode(self, index: int) -> None:
        """Empties the rows of one environment; whoever is in its new game is written after this."""
        for agent in self._places:
            self.leave(index, agent)

    def leave(self, index: int, agent: str) -> None:
        """Takes an agent out of the game."""
        lane, row = self._row(index, agent)
        if lane.step.alive[row]:
            lane.step.alive[row] = False
            lane.obs.clear(row)

    def enter(self, index: int, agent: str, obs: Any, info: Mapping[str, Any], call: str) -> None:
        """Writes the first observation of an agent's life."""
        lane, row = self._row(index, agent)
        lane.step.is_first[row] = True
        lane.step.alive[row] = True
        self.show(index, agent, obs, info, call)

    def show(self, index: int, agent: str, obs: Any, info: Mapping[str, Any], call: str) -> None:
        """Writes an observation of an agent that may act on it."""
        lane, row = self._row(index, agent)
        try:
            if lane.mask_in_obs:
                obs, value = obs["observation"], obs["action_mask"]
            else:
                value = info.get("action_mask")
            lane.obs.write(row, obs)
            if lane.masks is None:
                if value is not None:
                    raise BadObservation(
                        "action_mask: expected none, because its first info had none (a class that "
                        "has them says has_action_mask = True), got one"
                    )
                return
            # Turn-based games show an empty mask to whoever is not on turn.
            lane.unmasked[row] = value is None or not np.any(value)
            if lane.unmasked[row]:
                lane.masks.allow_all(row)
            else:
                lane.masks.write(row, value)
        except BadObservation as problem:
            raise env_error(f"{agent}: {problem}", index, call, FIX_SPACE) from None

    def take_turn(self, index: int, agent: str) -> None:
        """Marks an agent that acts now."""
        lane, row = self._row(index, agent)
        if lane.unmasked[row]:
            raise env_error(
                f"{agent}: action_mask: expected at least one allowed action, got none",
                index,
                "reset" if lane.step.is_first[row] else "step",
                "Give a mask with every observation that an agent acts on.",
            )
        lane.step.turn[row] = True

    def earn(self, index: int, agent: str, reward: Any) -> None:
        """Adds to what an agent earned in this tick."""
        lane, row = self._row(index, agent)
        try:
            lane.step.reward[row] += reward
        except (TypeError, ValueError):
            raise env_error(
                f"{agent}: reward: expected one number, got {reward!r:.60}",
                index,
                "step",
                "Return a float per agent.",
            ) from None

    def finish(self, index: int, agent: str, *, terminated: Any) -> None:
        """Marks an agent's last observation: terminated, or else truncated."""
        lane, row = self._row(index, agent)
        lane.step.terminated[row] = bool(terminated)
        lane.step.truncated[row] = not terminated
        if lane.masks is not None:
            lane.masks.allow_all(row)

    def finished(self, index: int, agent: str) -> bool:
        """Whether the row holds a last observation."""
        lane, row = self._row(index, agent)
        return bool(lane.step.terminated[row] or lane.step.truncated[row])

    def read_metrics(
        self, index: int, infos: Mapping[Any, Mapping[str, Any]], *, out_of_time: bool
    ) -> None:
        """Reads the declared metrics from whichever agent's info has them.

        A time limit set from outside ends episodes that the environment sees go on: NaN then.
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
        """Reads the environment's global state, where it has one."""
        if self._state is None:
            return
        try:
            self._state.write(index, env.state())
        except BadObservation as problem:
            raise env_error(f"state: {problem}", index, "state", FIX_SPACE) from None

    def env_actions(self, actions: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Actions as the environments take them, [envs, ...] by agent."""
        return {
            agent: batch
            for name, lane in self._lanes.items()
            for agent, batch in zip(lane.agents, lane.env_actions(actions[name]), strict=True)
        }

    def steps(self, call: str) -> dict[str, EnvStep]:
        """The finished tick, after a look for numbers that no network can read."""
        for lane in self._lanes.values():
            broken = lane.obs.broken_row()
            if broken is not None:
                index, column = divmod(broken[0], len(lane.agents))
                raise env_error(f"{lane.agents[column]}: {broken[1]}", index, call, FIX_NUMBERS)
            finite = np.isfinite(lane.step.reward)
            if not finite.all():
                row = int(np.argmin(finite))
                index, column = divmod(row, len(lane.agents))
                raise env_error(
                    f"{lane.agents[column]}: reward: expected a finite number, got "
                    f"{lane.step.reward[row]}",
                    index,
                    call,
                    FIX_NUMBERS,
                )
        return {name: lane.step for name, lane in self._lanes.items()}

    def _row(self, index: int, agent: str) -> tuple[Lane, int]:
        if agent not in self._places:
            raise EnvError(
                f"agent {agent!r}: expected one of possible_agents {list(self._places)}, got a "
                f"stranger, from environment {index}. List every agent in possible_agents."
            )
        name, column = self._places[agent]
        lane = self._lanes[name]
        return lane, index * len(lane.agents) + column


def team_spec(env: Any, *, first_infos: Mapping[Any, Any] | None, turn_based: bool) -> EnvSpec:
    """What a PettingZoo environment declares; `first_infos` are of a first reset, if needed."""
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
    state = getattr(env, "state_space", None)
    return EnvSpec(
        agents=agents,
        state=obs_spec(state, name="state") if state is not None else None,
        metrics=declared_metrics(getattr(env, "metrics", ())),
        turn_based=turn_based,
    )


def team_spaces(env: Any) -> dict[str, AgentSpaces]:
    """The spaces of a PettingZoo environment's agents."""
    return {
        str(agent): AgentSpaces(
            split_mask(env.observation_space(agent))[0], env.action_space(agent)
        )
        for agent in env.possible_agents
    }


def may_have_masks(env: Any) -> bool:
    """Whether only a first reset can tell if action masks come in the infos."""
    if hasattr(env, "has_action_mask"):
        return False
    spec = team_spec(env, first_infos=None, turn_based=False)
    return any(
        not agent.has_action_mask and not isinstance(agent.action, Box)
        for agent in spec.agents.values()
    )
