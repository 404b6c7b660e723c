"""PettingZoo parallel environments as a group: all agents in the game act at every tick.

Agents may enter and leave. An agent that enters opens an episode of its own. An agent that is done
shows its final observation, and is not alive after that. The environment resets in the tick after
its last agent is done.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from srl.data.records import EnvStep
from srl.data.tree import Tree
from srl.envs.buffers import env_error
from srl.envs.gym_group import close_all, env_raised, picture_of
from srl.envs.multi_agent import TeamRows, may_have_masks, team_spaces, team_spec
from srl.envs.protocol import OnCall, PolicyAgents
from srl.errors import EnvError
from srl.tracebacks import USER_ERRORS


class ParallelGroup:
    """Copies of a PettingZoo ParallelEnv. Returned arrays are written again each tick."""

    def __init__(
        self,
        envs: list[Any],
        policy_agents: PolicyAgents | None,
        on_call: OnCall,
        *,
        max_episode_steps: int = 0,
    ) -> None:
        self._envs = envs
        self._on_call = on_call
        self._limit = max_episode_steps
        self.num_envs = len(envs)
        infos = self._reset_env(0, seed=0)[1] if may_have_masks(envs[0]) else None
        self.spec = team_spec(envs[0], first_infos=infos, turn_based=False)
        self.spaces = team_spaces(envs[0])
        self._team = TeamRows(envs[0], self.spec, policy_agents, self.num_envs)
        self.policy_agents = self._team.policy_agents
        self._names = {str(agent): agent for agent in envs[0].possible_agents}
        self._playing: list[list[str]] = [[] for _ in envs]
        self._done_agents: list[set[str]] = [set() for _ in envs]
        self._elapsed = [0] * self.num_envs

    def reset(self, seed: int) -> dict[str, EnvStep]:
        """Starts an episode in every environment; environment i is seeded with `seed + i`."""
        self._team.begin_tick()
        for index in range(self.num_envs):
            self._start(index, seed + index)
        return self._team.steps("reset")

    def step(self, actions: dict[str, np.ndarray]) -> dict[str, EnvStep]:
        """Steps every environment once; an environment without players resets instead."""
        team = self._team
        batches = team.env_actions(actions)
        team.begin_tick()
        for index in range(self.num_envs):
            if not self._playing[index]:
                self._start(index, None)
                continue
            chosen = {self._names[a]: batches[a][index] for a in self._playing[index]}
            self._on_call("step", index)
            try:
                result = self._envs[index].step(chosen)
                obs, rewards, terminations, truncations, infos = result
            except USER_ERRORS as error:
                raise env_raised(error, index, "step") from error
            self._elapsed[index] += 1
            self._read(index, obs, rewards, terminations, truncations, infos)
            team.write_state(index, self._envs[index])
        return team.steps("step")

    def _start(self, index: int, seed: int | None) -> None:
        obs, infos = self._reset_env(index, seed)
        env, team = self._envs[index], self._team
        team.begin_episode(index)
        self._done_agents[index].clear()
        self._elapsed[index] = 0
        self._playing[index] = [str(agent) for agent in env.agents]
        if not env.agents:
            raise env_error(
                "agents: expected at least one after a reset, got none",
                index,
                "reset",
                "Fill `agents` in reset().",
            )
        for agent in env.agents:
            if agent not in obs:
                raise _missing_observation(agent, index, "reset")
            team.enter(index, str(agent), obs[agent], infos.get(agent, {}), "reset")
            team.take_turn(index, str(agent))
        team.write_state(index, env)

    def _reset_env(self, index: int, seed: int | None) -> tuple[Any, Any]:
        self._on_call("reset", index)
        try:
            obs, infos = self._envs[index].reset(seed=seed)
        except USER_ERRORS as error:
            raise env_raised(error, index, "reset") from error
        return obs, infos

    def _read(
        self,
        index: int,
        obs: Mapping[Any, Any],
        rewards: Mapping[Any, Any],
        terminations: Mapping[Any, Any],
        truncations: Mapping[Any, Any],
        infos: Mapping[Any, Any],
    ) -> None:
        team, done_agents = self._team, self._done_agents[index]
        out_of_time = bool(self._limit) and self._elapsed[index] >= self._limit
        for name in done_agents:
            team.leave(index, name)
        playing = []
        for name in self._playing[index]:
            agent = self._names[name]
            terminated = terminations.get(agent, False)
            done = terminated or truncations.get(agent, False)
            if agent in obs:
                team.show(index, name, obs[agent], infos.get(agent, {}), "step")
            elif not done:
                # If a final observation is left out, the row keeps the observation before it.
                raise _missing_observation(agent, index, "step")
            team.earn(index, name, rewards.get(agent, 0.0))
            if done or out_of_time:
                team.finish(index, name, terminated=terminated)
                done_agents.add(name)
            else:
                team.take_turn(index, name)
                playing.append(name)
        if not out_of_time:
            playing += self._enter_new_agents(index, obs, infos)
        self._playing[index] = playing
        if not playing:
            team.read_metrics(index, infos, out_of_time=out_of_time)

    def _enter_new_agents(
        self, index: int, obs: Mapping[Any, Any], infos: Mapping[Any, Any]
    ) -> list[str]:
        known = self._done_agents[index].union(self._playing[index])
        found = []
        for agent in self._envs[index].agents:
            name = str(agent)
            if name in known:
                continue
            if agent not in obs:
                raise _missing_observation(agent, index, "step")
            self._team.enter(index, name, obs[agent], infos.get(agent, {}), "step")
            self._team.take_turn(index, name)
            found.append(name)
        return found

    def render(self, index: int) -> np.ndarray:
        """A picture of one environment."""
        return picture_of(self._envs[index], index)

    def state(self) -> Tree | None:
        """None: PettingZoo offers no exact state (its `state()` is a view, not everything)."""
        return None

    def restore(self, state: Tree) -> dict[str, EnvStep]:
        """Always raises, because there is no state to restore."""
        raise EnvError("restore: PettingZoo environments have no states. Start from reset.")

    def close(self) -> None:
        """Closes all environments."""
        envs, self._envs = self._envs, []
        close_all(envs)


def _missing_observation(agent: Any, index: int, call: str) -> EnvError:
    return env_error(
        f"observations: expected one for {agent!r}, which is in the game, got none",
        index,
        call,
        "Return an observation for each agent, also in the step in which it is done.",
    )
