"""Many games of hide-and-seek as a group: all worlds are stepped by one call.

A policy that plays all agents gets the game's own arrays; other policies get copies of their rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from srl.data.records import EnvStep
from srl.data.spec import EnvSpec
from srl.data.tree import Tree
from srl.envs.buffers import blank_step
from srl.envs.hide_and_seek.config import variant
from srl.envs.hide_and_seek.detectors import detector_names
from srl.envs.hide_and_seek.game import HEADS, Game, action_space, agent_names
from srl.envs.hide_and_seek.observation import observation_space
from srl.envs.hide_and_seek.pictures import Pictures
from srl.envs.protocol import EnvConfig, OnCall, PolicyAgents
from srl.envs.spaces import AgentSpaces, agent_spaces, agent_spec


class HideAndSeekGroup:
    """Worlds of one game as a group. Returned arrays are written again each tick."""

    def __init__(
        self,
        config: EnvConfig,
        num_envs: int,
        policy_agents: PolicyAgents | None,
        on_call: OnCall,
        render: bool,
    ) -> None:
        rules = variant(config.id, **config.args)
        on_call("make", -1)
        self._on_call = on_call
        self.num_envs = num_envs
        self._game = Game(
            rules, num_envs, threads=max(1, config.threads), max_steps=config.max_episode_steps
        )
        self._pictures = Pictures(self._game)
        names = agent_names(rules)
        seen, action = observation_space(rules), action_space(rules)
        agent = agent_spec(seen, action)
        self.spec = EnvSpec(agents=dict.fromkeys(names, agent), metrics=detector_names(rules))
        self.spaces: dict[str, AgentSpaces] = dict.fromkeys(names, agent_spaces(seen, action))
        self.policy_agents: PolicyAgents = (
            policy_agents if policy_agents is not None else {name: (name,) for name in names}
        )
        middle = rules.action_levels // 2
        self._actions = np.zeros((num_envs, len(names), HEADS), np.int64)
        self._actions[..., :3] = middle
        self._rows = {
            policy: [names.index(name) for name in agents if name in names]
            for policy, agents in self.policy_agents.items()
        }
        self._steps = {policy: self._blank(rows) for policy, rows in self._rows.items()}
        self._starting = np.zeros(num_envs, bool)

    def _blank(self, rows: list[int]) -> EnvStep:
        """The record of a policy's rows, with the game's own memory where it has all agents."""
        count = self.num_envs * len(rows)
        arrays = self._game.observation.arrays
        obs = {
            name: array.reshape(count, *array.shape[2:])
            if self._has_all(rows)
            else np.zeros((count, *array.shape[2:]), array.dtype)
            for name, array in arrays.items()
        }
        agent = next(iter(self.spec.agents.values()))
        step = blank_step(agent, obs, rows=count, envs=self.num_envs)
        step.metrics = self._game.detectors.values
        return step

    def _has_all(self, rows: list[int]) -> bool:
        return rows == list(range(self._game.config.num_agents))

    def reset(self, seed: int) -> dict[str, EnvStep]:
        """Starts an episode in every world; world i is seeded with `seed + i`."""
        self._on_call("reset", -1)
        for world in range(self.num_envs):
            self._game.seed(world, seed + world)
        self._game.reset(list(range(self.num_envs)))
        self._starting[:] = True
        return self._published()

    def step(self, actions: dict[str, np.ndarray]) -> dict[str, EnvStep]:
        """Steps every world once; a world whose observation was final starts a new episode."""
        self._on_call("step", -1)
        for policy, rows in self._rows.items():
            self._actions[:, rows] = actions[policy].reshape(self.num_envs, len(rows), HEADS)
        self._starting[:] = self._game.final
        self._game.tick(self._actions)
        return self._published()

    def _published(self) -> dict[str, EnvStep]:
        """Writes the tick into the records."""
        game, starting = self._game, self._starting
        present, final = game.present, game.final
        quiet = not (starting.any() or final.any()) and bool(present.all())
        for policy, rows in self._rows.items():
            step = self._steps[policy]
            there = present[:, rows]
            step.quiet = quiet
            step.reward[:] = game.reward[:, rows].reshape(-1)
            step.alive[:] = there.reshape(-1)
            step.truncated[:] = (there & final[:, None]).reshape(-1)
            step.is_first[:] = (there & starting[:, None]).reshape(-1)
            step.turn[:] = (there & ~final[:, None]).reshape(-1)
            if not self._has_all(rows):
                for name, array in game.observation.arrays.items():
                    step.obs[name][:] = array[:, rows].reshape(step.obs[name].shape)
        return self._steps

    def render(self, index: int) -> np.ndarray:
        """A picture of one world."""
        return self._pictures.picture(index)

    def state(self) -> dict[str, Tree]:
        """All that `restore` needs to continue exactly."""
        return {"game": self._game.state(), "starting": self._starting.copy()}

    def restore(self, state: Any) -> dict[str, EnvStep]:
        """Continues from `state`, and returns the last records again."""
        self._game.restore(state["game"])
        self._starting[:] = state["starting"]
        return self._published()

    def close(self) -> None:
        """Frees the worlds. Safe to call twice."""
        self._pictures.close()
        self._game.close()
