"""Where walls and doors are: the quadrant's room, and random rooms.

Walls stand on the middle lines of rows or columns of cells. A wall with a door is two pieces.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from srl.envs.hide_and_seek.config import HideAndSeekConfig

OUTER_PIECES = 4
"""Pieces of the outer walls, which come first."""
_TRIES = 50
"""Positions that are tried for a random wall before the room count is given up."""


def max_pieces(config: HideAndSeekConfig) -> int:
    """Most wall pieces that a layout of these settings has."""
    walls = 2 if config.layout == "quadrant" else config.rooms[1] - 1
    return OUTER_PIECES + walls + max_doors(config)


def max_doors(config: HideAndSeekConfig) -> int:
    """Most doors that a layout of these settings has."""
    if config.layout == "quadrant":
        return 1 if config.door_dropout == 1 else 2
    return config.rooms[1] - 1


@dataclass(frozen=True)
class Wall:
    """A straight wall, in cells: along `axis` from `start` to `end`, both included."""

    axis: int
    """0 runs along x, 1 along y."""
    line: int
    """Row (or column) of the wall."""
    start: int
    end: int


@dataclass(frozen=True)
class Layout:
    """The walls of one episode."""

    pieces: np.ndarray
    """float [pieces, 4]: centre x, y and half sizes x, y; outer pieces first, zeros for none."""
    doors: np.ndarray
    """int [most doors, 2]: the two pieces beside each door; -1 for doors that are missing."""
    door_middles: np.ndarray
    """float [doors, 2]: the middle of each door."""
    free: np.ndarray
    """bool [cells, cells]: cells, by x and y, without a wall, away from the border."""
    room: np.ndarray | None
    """bool [cells, cells]: the cells of the quadrant's room; None without one."""


def draw_layout(config: HideAndSeekConfig, random: np.random.Generator) -> Layout:
    """Draws the walls and doors of an episode."""
    n = config.num_cells
    if config.layout == "quadrant":
        walls, doors, room = _quadrant(config, random)
    else:
        walls, room = _random_rooms(config, random), None
        doors = [_door(wall, config, random) for wall in walls]
    outer = random.random() < config.outer_walls
    pieces = np.zeros((max_pieces(config), 4))
    free = np.zeros((n, n), bool)
    free[1:-1, 1:-1] = True
    if outer:
        for index, wall in enumerate(_border(n)):
            pieces[index] = _piece(wall, wall.start, wall.end, config)
    at = OUTER_PIECES
    middles: list[tuple[float, float]] = []
    beside = np.full((max_doors(config), 2), -1)
    for wall, door in zip(walls, doors, strict=True):
        _mark(free, wall)
        if door is None:
            pieces[at] = _piece(wall, wall.start, wall.end, config)
            at += 1
            continue
        first, last = door
        pieces[at] = _piece(wall, wall.start, first - 1, config)
        pieces[at + 1] = _piece(wall, last + 1, wall.end, config)
        beside[len(middles)] = at, at + 1
        at += 2
        along = (first + last + 1) / 2 * config.cell_size
        across = (wall.line + 0.5) * config.cell_size
        middles.append((along, across) if wall.axis == 0 else (across, along))
    return Layout(pieces, beside, np.array(middles, float).reshape(-1, 2), free, room)


def _quadrant(
    config: HideAndSeekConfig, random: np.random.Generator
) -> tuple[list[Wall], list[tuple[int, int] | None], np.ndarray]:
    """The two walls of the room at large x and small y, their doors, and the room's cells."""
    n = config.num_cells
    half = n // 2
    walls = [Wall(1, half, 0, half), Wall(0, half, half, n - 1)]
    doors: list[tuple[int, int] | None] = [_door(wall, config, random) for wall in walls]
    if random.random() < config.door_dropout:
        doors[int(random.integers(2))] = None
    room = np.zeros((n, n), bool)
    room[half + 1 : -1, 1:half] = True
    return walls, doors, room


def _door(wall: Wall, config: HideAndSeekConfig, random: np.random.Generator) -> tuple[int, int]:
    """The first and last cell of a door: a piece of the wall stays at each end."""
    size = config.door_cells
    first = int(random.integers(wall.start + 2, wall.end - size))
    return first, first + size - 1


def _random_rooms(config: HideAndSeekConfig, random: np.random.Generator) -> list[Wall]:
    """Draws walls one by one; each runs between two parallel walls that are there already."""
    n, least = config.num_cells, config.min_room_cells
    border = _border(n)
    walls: list[Wall] = []
    for _ in range(int(random.integers(config.rooms[0], config.rooms[1] + 1)) - 1):
        for _ in range(_TRIES):
            axis = int(random.integers(2))
            line = int(random.integers(1, n - 1))
            at = int(random.integers(1, n - 1))
            wall = _between(axis, line, at, border + walls)
            junctions = [w.line for w in walls if w.axis == axis and _overlap(w, wall)]
            apart = all(abs(line - other) > least for other in (*junctions, 0, n - 1))
            if apart and wall.end - wall.start > max(least, config.door_cells + 3):
                walls.append(wall)
                break
    return walls


def _border(n: int) -> list[Wall]:
    """The four outer walls, whether an episode has them or not."""
    return [Wall(axis, line, 0, n - 1) for axis in (0, 1) for line in (0, n - 1)]


def _between(axis: int, line: int, at: int, walls: list[Wall]) -> Wall:
    """The wall through cell `at` of a line, as long as the walls across it let it be."""
    across = [w.line for w in walls if w.axis != axis and w.start <= line <= w.end]
    start = max(other for other in across if other <= at)
    end = min((other for other in across if other > at), default=start)
    return Wall(axis, line, start, end)


def _overlap(wall: Wall, other: Wall) -> bool:
    return wall.start <= other.end and other.start <= wall.end


def _mark(free: np.ndarray, wall: Wall) -> None:
    """Takes the cells of a wall, its doors included: nothing spawns in a door."""
    along = slice(wall.start, wall.end + 1)
    if wall.axis == 0:
        free[along, wall.line] = False
    else:
        free[wall.line, along] = False


def _piece(wall: Wall, start: int, end: int, config: HideAndSeekConfig) -> np.ndarray:
    """Centre and half sizes of a piece from the middle of its first cell to that of its last.

    Pieces at a junction are longer by half their thickness, so that no gap remains, and pieces at a
    door are shorter by as much.
    """
    cell = config.cell_size
    half = config.physics.wall_thickness / 2
    centre, length = (start + end + 1) / 2 * cell, (end - start) / 2 * cell
    across = (wall.line + 0.5) * cell
    near = half if start == wall.start else -half
    far = half if end == wall.end else -half
    centre, length = centre + (far - near) / 2, length + (near + far) / 2
    return np.array(
        (centre, across, length, half) if wall.axis == 0 else (across, centre, half, length)
    )
