"""Top-down pictures of a game, drawn without any graphics library that needs a screen.

Walls are grey, boxes yellow, elongated boxes orange, ramps green with an arrow up their slope.
Hiders are blue, seekers red; arms show their front. A cone is what an agent sees; a line joins it
with each agent that it sees. A locked object has a frame and a padlock in the colour of the team
that locked it. A grip is a thick white line.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from srl.envs.hide_and_seek.game import Game

SIZE = 480
"""Pixels along a side of a picture."""
_OVERSAMPLING = 2
_MARGIN = 0.3
"""Metres around the floor that a picture shows."""
HIDER, SEEKER = (45, 105, 220), (215, 60, 50)
"""Colours of the teams."""
_FLOOR, _OUTSIDE, _WALL = (236, 235, 228), (205, 205, 200), (120, 120, 128)
_BOX, _LONG_BOX, _RAMP, _EDGE = (243, 205, 72), (240, 160, 60), (110, 180, 110), (60, 60, 60)

Point = tuple[float, float]


def draw(game: Game, world: int) -> np.ndarray:
    """A picture (uint8 [height, width, 3]) of one world; x is to the right and y is up."""
    picture = _Picture(game, world)
    picture.draw_floor()
    picture.draw_cones()
    picture.draw_objects()
    picture.draw_walls()
    picture.draw_agents()
    picture.draw_status()
    return picture.pixels()


class _Picture:
    """One picture while it is drawn."""

    def __init__(self, game: Game, world: int) -> None:
        self._game, self._world, self._config = game, world, game.config
        self._agents = game.config.num_agents
        self._where = game.worlds.qpos[world]
        self._present = game.worlds.present[world]
        self._scale = SIZE * _OVERSAMPLING / (self._config.side + 2 * _MARGIN)
        size = SIZE * _OVERSAMPLING
        self._image = Image.new("RGB", (size, size), _OUTSIDE)
        self._pen = ImageDraw.Draw(self._image, "RGBA")

    def pixels(self) -> np.ndarray:
        return np.asarray(self._image.resize((SIZE, SIZE), Image.Resampling.BOX))

    def draw_floor(self) -> None:
        corners = [(0.0, 0.0), (self._config.side, self._config.side)]
        (x, y), (right, up) = (self._at(corner) for corner in corners)
        self._pen.rectangle([x, up, right, y], fill=_FLOOR)

    def draw_walls(self) -> None:
        for x, y, half_x, half_y in self._game.worlds.walls[self._world]:
            if half_x > 0:
                self._polygon((x, y), (half_x, half_y), 0.0, _WALL)

    def draw_cones(self) -> None:
        """Shades what each agent sees, as far as its rays of sight reach."""
        half = np.radians(self._config.vision_degrees / 2)
        fan = np.linspace(-half, half, 61) - np.pi / 2
        directions = self._where[: self._agents, -1:] + fan
        outlines = self._game.sight.outline(self._world, directions)
        for agent in np.flatnonzero(self._present[: self._agents]):
            x, y = self._where[agent, :2]
            angles, ends = directions[agent], outlines[agent]
            points = [self._at((x, y))]
            points += [
                self._at((x + d * np.cos(a), y + d * np.sin(a)))
                for a, d in zip(angles, ends, strict=True)
            ]
            colour = HIDER if agent < self._config.hiders[1] else SEEKER
            self._pen.polygon(points, fill=(*colour, 38))

    def draw_objects(self) -> None:
        boxes = self._config.num_boxes
        hands = self._game.interaction
        for thing in range(boxes + self._config.ramps):
            body = self._agents + thing
            if not self._present[body]:
                continue
            x, y, yaw = self._where[body, [0, 1, -1]]
            half = np.full(2, self._config.physics.ramp_size / 2)
            colour = _RAMP
            if thing < boxes:
                half = self._game.worlds.box_sizes[self._world, thing] / 2
                colour = _BOX if half[0] == half[1] else _LONG_BOX
            self._polygon((x, y), half, yaw, colour, _EDGE)
            if thing >= boxes:
                self._draw_slope((x, y), half[0], yaw)
            if hands.locked[self._world, thing]:
                owner = hands.owner[self._world, thing]
                team = HIDER if owner < self._config.hiders[1] else SEEKER
                self._polygon((x, y), half, yaw, None, team, 6)
                self._draw_padlock((x, y), team)

    def _draw_slope(self, centre: Point, half: float, yaw: float) -> None:
        """An arrow from a ramp's low end to its high face, which is at its own -y."""
        low, high, left, right = (
            self._turned(centre, offset, yaw)
            for offset in (
                (0, 0.8 * half),
                (0, -0.8 * half),
                (-0.1, -0.4 * half),
                (0.1, -0.4 * half),
            )
        )
        for start, end in ((low, high), (left, high), (right, high)):
            self._pen.line([start, end], fill=_EDGE, width=3)

    def _draw_padlock(self, centre: Point, colour: tuple[int, int, int]) -> None:
        x, y = self._at(centre)
        size = 0.08 * self._scale
        self._pen.arc([x - size * 0.6, y - size * 1.5, x + size * 0.6, y], 180, 360, colour, 4)
        self._pen.rectangle([x - size, y - size * 0.6, x + size, y + size], fill=colour)

    def draw_agents(self) -> None:
        game, physics = self._game, self._config.physics
        hiders = self._config.hiders[1]
        for agent in np.flatnonzero(self._present[: self._agents]):
            x, y, yaw = self._where[agent, [0, 1, -1]]
            colour = HIDER if agent < hiders else SEEKER
            for other in game.sight.seen_by(self._world, int(agent)):
                if other < self._agents:
                    ends = [self._at((x, y)), self._at(tuple(self._where[other, :2]))]
                    self._pen.line(ends, fill=(*colour, 150), width=2)
            side, front, _ = physics.arm_offset
            for sign in (-1, 1):
                self._disc(
                    self._turned((x, y), (sign * side, -front), yaw), physics.arm_radius, _EDGE
                )
            self._disc(self._at((x, y)), physics.agent_radius, colour)
            self._disc(self._turned((x, y), (0, -0.09), yaw), 0.035, (255, 255, 255))
            held = game.interaction.held[self._world, agent]
            if held >= 0:
                end = self._at(tuple(self._where[self._agents + held, :2]))
                self._pen.line([self._at((x, y)), end], fill=(20, 20, 20), width=9)
                self._pen.line([self._at((x, y)), end], fill=(255, 255, 255), width=5)

    def draw_status(self) -> None:
        """The step, whether it is the preparation phase, and whether a hider is seen."""
        game, config = self._game, self._config
        time = int(game.time[self._world])
        text = f"step {time}/{config.num_steps}"
        if time < config.preparation_steps:
            text += "  preparation"
        elif game.seen[self._world]:
            text += "  hider seen"
        self._pen.text((8, 4), text, fill=_EDGE, font_size=22)

    def _at(self, point: Any) -> Point:
        """The pixel of a point on the floor."""
        x, y = point
        size = SIZE * _OVERSAMPLING
        return (x + _MARGIN) * self._scale, size - (y + _MARGIN) * self._scale

    def _turned(self, centre: Point, offset: Point, yaw: float) -> Point:
        cosine, sine = np.cos(yaw), np.sin(yaw)
        x, y = offset
        return self._at((centre[0] + x * cosine - y * sine, centre[1] + x * sine + y * cosine))

    def _polygon(
        self,
        centre: Point,
        half: Any,
        yaw: float,
        fill: tuple[int, int, int] | None,
        outline: tuple[int, int, int] | None = None,
        width: int = 2,
    ) -> None:
        signs = ((1, 1), (1, -1), (-1, -1), (-1, 1))
        corners = [self._turned(centre, (a * half[0], b * half[1]), yaw) for a, b in signs]
        self._pen.polygon(corners, fill=fill, outline=outline, width=width)

    def _disc(self, centre: Point, radius: float, colour: tuple[int, int, int]) -> None:
        (x, y), r = centre, radius * self._scale
        self._pen.ellipse([x - r, y - r, x + r, y + r], fill=colour)
