"""PettingZoo AEC environments as a group: agents take turns, and a tick is one turn.

In each tick only the selected agent has `turn`. Every reward is reported once, in the tick in
which it was earned. An agent's final observation is shown in the tick in which the agent is done.
PettingZoo asks for empty steps of agents that are done; the group makes these steps. All agents
open their episode at the reset, also those whose first turn comes later. A row that is not on turn
keeps its last observation.
"""

from __future__ import annotations

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


class AecGroup:
    """Copies of a PettingZoo AECEnv. Returned arrays are written again each tick."""

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
        infos = None
        if may_have_masks(envs[0]):
            self._call(0, "reset", lambda: envs[0].reset(seed=0))
            infos = dict(envs[0].infos)
        self.spec = team_spec(envs[0], first_infos=infos, turn_based=True)
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
        """Plays one turn in every environment; an environment without players resets instead."""
        team = self._team
        batches = team.env_actions(actions)
        team.begin_tick()
        for index, env in enumerate(self._envs):
            if not self._playing[index]:
                self._start(index, None)
                continue
            action = batches[str(env.agent_selection)][index]
            self._play(index, env, action)
            team.write_state(index, env)
        return team.steps("step")

    def _start(self, index: int, seed: int | None) -> None:
        env, team = self._envs[index], self._team
        self._call(index, "reset", lambda: env.reset(seed=seed))
        team.begin_episode(index)
        self._done_agents[index].clear()
        self._elapsed[index] = 0
        self._playing[index] = []
        self._enter_new_agents(index, env, "reset")
        if not self._playing[index]:
            raise env_error(
                "agents: expected at least one after a reset, got none",
                index,
                "reset",
                "Fill `agents` in reset().",
            )
        team.take_turn(index, str(env.agent_selection))
        team.write_state(index, env)

    def _play(self, index: int, env: Any, action: Any) -> None:
        team, playing = self._team, self._playing[index]
        for name in self._done_agents[index]:
            team.leave(index, name)
        self._call(index, "step", lambda: env.step(action))
        self._elapsed[index] += 1
        for name in playing:
            team.earn(index, name, env.rewards.get(self._names[name], 0.0))
        infos = dict(env.infos)
        self._finish_done_agents(index, env)
        while self._playing[index] and self._is_done(env, env.agent_selection):
            self._call(index, "step", lambda: env.step(None))
            self._finish_done_agents(index, env)
        out_of_time = bool(self._limit) and self._elapsed[index] >= self._limit
        if out_of_time:
            for name in self._playing[index]:
                self._show(index, env, name)
                team.finish(index, name, terminated=False)
            self._playing[index] = []
        if not self._playing[index]:
            team.read_metrics(index, infos, out_of_time=out_of_time)
            return
        self._enter_new_agents(index, env, "step")
        selected = str(env.agent_selection)
        self._show(index, env, selected)
        team.take_turn(index, selected)

    def _finish_done_agents(self, index: int, env: Any) -> None:
        """Shows the final observation of newly done agents, before PettingZoo removes them."""
        playing = []
        for name in self._playing[index]:
            agent = self._names[name]
            if self._is_done(env, agent):
                self._show(index, env, name)
                self._team.finish(index, name, terminated=env.terminations[agent])
                self._done_agents[index].add(name)
            elif agent not in env.agents:
                raise env_error(
                    f"agents: expected {agent!r} to be terminated or truncated before it leaves, "
                    "got neither",
                    index,
                    "step",
                    "Set terminations[agent] or truncations[agent] first.",
                )
            else:
                playing.append(name)
        self._playing[index] = playing

    def _enter_new_agents(self, index: int, env: Any, call: str) -> None:
        known = self._done_agents[index].union(self._playing[index])
        for agent in env.agents:
            name = str(agent)
            if name not in known:
                obs = self._observe(index, env, agent)
                self._team.enter(index, name, obs, env.infos.get(agent, {}), call)
                self._playing[index].append(name)

    def _show(self, index: int, env: Any, name: str) -> None:
        agent = self._names[name]
        obs = self._observe(index, env, agent)
        self._team.show(index, name, obs, env.infos.get(agent, {}), "step")

    def _observe(self, index: int, env: Any, agent: Any) -> Any:
        try:
            return env.observe(agent)
        except USER_ERRORS as error:
            raise env_raised(error, index, "observe") from error

    def _call(self, index: int, name: str, call: Any) -> None:
        self._on_call(name, index)
        try:
            call()
        except USER_ERRORS as error:
            raise env_raised(error, index, name) from error

    @staticmethod
    def _is_done(env: Any, agent: Any) -> bool:
        return bool(env.terminations.get(agent, False) or env.truncations.get(agent, False))

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
