"""The physical constants of hide-and-seek: sizes, masses, frictions, and how time is cut."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from srl.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class PhysicsConfig:
    """Lengths are in metres, masses in kilograms, times in seconds, forces in newtons."""

    timestep: float = 0.005
    """Time of one physics step."""
    substeps: int = 15
    """Physics steps of one environment step, in which the forces stay the same."""
    gravity: float = 50.0
    """Downward acceleration."""
    planar: bool = False
    """Whether bodies only move in the plane. Friction with the floor is then a constant force of
    each joint. Ramps and what they allow need three dimensions."""
    max_speed: float = 40.0
    """A body that is faster, is outside of outer walls, or has a number that is not finite discards
    the episode."""

    floor_friction: float = 0.2
    """Sliding friction of the floor. The larger friction of a pair counts."""
    wall_friction: float = 1.0
    """Sliding friction of walls."""
    wall_thickness: float = 0.1
    """Thickness of all walls; walls stand on the middle line of a row of cells."""
    wall_height: float = 0.5
    """Height of inner walls: as high as a box, so that a ramp leads over them."""
    outer_wall_height: float = 4.0
    """Height of the outer walls."""

    agent_radius: float = 0.15
    """Radius of the sphere that is an agent."""
    arm_radius: float = 0.05
    """Radius of the two spheres without mass that show an agent's front."""
    arm_offset: tuple[float, float, float] = (0.13, 0.075, 0.05)
    """Sideways, forward and downward distance of an arm's centre from the agent's centre."""
    agent_mass: float = 1.0
    """Mass of an agent."""
    agent_damping: tuple[float, float, float] = (10.0, 1.0, 10.0)
    """Damping of an agent's joints: horizontal, vertical, turning."""
    agent_friction: float = 0.01
    """Sliding friction of agents."""
    motor_gear: float = 100.0
    """Force (or torque) of a motor at control 1."""
    motor_limit: float = 0.9
    """Largest control of a motor: at most 90 N along x and y, and 90 N m of yaw."""

    box_size: float = 0.5
    """Side of a cubic box."""
    long_box_size: tuple[float, float, float] = (1.65, 0.15, 0.5)
    """Length, width and height of an elongated box."""
    box_mass: float = 1.0
    """Mass of a box, elongated or not."""
    box_damping: float = 0.01
    """Damping of all joints of a box."""
    box_friction: float = 0.2
    """Sliding friction of boxes."""

    ramp_size: float = 0.5
    """Side of the cube whose lower half, cut along a diagonal, is a ramp."""
    ramp_mass: float = 1.0
    """Mass of a ramp."""
    ramp_damping: float = 0.1
    """Damping of all joints of a ramp."""
    ramp_friction: float = 0.01
    """Sliding friction of ramps."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            numbers = value if isinstance(value, tuple) else (value,)
            least_open = not field.name.endswith(("friction", "damping", "gravity", "offset"))
            for number in numbers:
                if isinstance(number, bool):
                    continue
                if not math.isfinite(number) or number < 0 or (least_open and number == 0):
                    least = "more than 0" if least_open else "at least 0"
                    raise ConfigError(f"hide_and_seek.{field.name}: expected {least}, got {value}.")
        for name, length in (("arm_offset", 3), ("agent_damping", 3), ("long_box_size", 3)):
            if len(getattr(self, name)) != length:
                raise ConfigError(
                    f"hide_and_seek.{name}: expected {length} numbers, got {getattr(self, name)}."
                )
        if self.motor_limit > 1:
            raise ConfigError(
                f"hide_and_seek.motor_limit: expected at most 1, got {self.motor_limit}."
            )

    @property
    def seconds_per_step(self) -> float:
        """Time of one environment step."""
        return self.timestep * self.substeps
