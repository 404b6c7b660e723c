"""Games of hide-and-seek in many worlds, one tick of all of them at a time.

A tick applies grips, locks and forces, steps the physics, casts the rays, and writes rewards and
observations. Worlds whose last observation was final start a new episode in the same tick.
"""

from __future__ import annotations

import copy

import numpy as np
from gymnasium import spaces

from srl.data.tree import Tree
from srl.envs.hide_and_seek.config import HideAndSeekConfig
from srl.envs.hide_and_seek.detectors import Detectors
from srl.envs.hide_and_seek.interaction import Interaction
from srl.envs.hide_and_seek.observation import Observation
from srl.envs.hide_and_seek.placement import EpisodeStart, draw_start
from srl.envs.hide_and_seek.rewards import rewards
from srl.envs.hide_and_seek.scene import build_scene
from srl.envs.hide_and_seek.sight import Sight
from srl.envs.hide_and_seek.worlds import Worlds

HEADS = 5
"""Parts of an action: forces along x and y, torque, grab, lock."""


def action_space(config: HideAndSeekConfig) -> spaces.MultiDiscrete:
    """Forces along x and y, torque, grab and lock."""
    return spaces.MultiDiscrete([config.action_levels] * 3 + [2, 2])


def agent_names(config: HideAndSeekConfig) -> tuple[str, ...]:
    """The names of all agents that a game may have."""
    return (
        *(f"hider_{index}" for index in range(config.hiders[1])),
        *(f"seeker_{index}" for index in range(config.seekers[1])),
    )


class Game:
    """The worlds of a game. Arrays are written again at every tick."""

    def __init__(
        self, config: HideAndSeekConfig, num_worlds: int, *, threads: int = 1, max_steps: int = 0
    ) -> None:
        """`max_steps` ends episodes earlier than the horizon, if it is not 0."""
        self.config = config
        self._num_steps = min(config.num_steps, max_steps or config.num_steps)
        self.num_worlds = num_worlds
        # Settings without room for everything fail here, not in the first episode.
        draw_start(config, np.random.default_rng(0))
        self.worlds = Worlds(build_scene(config), num_worlds, threads)
        self.sight = Sight(self.worlds)
        self.interaction = Interaction(self.worlds)
        self.detectors = Detectors(self.worlds, self.interaction)
        self.observation = Observation(self.worlds, self.sight, self.interaction)
        self.time = np.zeros(num_worlds, np.int64)
        """int [worlds]: steps since the start of the episode."""
        self.reward = np.zeros((num_worlds, config.num_agents), np.float32)
        """float [worlds, agents]."""
        self.final = np.zeros(num_worlds, bool)
        """bool [worlds]: whether the last observation was final."""
        self.discarded = np.zeros(num_worlds, bool)
        """bool [worlds]: whether the episode ended now because its physics went wrong."""
        self.seen = np.zeros(num_worlds, bool)
        """bool [worlds]: whether a seeker sees a hider now."""
        self._randoms = [np.random.default_rng() for _ in range(num_worlds)]
        self._last = (self.worlds.qpos.copy(), self.worlds.qvel.copy())
        self._is_seeker = np.arange(config.num_agents) >= config.hiders[1]
        self._hider_columns = self._columns_of_hiders()

    def _columns_of_hiders(self) -> np.ndarray:
        """int [seekers, hiders]: which of a seeker's others each hider is."""
        hiders, agents = self.config.hiders[1], self.config.num_agents
        seekers = np.arange(hiders, agents)[:, None]
        return (np.arange(hiders) - seekers - 1) % agents

    @property
    def present(self) -> np.ndarray:
        """bool [worlds, agents]: which agents are in the game."""
        return self.worlds.present[:, : self.config.num_agents]

    def seed(self, world: int, seed: int | None) -> None:
        """Seeds the random numbers of one world; None takes them from the system."""
        self._randoms[world] = np.random.default_rng(seed)

    def reset(self, worlds: list[int]) -> None:
        """Starts an episode in each of these worlds."""
        for world in worlds:
            self._begin(world, draw_start(self.config, self._randoms[world]))
        self._observe()

    def begin(self, world: int, start: EpisodeStart) -> None:
        """Starts an episode with given positions, in one world."""
        self._begin(world, start)
        self._observe()

    def _begin(self, world: int, start: EpisodeStart) -> None:
        self.worlds.begin(world, start)
        self.interaction.begin(world)
        self.detectors.begin(world)
        self.time[world] = 0
        self.final[world] = self.discarded[world] = False
        self.reward[world] = 0.0

    def tick(self, actions: np.ndarray) -> None:
        """Steps every world once, or starts a new episode after its final observation.

        `actions` is int [worlds, agents, 5]; those of agents that are not in the game are ignored.
        """
        playing = ~self.final
        starting = np.flatnonzero(self.final).tolist()
        self._act(actions, playing)
        self._last[0][:], self._last[1][:] = self.worlds.qpos, self.worlds.qvel
        self.worlds.step(np.flatnonzero(playing).tolist())
        self.discarded[:] = self.worlds.broken & playing
        self.time += playing & ~self.discarded
        for world in np.flatnonzero(self.discarded).tolist():
            # The episode ends with the last observation that physics could explain.
            self.worlds.rewind(world, self._last[0][world], self._last[1][world])
        for world in starting:
            self._begin(world, draw_start(self.config, self._randoms[world]))
        self._observe()
        self._judge(playing)

    def _act(self, actions: np.ndarray, playing: np.ndarray) -> None:
        """Applies grips and locks, and sets the motors; seekers wait in the preparation phase."""
        middle = self.config.action_levels // 2
        waiting = (self.time < self.config.preparation_steps)[:, None] & self._is_seeker
        if self.config.motionless_seekers:
            waiting = self._is_seeker
        free = ~waiting & self.present
        levels = (actions[..., :3] - middle) * free[..., None]
        np.multiply(levels, self.config.physics.motor_limit / middle, out=self.worlds.control)
        objects = slice(self.config.num_agents - 1, None)
        self.interaction.apply(
            (actions[..., 3] != 0) & free,
            (actions[..., 4] != 0) & free,
            self.sight.visible[..., objects],
            playing,
            self._randoms,
        )

    def _observe(self) -> None:
        self.sight.look()
        self.observation.write(self.time)

    def _judge(self, playing: np.ndarray) -> None:
        """Pays the agents, measures the episodes and ends those whose time is over."""
        config, hiders = self.config, self.config.hiders[1]
        rows = np.arange(config.num_agents - hiders)[:, None]
        sees = self.sight.visible[:, hiders:][:, rows, self._hider_columns]
        self.seen[:] = sees.any((1, 2))
        counted = playing & ~self.discarded
        paid = counted & (self.time > config.preparation_steps)
        self.reward[:] = rewards(config, sees, self.worlds.qpos[..., :2], self.worlds.present)
        self.reward[~paid] = 0.0
        self.detectors.watch(self.seen & counted, paid)
        for world in np.flatnonzero(counted & (self.time == config.preparation_steps)).tolist():
            self.detectors.end_preparation(world)
        ended = counted & (self.time >= self._num_steps)
        for world in np.flatnonzero(ended).tolist():
            self.detectors.end(world)
        for world in np.flatnonzero(self.discarded).tolist():
            self.detectors.discard(world)
        self.final[:] = ended | self.discarded

    def state(self) -> dict[str, Tree]:
        """All that later ticks depend on."""
        return {
            "worlds": self.worlds.state(),
            "interaction": self.interaction.state(),
            "detectors": self.detectors.state(),
            "time": self.time.copy(),
            "final": self.final.copy(),
            "discarded": self.discarded.copy(),
            "reward": self.reward.copy(),
            "random": [copy.deepcopy(r.bit_generator.state) for r in self._randoms],
        }

    def restore(self, state: dict[str, Tree]) -> None:
        """Continues from `state`, and computes the last observations again."""
        self.worlds.restore(state["worlds"])
        self.interaction.restore(state["interaction"])
        self.detectors.restore(state["detectors"])
        self.time[:], self.final[:] = state["time"], state["final"]
        self.discarded[:], self.reward[:] = state["discarded"], state["reward"]
        for random, saved in zip(self._randoms, state["random"], strict=True):
            random.bit_generator.state = saved
        self._observe()

    def close(self) -> None:
        """Ends the threads of the worlds. Safe to call twice."""
        self.worlds.close()
