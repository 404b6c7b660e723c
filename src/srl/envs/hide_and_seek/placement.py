"""Where agents, boxes and ramps are at the start of an episode, so that nothing overlaps.

Objects take whole cells of a grid and move at random within the room that is left in them. If one
object finds no place, the whole world is drawn again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from srl.envs.hide_and_seek.config import HideAndSeekConfig
from srl.envs.hide_and_seek.layout import Layout, draw_layout
from srl.errors import ConfigError

_OBJECT_TRIES = 10
_WORLD_TRIES = 200
"""Worlds that are drawn before the settings count as impossible."""


@dataclass(frozen=True)
class EpisodeStart:
    """The start of one episode. Entities that are not in the game have NaN as their position."""

    layout: Layout
    agents: np.ndarray
    """float [agents, 2]: centres of hiders, then seekers, padded."""
    boxes: np.ndarray
    """float [boxes, 2]."""
    box_sizes: np.ndarray
    """float [boxes, 2]: full sizes along x and y; elongated boxes come first."""
    ramps: np.ndarray
    """float [ramps, 2]."""


class _NoPlaceError(Exception):
    """An object found no place; the world is drawn again."""


def draw_start(config: HideAndSeekConfig, random: np.random.Generator) -> EpisodeStart:
    """Draws walls and positions until everything has its place."""
    failed = ""
    for _ in range(_WORLD_TRIES):
        try:
            return _Placement(config, random).start()
        except _NoPlaceError as error:
            failed = str(error)
    raise ConfigError(
        f"hide_and_seek: expected room for all objects, got none for {failed} in {_WORLD_TRIES} "
        f"worlds of {config.side:g} m. Ask for fewer or smaller objects, or a larger scale."
    )


class _Placement:
    """One attempt to place everything."""

    def __init__(self, config: HideAndSeekConfig, random: np.random.Generator) -> None:
        self._config, self._random = config, random
        self._layout = draw_layout(config, random)
        self._free = self._layout.free.copy()

    def start(self) -> EpisodeStart:
        config, random, physics = self._config, self._random, self._config.physics
        agents = np.full((config.num_agents, 2), np.nan)
        width = 2 * max(physics.agent_radius, physics.arm_offset[0] + physics.arm_radius)
        teams = ((config.hiders, config.hiders_spawn), (config.seekers, config.seekers_spawn))
        at = 0
        for counts, spawn in teams:
            number = int(random.integers(counts[0], counts[1] + 1))
            where = self._quarter(spawn)
            for index in range(number):
                first = agents[at] if index and spawn == "together" else None
                agents[at + index] = self._place("an agent", (width, width), where, first)
            at += counts[1]
        boxes = np.full((config.num_boxes, 2), np.nan)
        sizes = np.full((config.num_boxes, 2), physics.box_size)
        number = int(random.integers(config.boxes[0], config.boxes[1] + 1))
        self._draw_long(number, sizes)
        where = self._quarter(config.boxes_spawn)
        # No number is drawn where there is no curriculum: seeds give the same episodes as before.
        easy = 0 < config.easy_starts > random.random()
        away = self._layout.door_middles if config.box_door_distance and not easy else None
        for index in range(number):
            boxes[index] = self._place("a box", tuple(sizes[index]), where, None, away)
        if easy and number and len(self._layout.door_middles):
            self._bring_closer(agents, boxes, sizes)
        ramps = np.empty((config.ramps, 2))
        for index in range(config.ramps):
            ramps[index] = self._place("a ramp", (physics.ramp_size, physics.ramp_size), None)
        return EpisodeStart(self._layout, agents, boxes, sizes, ramps)

    def _draw_long(self, number: int, sizes: np.ndarray) -> None:
        """Makes the first boxes elongated, some along x and the others along y."""
        config, random = self._config, self._random
        if config.long_boxes < 0 or not number:
            return
        long = int(random.integers(config.long_boxes, number + 1))
        along_x = int(random.integers(long + 1))
        length, width, _ = config.physics.long_box_size
        sizes[:along_x] = (length, width)
        sizes[along_x:long] = (width, length)

    def _bring_closer(self, agents: np.ndarray, boxes: np.ndarray, sizes: np.ndarray) -> None:
        """Moves boxes towards a door, and hiders towards the first box, in place."""
        doors, hiders = self._layout.door_middles, self._config.hiders[1]
        door = doors[int(self._random.integers(len(doors)))]
        physics = self._config.physics
        agent_size = 2 * (physics.arm_offset[0] + physics.arm_radius)
        centres = np.concatenate([boxes, agents])
        extents = np.concatenate([sizes, np.full((len(agents), 2), agent_size)])
        moved = [*range(len(boxes)), *range(len(boxes), len(boxes) + hiders)]
        for index in (i for i in moved if not np.isnan(centres[i, 0])):
            goal = door if index < len(boxes) else centres[0]
            centres[index] = self._on_the_way(goal, index, centres, extents)
        boxes[:], agents[:] = centres[: len(boxes)], centres[len(boxes) :]

    def _on_the_way(
        self, goal: np.ndarray, index: int, centres: np.ndarray, extents: np.ndarray
    ) -> np.ndarray:
        """A random point between a goal and where a body is, at which it touches nothing.

        More often it is near the goal, where there is more to learn at first.
        """
        walls = self._layout.pieces[self._layout.pieces[:, 2] > 0]
        others = np.delete(np.arange(len(centres)), index)
        middles = np.concatenate([walls[:, :2], centres[others]])
        halves = np.concatenate([walls[:, 2:], extents[others] / 2]) + extents[index] / 2
        for _ in range(_OBJECT_TRIES):
            point = goal + self._random.random() ** 2 * (centres[index] - goal)
            if not (np.abs(middles - point) <= halves).all(1).any():
                return np.asarray(point)
        return np.asarray(centres[index])

    def _quarter(self, spawn: str) -> np.ndarray | None:
        """The cells in which a kind of object may spawn, or None for all."""
        room = self._layout.room
        if room is None or spawn in ("anywhere", "together"):
            return None
        if spawn == "room":
            return room
        n = self._config.num_cells
        half = n // 2
        cells = np.zeros((n, n), bool)
        low, high = slice(1, half), slice(half + 1, n - 1)
        # One of the three quarters without the room.
        x, y = ((low, low), (low, high), (high, high))[int(self._random.integers(3))]
        cells[x, y] = True
        return cells

    def _place(
        self,
        what: str,
        size: tuple[float, ...],
        where: np.ndarray | None,
        near: np.ndarray | None = None,
        away: np.ndarray | None = None,
    ) -> tuple[float, float]:
        """A random free place; takes its cells."""
        config, random = self._config, self._random
        cell = config.cell_size
        nx, ny = (max(1, math.ceil(side / cell - 1e-9)) for side in size)
        most_x, most_y = config.num_cells - 1 - nx, config.num_cells - 1 - ny
        low, high = np.array([1, 1]), np.array([most_x, most_y])
        if near is not None:
            reach = math.ceil(config.spawn_radius * config.scale / cell - 1e-9)
            corner = np.floor(near / cell).astype(int)
            low, high = np.maximum(low, corner - reach), np.minimum(high, corner + reach)
        elif where is not None:
            inside = np.argwhere(where)
            low = np.maximum(low, inside.min(0))
            high = np.minimum(high, inside.max(0) + 1 - (nx, ny))
        if (high < low).any():
            raise _NoPlaceError(what)
        for _ in range(_OBJECT_TRIES):
            i, j = (
                int(random.integers(low[0], high[0] + 1)),
                int(random.integers(low[1], high[1] + 1)),
            )
            spare_x, spare_y = nx * cell - size[0], ny * cell - size[1]
            x = i * cell + size[0] / 2 + random.random() * spare_x
            y = j * cell + size[1] / 2 + random.random() * spare_y
            cells = (slice(i, i + nx), slice(j, j + ny))
            if not self._free[cells].all() or (where is not None and not where[cells].all()):
                continue
            if away is not None and len(away):
                distance = np.hypot(away[:, 0] - x, away[:, 1] - y).min()
                if distance < config.box_door_distance:
                    continue
            self._free[cells] = False
            return x, y
        raise _NoPlaceError(what)
