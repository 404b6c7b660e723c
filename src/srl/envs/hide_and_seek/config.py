"""The settings of hide-and-seek: every number of its rules, and its named variants."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from srl.envs.hide_and_seek.physics import PhysicsConfig
from srl.errors import ConfigError, nearest

Range = tuple[int, int]
"""The least and the most of a number that each episode draws anew."""
Place = Literal["anywhere", "room", "outside", "together"]

MAX_TEAM = 3
"""Most hiders, and most seekers."""
MAX_ROOMS = 4
"""Most rooms of the random walls."""


@dataclass(frozen=True, kw_only=True)
class HideAndSeekConfig:
    """The rules of a game. The defaults are the full randomised game."""

    layout: Literal["random_walls", "quadrant"] = "random_walls"
    """`quadrant`: one room in a corner. `random_walls`: up to `rooms` rooms by random walls."""
    scale: float = 1.0
    """Factor on the floor's side, the bounds, the spawn radius and (see `scale_horizon`) the
    horizon; 1.5 and 2 are the harder maps. Objects keep their sizes."""
    scale_horizon: bool = True
    """Whether a larger map also has longer episodes."""
    floor_size: float = 6.0
    """Side of the square floor in metres, before `scale`."""
    cell_size: float = 0.2
    """Side of a cell of the grid on which walls and objects are placed."""
    outer_walls: float = 0.5
    """Probability of outer walls."""
    rooms: Range = (1, 4)
    """Rooms of the random walls: one wall less than rooms."""
    min_room_cells: int = 6
    """Least number of cells between two parallel walls of random rooms."""
    door_cells: int = 2
    """Cells of a door. The free gap is one cell wider, plus the thickness of a wall."""
    door_dropout: float = 0.5
    """Probability that one of the two walls of the quadrant's room has no door."""

    hiders: Range = (1, 3)
    """Hiders in the game."""
    seekers: Range = (1, 3)
    """Seekers in the game."""
    boxes: Range = (3, 9)
    """Boxes, elongated ones included."""
    long_boxes: int = 3
    """Least number of elongated boxes; the most is all boxes. -1: no box is elongated."""
    ramps: int = 2
    """Ramps in every episode."""
    hiders_spawn: Place = "together"
    """`anywhere`, in the quadrant's `room`, `outside` of it, or `together` within the radius."""
    seekers_spawn: Place = "together"
    """As `hiders_spawn`."""
    boxes_spawn: Place = "anywhere"
    """As `hiders_spawn`."""
    spawn_radius: float = 0.5
    """A team that spawns together is within this distance of its first member, in whole cells."""
    box_door_distance: float = 0.0
    """Least distance of a box's centre to the middle of every door at the start."""
    easy_starts: float = 0.0
    """A curriculum for training: share of episodes in which each box starts between a door's middle
    and its usual place, and each hider between the first box and its own."""

    motionless_seekers: bool = False
    """Whether seekers never act: what hiders learn then is a control for what they learn else."""

    horizon: int = 240
    """Steps of an episode."""
    preparation: float = 0.4
    """Share of the horizon in which seekers cannot act and nobody is rewarded."""
    reward: Literal["joint_zero_sum", "joint_mean", "selfish"] = "joint_zero_sum"
    """`joint_zero_sum`: hiders +1 if none is seen, else -1, and seekers the opposite.
    `joint_mean`: a team's mean of `selfish`. `selfish`: -1 for a hider that is seen, +1 for a
    seeker that sees one; else 1 and -1."""
    bounds_margin: float = -6.0
    """Distance of the play area's border from the floor's edge; negative is outside the floor."""
    bounds_penalty: float = 10.0
    """An agent outside the play area gets minus this as its reward, whatever else happened."""
    objects_in_bounds: bool = False
    """Whether any box or ramp outside the play area gives all agents the penalty."""

    reach: float = 0.25
    """Distance from an agent's centre to an object's surface within which it grabs and locks."""
    vision_degrees: float = 135.0
    """Angle of the cone in which an agent sees."""
    lidar_rays: int = 30
    """Rays around an agent, at fixed angles of the world; 0 is no lidar."""
    lidar_no_hit: float = 6.0
    """What a lidar ray shows that hits nothing."""
    lockable_ramps: bool = True
    """Whether ramps can be locked."""
    lock_rule: Literal["team", "any", "all", "own"] = "team"
    """Who may unlock: the locker's `team`, `any` agent, `all` agents near must agree, or only the
    locker itself (`own`)."""
    exclusive_grab: bool = False
    """Whether only the nearest of several agents gets a grip on an object."""
    action_levels: int = 11
    """Choices of each of the three forces, evenly spaced; odd, so that the middle one is none."""
    show_box_size: bool = True
    """Whether box observations have the boxes' sizes (and ramp observations zeros there)."""
    show_doors: bool = False
    """Whether agents observe where the doors are (middle and direction, always visible), and how
    far along x and y each box is from the nearest one."""
    original_observation: bool = False
    """The original's quirks: positions of corners instead of centres (also in the cone test), and
    the raw angle of agents instead of its cosine and sine."""
    physics: PhysicsConfig = field(default_factory=PhysicsConfig)
    """Sizes, masses and frictions, and how time is cut."""

    def __post_init__(self) -> None:
        self._check_choices()
        self._check_numbers()
        self._check_ranges()
        self._check_together()

    def _check_choices(self) -> None:
        kinds = {f.name: f.type for f in dataclasses.fields(self)}
        options: dict[str, tuple[str, ...]] = {
            "layout": ("random_walls", "quadrant"),
            "reward": ("joint_zero_sum", "joint_mean", "selfish"),
            "lock_rule": ("team", "any", "all", "own"),
            **{name: _PLACES for name, kind in kinds.items() if kind == "Place"},
        }
        for name, known in options.items():
            if getattr(self, name) not in known:
                raise _wrong(name, f"one of {', '.join(known)}", getattr(self, name))

    def _check_numbers(self) -> None:
        above = ("floor_size", "cell_size", "horizon", "scale", "reach", "lidar_no_hit")
        for name in above:
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise _wrong(name, "more than 0", getattr(self, name))
        least = {"ramps": 0, "door_cells": 1, "min_room_cells": 2, "lidar_rays": 0}
        least |= {"spawn_radius": 0, "bounds_penalty": 0, "box_door_distance": 0, "long_boxes": -1}
        for name, low in least.items():
            if not getattr(self, name) >= low:
                raise _wrong(name, f"at least {low}", getattr(self, name))
        for name in ("outer_walls", "door_dropout", "preparation", "easy_starts"):
            if not 0 <= getattr(self, name) <= 1:
                raise _wrong(name, "a number from 0 to 1", getattr(self, name))
        if self.preparation == 1:
            raise _wrong("preparation", "less than 1, so that some steps are rewarded", 1)
        if not 0 < self.vision_degrees <= 360:
            raise _wrong("vision_degrees", "an angle in (0, 360]", self.vision_degrees)
        if self.action_levels < 3 or self.action_levels % 2 == 0:
            raise _wrong("action_levels", "an odd number of at least 3", self.action_levels)

    def _check_ranges(self) -> None:
        most = {"hiders": MAX_TEAM, "seekers": MAX_TEAM, "rooms": MAX_ROOMS, "boxes": 99}
        for name, high in most.items():
            value, low = getattr(self, name), 0 if name == "boxes" else 1
            pair = isinstance(value, tuple) and len(value) == 2
            if not (pair and low <= value[0] <= value[1] <= high):
                raise _wrong(name, f"two numbers, least and most, from {low} to {high}", value)

    def _check_together(self) -> None:
        if self.physics.planar and self.ramps:
            raise _wrong("ramps", "0 in a planar game, which has no height", self.ramps)
        if self.long_boxes > self.boxes[0]:
            raise _wrong("long_boxes", f"at most the least of boxes {self.boxes}", self.long_boxes)
        if self.layout != "quadrant":
            for name in ("hiders_spawn", "seekers_spawn", "boxes_spawn"):
                if getattr(self, name) in ("room", "outside"):
                    raise _wrong(name, "anywhere or together without a quadrant's room", "room")
        cells = self.floor_size / self.cell_size
        if abs(cells - round(cells)) > 1e-6 or self.num_cells < 8:
            raise _wrong("cell_size", "a part of floor_size, with at least 8 cells", self.cell_size)
        if self.physics.wall_thickness > self.cell_size:
            raise _wrong(
                "wall_thickness", f"at most a cell {self.cell_size}", self.physics.wall_thickness
            )
        if self.num_cells // 2 - 1 < self.door_cells + 3:
            raise _wrong("door_cells", "a door that fits into half a wall", self.door_cells)
        if 2 * self.bounds_margin >= self.side:
            raise _wrong(
                "bounds_margin", f"less than half the side {self.side}", self.bounds_margin
            )

    @property
    def num_agents(self) -> int:
        """Most agents of a game; observations are padded to this number."""
        return self.hiders[1] + self.seekers[1]

    @property
    def num_boxes(self) -> int:
        """Most boxes of a game."""
        return self.boxes[1]

    @property
    def num_cells(self) -> int:
        """Cells along a side of the scaled floor."""
        return round(self.floor_size * self.scale / self.cell_size)

    @property
    def side(self) -> float:
        """Side of the scaled floor."""
        return self.num_cells * self.cell_size

    @property
    def num_steps(self) -> int:
        """Steps of an episode."""
        return round(self.horizon * self.scale) if self.scale_horizon else self.horizon

    @property
    def preparation_steps(self) -> int:
        """Steps of the preparation phase, which are not rewarded."""
        return int(self.num_steps * self.preparation + 1e-9)

    @property
    def door_gap(self) -> float:
        """Width of the free gap of a door."""
        return (self.door_cells + 1) * self.cell_size + self.physics.wall_thickness

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the largest coordinate of the play area, along x and along y."""
        margin = self.bounds_margin * (self.scale if self.bounds_margin < 0 else 1.0)
        return margin, self.side - margin


_PLACES = ("anywhere", "room", "outside", "together")


def _wrong(name: str, expected: str, got: Any) -> ConfigError:
    return ConfigError(f"hide_and_seek.{name}: expected {expected}, got {got!r}.")


QUADRANT = HideAndSeekConfig(
    layout="quadrant",
    outer_walls=1.0,
    hiders=(2, 2),
    seekers=(2, 2),
    boxes=(2, 2),
    long_boxes=-1,
    ramps=1,
    hiders_spawn="anywhere",
    seekers_spawn="outside",
    boxes_spawn="room",
    horizon=80,
    bounds_margin=0.1,
    objects_in_bounds=True,
    lockable_ramps=False,
    show_box_size=False,
    physics=PhysicsConfig(wall_friction=0.01),
)
_PLANAR = PhysicsConfig(wall_friction=0.01, planar=True, timestep=0.0125, substeps=6)
_CHASE = dataclasses.replace(
    QUADRANT,
    hiders=(1, 1),
    seekers=(1, 1),
    boxes=(0, 0),
    ramps=0,
    horizon=60,
    lidar_rays=0,
    show_doors=True,
    action_levels=5,
    physics=_PLANAR,
)
_FORT = dataclasses.replace(
    _CHASE, boxes=(1, 1), door_dropout=1.0, hiders_spawn="room", box_door_distance=1.0
)

VARIANTS = {
    "hide_and_seek": HideAndSeekConfig(),
    "hide_and_seek_quadrant": QUADRANT,
    "hide_and_seek_chase": _CHASE,
    "hide_and_seek_fort": _FORT,
}
"""The named games: the full one, its quadrant, and two small planar ones."""


def variant(name: str, **changes: Any) -> HideAndSeekConfig:
    """A named game with some settings changed; settings of `PhysicsConfig` may be among them."""
    if name not in VARIANTS:
        raise ConfigError(f"no hide-and-seek game is named {name!r}: {nearest(name, VARIANTS)}")
    return changed(VARIANTS[name], changes)


def changed(config: HideAndSeekConfig, changes: Mapping[str, Any]) -> HideAndSeekConfig:
    """The config with other values; they may come from a command line, where tuples are lists."""
    rules: dict[str, Any] = {}
    physics: dict[str, Any] = {}
    of_physics = {f.name: f for f in dataclasses.fields(PhysicsConfig)}
    of_rules = {f.name: f for f in dataclasses.fields(HideAndSeekConfig) if f.name != "physics"}
    for name, value in changes.items():
        if name not in of_physics and name not in of_rules:
            raise ConfigError(
                f"hide_and_seek.{name}: no such setting: {nearest(name, [*of_rules, *of_physics])}"
            )
        known, target, old = (
            (of_rules, rules, config) if name in of_rules else (of_physics, physics, config.physics)
        )
        target[name] = _as_type_of(getattr(old, name), value, known[name].name)
    return dataclasses.replace(
        config, physics=dataclasses.replace(config.physics, **physics), **rules
    )


def _as_type_of(old: Any, value: Any, name: str) -> Any:
    """The value as the type of the default; a single number stands for a range of one."""
    if isinstance(old, tuple):
        if isinstance(value, int) and name in ("hiders", "seekers", "boxes", "rooms"):
            return (value, value)
        if isinstance(value, list | tuple) and all(isinstance(v, int | float) for v in value):
            return tuple(value)
    elif isinstance(old, bool) or isinstance(value, bool):
        if isinstance(old, bool) and isinstance(value, bool):
            return value
    elif isinstance(old, float) and isinstance(value, int | float):
        return float(value)
    elif isinstance(value, type(old)):
        return value
    raise _wrong(name, f"a value like {old!r}", value)
