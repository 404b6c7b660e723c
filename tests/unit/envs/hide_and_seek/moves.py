"""Games from given positions, with actions by name."""

from __future__ import annotations

from typing import Any

import numpy as np

from srl.envs.hide_and_seek import variant
from srl.envs.hide_and_seek.config import HideAndSeekConfig
from srl.envs.hide_and_seek.game import Game
from srl.envs.hide_and_seek.layout import Layout, max_doors, max_pieces
from srl.envs.hide_and_seek.placement import EpisodeStart

STILL = (5, 5, 5, 0, 0)


def config(**changes: Any) -> HideAndSeekConfig:
    """A quadrant with one hider, one seeker, one box and no preparation, unless changed."""
    defaults = dict(hiders=1, seekers=1, boxes=1, ramps=0, preparation=0.0, lockable_ramps=True)
    return variant("hide_and_seek_quadrant", **{**defaults, **changes})


def start(
    rules: HideAndSeekConfig,
    agents: list[tuple[float, float]],
    boxes: list[tuple[float, float]] = (),  # type: ignore[assignment]
    ramps: list[tuple[float, float]] = (),  # type: ignore[assignment]
    walls: list[tuple[float, float, float, float]] = (),  # type: ignore[assignment]
    sizes: tuple[float, float] = (0.5, 0.5),
) -> EpisodeStart:
    """A start in the open. Walls are inner walls, by centre and half sizes."""
    pieces = np.zeros((max_pieces(rules), 4))
    pieces[4 : 4 + len(walls)] = np.array(walls).reshape(-1, 4)
    free = np.ones((rules.num_cells, rules.num_cells), bool)
    doors = np.full((max_doors(rules), 2), -1)
    if len(walls) == 2:
        doors[0] = (4, 5)
    layout = Layout(pieces, doors, np.zeros((0, 2)), free, None)

    def padded(points: Any, count: int) -> np.ndarray:
        found = np.full((count, 2), np.nan)
        found[: len(points)] = np.array(points).reshape(-1, 2)
        return found

    return EpisodeStart(
        layout=layout,
        agents=padded(agents, rules.num_agents),
        boxes=padded(boxes, rules.num_boxes),
        box_sizes=np.full((rules.num_boxes, 2), sizes),
        ramps=padded(ramps, rules.ramps),
    )


class Scripted:
    """A game in one world, played by hand."""

    def __init__(self, rules: HideAndSeekConfig, begin: EpisodeStart) -> None:
        self.game = Game(rules, 1)
        self.game.seed(0, 0)
        self.game.begin(0, begin)

    def play(self, *actions: tuple[int, int, int, int, int], steps: int = 1) -> None:
        """Plays steps; agents without an action wait."""
        batch = np.array([*actions, *[STILL] * (self.game.config.num_agents - len(actions))])
        for _ in range(steps):
            self.game.tick(batch[None])

    def turn(self, agent: int, yaw: float) -> None:
        """Turns an agent, and looks again."""
        worlds = self.game.worlds
        worlds.qpos[0, agent, -1] = yaw
        self.game._observe()

    def at(self, body: int) -> np.ndarray:
        """Position and yaw of an agent, box or ramp."""
        return self.game.worlds.qpos[0, body].copy()

    def sees(self, agent: int, other: int) -> bool:
        """Whether an agent sees a body."""
        sight = self.game.sight
        column = sight._others[agent].tolist().index(other)
        return bool(sight.visible[0, agent, column])
