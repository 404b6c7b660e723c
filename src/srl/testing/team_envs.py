"""Scripted PettingZoo environments with agents that come and go, for tests.

The seed decides which agents are in the game, what they are paid and how episodes end. Actions
change nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv

AGENTS = ("early", "steady", "late")


class TeamScript:
    """One episode: the ticks in which each agent enters and is done, and its rewards."""

    def __init__(self, seed: int, episode: int) -> None:
        random = np.random.default_rng([seed, episode])
        length = int(random.integers(3, 8))
        self.enters = {"early": 0, "steady": 0, "late": int(random.integers(1, length - 1))}
        self.done = {"early": int(random.integers(1, length)), "steady": length, "late": length}
        self.terminates = {agent: bool(random.integers(2)) for agent in AGENTS}
        self.rewards = random.integers(-9, 10, (length + 1, len(AGENTS)))
        """[ticks, agents]: only agents that were in the game before the tick are paid."""

    def paid(self, agent: str) -> int:
        """The sum of an agent's rewards over its life in a parallel game."""
        ticks = slice(self.enters[agent] + 1, self.done[agent] + 1)
        return int(self.rewards[ticks, AGENTS.index(agent)].sum())


class ScriptedParallelEnv(ParallelEnv):  # type: ignore[misc]
    """A parallel game that follows a TeamScript; the observation is (episode, tick, agent)."""

    metadata = {"name": "scripted_parallel_v0", "render_modes": []}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None) -> None:
        self.possible_agents = list(AGENTS)
        self.agents: list[str] = []
        self.render_mode = render_mode
        self.state_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self._seed, self._episode, self._time = 0, -1, 0

    def observation_space(self, agent: str) -> Any:
        """The same space for all agents."""
        return spaces.Box(-np.inf, np.inf, (3,), np.float32)

    def action_space(self, agent: str) -> Any:
        """The same space for all agents."""
        return spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        """Starts the next episode of the script, or the first one if a seed is given."""
        if seed is not None:
            self._seed, self._episode = seed, -1
        self._episode += 1
        self._time = 0
        self.script = TeamScript(self._seed, self._episode)
        self.agents = [agent for agent in AGENTS if self.script.enters[agent] == 0]
        return {agent: self._observe(agent) for agent in self.agents}, {a: {} for a in self.agents}

    def step(self, actions: dict[str, Any]) -> Any:
        """Pays agents that acted; removes agents that are done, and adds new ones."""
        if set(actions) != set(self.agents):
            raise ValueError(f"expected actions of {self.agents}, got {sorted(actions)}")
        self._time += 1
        script, acted = self.script, self.agents
        done = {agent: self._time == script.done[agent] for agent in acted}
        rewards = {a: float(script.rewards[self._time, AGENTS.index(a)]) for a in acted}
        terminations = {a: done[a] and script.terminates[a] for a in acted}
        truncations = {a: done[a] and not script.terminates[a] for a in acted}
        entering = [a for a in AGENTS if script.enters[a] == self._time]
        for agent in entering:
            rewards[agent], terminations[agent], truncations[agent] = 0.0, False, False
        shown = acted + entering
        self.agents = [a for a in AGENTS if a in shown and not done.get(a, False)]
        obs = {agent: self._observe(agent) for agent in shown}
        return obs, rewards, terminations, truncations, {agent: {} for agent in shown}

    def state(self) -> np.ndarray:
        """The global state: episode and tick."""
        return np.array([self._episode, self._time], np.float32)

    def _observe(self, agent: str) -> np.ndarray:
        return np.array([self._episode, self._time, AGENTS.index(agent)], np.float32)


class CrowdEnv(ParallelEnv):  # type: ignore[misc]
    """Twenty agents that each see a large image: pistonball's spaces without its physics."""

    metadata = {"name": "crowd_v0", "render_modes": []}  # noqa: RUF012

    def __init__(
        self,
        *,
        num_agents: int = 20,
        height: int = 457,
        width: int = 120,
        length: int = 50,
        render_mode: str | None = None,
    ) -> None:
        self.possible_agents = [f"agent_{i}" for i in range(num_agents)]
        self.agents: list[str] = []
        self.render_mode = render_mode
        self._image = np.zeros((height, width, 3), np.uint8)
        self._length, self._time = length, 0

    def observation_space(self, agent: str) -> Any:
        """The same space for all agents."""
        return spaces.Box(0, 255, self._image.shape, np.uint8)

    def action_space(self, agent: str) -> Any:
        """The same space for all agents."""
        return spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        """Starts an episode."""
        self._time = 0
        self.agents = list(self.possible_agents)
        return dict.fromkeys(self.agents, self._image), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> Any:
        """Advances by one tick; all rewards are 0."""
        self._time += 1
        acted, over = self.agents, self._time == self._length
        self.agents = [] if over else acted
        return (
            dict.fromkeys(acted, self._image),
            dict.fromkeys(acted, 0.0),
            dict.fromkeys(acted, False),
            dict.fromkeys(acted, over),
            {agent: {} for agent in acted},
        )


class ScriptedAecEnv(AECEnv):  # type: ignore[misc]
    """A turn-based game: each turn pays every player, also those that only wait.

    An episode is a number of turns; "early" is done before the others. Masks come in the
    observation; they allow action 2 and the turn's number modulo 2.
    """

    metadata = {"name": "scripted_aec_v0", "render_modes": [], "is_parallelizable": False}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__()
        self.possible_agents = list(AGENTS)
        self.render_mode = render_mode
        self.paid: list[dict[str, int]] = []
        """The sum of rewards by agent, one dict per episode."""
        self._seed, self._episode = 0, -1

    def observation_space(self, agent: str) -> Any:
        """The same space for all agents."""
        return spaces.Dict(
            {
                "observation": spaces.Box(-np.inf, np.inf, (3,), np.float32),
                "action_mask": spaces.Box(0, 1, (3,), np.int8),
            }
        )

    def action_space(self, agent: str) -> Any:
        """The same space for all agents."""
        return spaces.Discrete(3)

    def observe(self, agent: str) -> dict[str, np.ndarray]:
        """An agent's observation; its mask is empty if the agent is not on turn."""
        mask = np.zeros(3, np.int8)
        if agent == self.agent_selection:
            mask[[self._turn % 2, 2]] = 1
        seen = np.array([self._episode, self._turn, AGENTS.index(agent)], np.float32)
        return {"observation": seen, "action_mask": mask}

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        """Starts the next episode of the script, or the first one if a seed is given."""
        if seed is not None:
            self._seed, self._episode, self.paid = seed, -1, []
        self._episode += 1
        self._turn = 0
        self._random = np.random.default_rng([self._seed, self._episode])
        self._length = int(self._random.integers(4, 10))
        self._early_done = int(self._random.integers(1, self._length))
        self.agents = list(AGENTS)
        self.rewards = dict.fromkeys(AGENTS, 0)
        self._cumulative_rewards = dict.fromkeys(AGENTS, 0)
        self.terminations = dict.fromkeys(AGENTS, False)
        self.truncations = dict.fromkeys(AGENTS, False)
        self.infos: dict[str, Any] = {agent: {} for agent in AGENTS}
        self.agent_selection = AGENTS[0]
        self.paid.append(dict.fromkeys(AGENTS, 0))

    def step(self, action: Any) -> None:
        """Plays a turn, or removes a player that is done."""
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        if not self.observe(agent)["action_mask"][int(action)]:
            raise ValueError(f"action {action} is masked")
        self._cumulative_rewards[agent] = 0
        self._turn += 1
        for player in self.agents:
            reward = int(self._random.integers(-9, 10))
            self.rewards[player] = reward
            self.paid[-1][player] += reward
        if self._turn >= self._early_done and "early" in self.agents:
            self.terminations["early"] = True
        if self._turn == self._length:
            self.truncations.update(dict.fromkeys(self.agents, True))
        order = self.agents[self.agents.index(agent) + 1 :] + self.agents
        alive = [a for a in order if not self.terminations[a] and not self.truncations[a]]
        self.agent_selection = (alive or order)[0]
        self._accumulate_rewards()
        self._deads_step_first()
