"""Hide-and-seek as a PettingZoo ParallelEnv, for use without the rest of this package."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

from srl.data.tree import Tree
from srl.envs.hide_and_seek.config import HideAndSeekConfig, changed, variant
from srl.envs.hide_and_seek.detectors import detector_names
from srl.envs.hide_and_seek.game import HEADS, Game, action_space, agent_names
from srl.envs.hide_and_seek.observation import observation_space
from srl.envs.hide_and_seek.pictures import Pictures
from srl.errors import ConfigError


class HideAndSeek(ParallelEnv):  # type: ignore[misc]
    """A game in one world. Episodes end by truncation; each reset may have other agents."""

    metadata = {  # noqa: RUF012 (PettingZoo wants a dict)
        "name": "hide_and_seek_v0",
        "render_modes": ["rgb_array"],
        "render_fps": 14,
        "is_parallelizable": True,
    }

    def __init__(
        self,
        game: str | HideAndSeekConfig = "hide_and_seek",
        *,
        render_mode: str | None = None,
        **changes: Any,
    ) -> None:
        """`game` is a config or a name in `VARIANTS`; further arguments change its settings."""
        if render_mode not in (None, "rgb_array"):
            raise ConfigError(f"render_mode: expected 'rgb_array' or None, got {render_mode!r}.")
        self.config = variant(game, **changes) if isinstance(game, str) else changed(game, changes)
        self.render_mode = render_mode
        self.metrics = detector_names(self.config)
        self.has_action_mask = False
        self.possible_agents = list(agent_names(self.config))
        self.agents: list[str] = []
        self.observation_spaces = {
            name: observation_space(self.config) for name in self.possible_agents
        }
        self.action_spaces = {name: action_space(self.config) for name in self.possible_agents}
        self.game = Game(self.config, 1)
        self.game.seed(0, None)
        self._pictures = Pictures(self.game)

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        """The same space for all agents."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Space[Any]:
        """The same space for all agents."""
        return self.action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """Starts an episode; a seed makes it and all later ones reproducible."""
        if seed is not None:
            self.game.seed(0, seed)
        self.game.reset([0])
        there = self.game.present[0]
        self.agents = [a for a, here in zip(self.possible_agents, there, strict=True) if here]
        return self._observations(self.agents), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        """Plays one step of all agents in the game."""
        game, acting = self.game, self.agents
        batch = np.full((1, len(self.possible_agents), HEADS), self.config.action_levels // 2)
        batch[..., 3:] = 0
        for agent, action in actions.items():
            batch[0, self.possible_agents.index(agent)] = action
        game.tick(batch)
        over = bool(game.final[0])
        infos: dict[str, dict[str, Any]] = {agent: {} for agent in acting}
        if over:
            measured = {name: float(v[0]) for name, v in game.detectors.values.items()}
            infos = {agent: dict(measured) for agent in acting}
            self.agents = []
        rewards = {
            agent: float(game.reward[0, self.possible_agents.index(agent)]) for agent in acting
        }
        return (
            self._observations(acting),
            rewards,
            dict.fromkeys(acting, False),
            dict.fromkeys(acting, over),
            infos,
        )

    def _observations(self, agents: list[str]) -> dict[str, dict[str, np.ndarray]]:
        arrays = self.game.observation.arrays
        return {
            agent: {
                name: array[0, self.possible_agents.index(agent)].copy()
                for name, array in arrays.items()
            }
            for agent in agents
        }

    def render(self) -> np.ndarray:
        """A picture (uint8 [height, width, 3]) of the game."""
        return self._pictures.picture(0)

    def state(self) -> dict[str, Tree]:
        """Everything that the rest of the episode depends on, for `restore`.

        A view of the whole game for a central critic is in every observation: it ignores the masks
        of what is visible.
        """
        return {"game": self.game.state(), "agents": list(self.agents)}

    def restore(self, state: dict[str, Tree]) -> dict[str, dict[str, np.ndarray]]:
        """Continues from `state`; returns the last observations again."""
        self.game.restore(state["game"])
        self.agents = list(state["agents"])
        return self._observations(self.agents)

    def close(self) -> None:
        """Frees the world."""
        self._pictures.close()
        self.game.close()
