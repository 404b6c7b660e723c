"""The MuJoCo model of a game: one model with places for everything that an episode may have.

Walls and boxes are moved, resized and taken out of the game in copies of the model (`worlds.py`).
Nothing is compiled between episodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from srl.envs.hide_and_seek.config import HideAndSeekConfig
from srl.envs.hide_and_seek.layout import OUTER_PIECES, max_pieces
from srl.envs.hide_and_seek.physics import PhysicsConfig
from srl.extras import import_extra

FLOOR_GROUP, WALL_GROUP, BODY_GROUP, ARM_GROUP, ABSENT_GROUP = 0, 1, 2, 3, 5
"""Groups of geoms; the last is for what is not in the game."""


@dataclass(frozen=True)
class Scene:
    """A compiled model, and where in it everything is. Bodies: agents, then boxes, then ramps."""

    config: HideAndSeekConfig
    model: Any
    """The MjModel that worlds copy."""
    num_joints: int
    """Joints of each body: x, y, (z,) yaw; `qpos` and `qvel` are [bodies, joints]."""
    body_ids: np.ndarray
    """int [bodies]: MuJoCo's body of each agent, box and ramp."""
    body_geoms: list[list[int]]
    """Geoms of each agent, box and ramp."""
    wall_ids: np.ndarray
    """int [pieces]: MuJoCo's body of each wall piece."""
    wall_geoms: np.ndarray
    """int [pieces]."""
    wall_heights: np.ndarray
    """float [pieces]."""
    rest_heights: np.ndarray
    """float [bodies]: height of the centre of a body that stands on the floor."""

    @property
    def num_agents(self) -> int:
        """Agents, padded."""
        return self.config.num_agents

    @property
    def num_objects(self) -> int:
        """Boxes, padded, and ramps."""
        return self.config.num_boxes + self.config.ramps


def build_scene(config: HideAndSeekConfig) -> Scene:
    """Compiles the model of a game."""
    mujoco = import_extra("mujoco", "hide-and-seek")
    model = mujoco.MjModel.from_xml_string(_xml(config))
    names = [f"agent{i}" for i in range(config.num_agents)]
    names += [f"box{i}" for i in range(config.num_boxes)]
    names += [f"ramp{i}" for i in range(config.ramps)]
    body_ids = np.array([model.body(name).id for name in names])
    walls = [f"wall{i}" for i in range(max_pieces(config))]
    wall_ids = np.array([model.body(name).id for name in walls])
    geoms = [np.flatnonzero(model.geom_bodyid == body).tolist() for body in body_ids]
    return Scene(
        config=config,
        model=model,
        num_joints=3 if config.physics.planar else 4,
        body_ids=body_ids,
        body_geoms=geoms,
        wall_ids=wall_ids,
        wall_geoms=np.array([int(model.body_geomadr[body]) for body in wall_ids]),
        wall_heights=np.array(
            [
                config.physics.outer_wall_height
                if piece < OUTER_PIECES
                else config.physics.wall_height
                for piece in range(len(walls))
            ]
        ),
        rest_heights=_rest_heights(config),
    )


def _rest_heights(config: HideAndSeekConfig) -> np.ndarray:
    physics = config.physics
    return np.array(
        [physics.agent_radius] * config.num_agents
        + [physics.box_size / 2] * config.num_boxes
        + [physics.ramp_size / 2] * config.ramps
    )


def _xml(config: HideAndSeekConfig) -> str:
    physics = config.physics
    half = config.side / 2
    bodies = [_wall(index, physics) for index in range(max_pieces(config))]
    bodies += [_agent(index, config) for index in range(config.num_agents)]
    bodies += [_box(index, config) for index in range(config.num_boxes)]
    bodies += [_ramp(index, config) for index in range(config.ramps)]
    touch = 0 if physics.planar else 1
    # MuJoCo takes sparse matrices for large scenes, as the full game is. Then its solver (of 4.0)
    # now and then answers a light touch of boxes at rest with hundreds of metres per second.
    return f"""
<mujoco model="hide_and_seek">
  <option timestep="{physics.timestep}" gravity="0 0 {-physics.gravity}" jacobian="dense">
    <flag autoreset="disable"/>
  </option>
  <size memory="4M"/>
  <compiler angle="radian"/>
  <visual>
    <global offwidth="1280" offheight="1280"/>
    <headlight ambient="0.4 0.4 0.4" diffuse="0.3 0.3 0.3" specular="0 0 0"/>
  </visual>
  <asset>
    {_wedge(physics)}
    <texture type="skybox" builtin="flat" rgb1="0.8 0.8 0.78" width="8" height="48"/>
  </asset>
  <worldbody>
    <light pos="{half} {half} 12" dir="0 0 -1" diffuse="0.4 0.4 0.4" specular="0 0 0"
      castshadow="false"/>
    <geom name="floor" type="plane" pos="{half} {half} 0" size="{half} {half} 1"
      group="{FLOOR_GROUP}" friction="{physics.floor_friction} 0.005 0.0001" rgba="0.85 0.85 0.82 1"
      contype="{touch}" conaffinity="{touch}"/>
    {"".join(bodies)}
  </worldbody>
  <actuator>{_motors(config)}</actuator>
  <equality>{_equalities(config)}</equality>
</mujoco>"""


def _wall(index: int, physics: PhysicsConfig) -> str:
    outer = index < OUTER_PIECES
    height = physics.outer_wall_height if outer else physics.wall_height
    colour = "0.5 0.5 0.5 0.15" if outer else "0.55 0.55 0.6 1"
    return (
        f'<body name="wall{index}"><geom type="box" size="1 1 {height / 2}" group="{WALL_GROUP}" '
        f'friction="{physics.wall_friction} 0.005 0.0001" rgba="{colour}"/></body>'
    )


def _joints(
    name: str,
    damping: tuple[float, float, float],
    physics: PhysicsConfig,
    losses: tuple[float, float],
) -> str:
    """Slides along x, y (and z), then a hinge around z.

    Positions are of the world, and forces act along the axes of the world.
    """
    across, up, turn = damping
    found = []
    for axis, vector in (("x", "1 0 0"), ("y", "0 1 0"), ("z", "0 0 1")):
        if axis == "z" and physics.planar:
            continue
        loss = f' frictionloss="{losses[0]}"' if physics.planar else ""
        value = up if axis == "z" else across
        found.append(
            f'<joint name="{name}_{axis}" type="slide" axis="{vector}" damping="{value}"{loss}/>'
        )
    loss = f' frictionloss="{losses[1]}"' if physics.planar else ""
    found.append(f'<joint name="{name}_yaw" type="hinge" axis="0 0 1" damping="{turn}"{loss}/>')
    return "".join(found)


def _body(name: str, config: HideAndSeekConfig, joints: str, geoms: str, height: float) -> str:
    """A body whose joints show the position of its centre; in the plane its height is fixed."""
    z = height if config.physics.planar else 0.0
    # Bodies with this flag can be taken out of gravity, where an episode has fewer of them.
    return f'<body name="{name}" pos="0 0 {z}" gravcomp="1">{joints}{geoms}</body>'


def _agent(index: int, config: HideAndSeekConfig) -> str:
    physics, name = config.physics, f"agent{index}"
    radius, (side, front, down) = physics.agent_radius, physics.arm_offset
    # A sphere touches the floor at one point, which does not brake its turning.
    loss = (physics.floor_friction * physics.gravity * physics.agent_mass, 0.0)
    hider = index < config.hiders[1]
    colour = "0.2 0.45 0.9 1" if hider else "0.9 0.25 0.2 1"
    common = f'friction="{physics.agent_friction} 0.005 0.0001"'
    geoms = (
        f'<geom type="sphere" size="{radius}" mass="{physics.agent_mass}" {common} '
        f'group="{BODY_GROUP}" rgba="{colour}"/>'
    )
    for sign in (-1, 1):
        geoms += (
            f'<geom type="sphere" size="{physics.arm_radius}" mass="0" {common} '
            f'group="{ARM_GROUP}" pos="{sign * side} {-front} {-down}" rgba="1 1 1 1"/>'
        )
    joints = _joints(name, physics.agent_damping, physics, loss)
    return _body(name, config, joints, geoms, radius)


def _box(index: int, config: HideAndSeekConfig) -> str:
    physics, name = config.physics, f"box{index}"
    half, damping = physics.box_size / 2, (physics.box_damping,) * 3
    weight = physics.floor_friction * physics.gravity * physics.box_mass
    # A cube stands on its four corners, so its friction acts at this distance from the centre.
    loss = (weight, weight * half * 2**0.5)
    geom = (
        f'<geom type="box" size="{half} {half} {half}" mass="{physics.box_mass}" '
        f'group="{BODY_GROUP}" friction="{physics.box_friction} 0.005 0.0001" '
        f'rgba="0.95 0.8 0.25 1"/>'
    )
    return _body(name, config, _joints(name, damping, physics, loss), geom, half)


def _ramp(index: int, config: HideAndSeekConfig) -> str:
    physics, name = config.physics, f"ramp{index}"
    damping = (physics.ramp_damping,) * 3
    geom = (
        f'<geom type="mesh" mesh="wedge" mass="{physics.ramp_mass}" group="{BODY_GROUP}" '
        f'friction="{physics.ramp_friction} 0.005 0.0001" rgba="0.35 0.7 0.4 1"/>'
    )
    joints = _joints(name, damping, physics, (0.0, 0.0))
    return _body(name, config, joints, geom, physics.ramp_size / 2)


def _wedge(physics: PhysicsConfig) -> str:
    """A ramp's mesh: its vertical face is at -y, and its slope falls towards +y."""
    h = physics.ramp_size / 2
    corners = ((-h, -h, -h), (h, -h, -h), (-h, h, -h), (h, h, -h), (-h, -h, h), (h, -h, h))
    text = " ".join(f"{value}" for corner in corners for value in corner)
    return f'<mesh name="wedge" vertex="{text}" inertia="convex"/>'


def _motors(config: HideAndSeekConfig) -> str:
    physics = config.physics
    limit = f'ctrllimited="true" ctrlrange="{-physics.motor_limit} {physics.motor_limit}"'
    return "".join(
        f'<motor joint="agent{index}_{axis}" gear="{physics.motor_gear}" {limit}/>'
        for index in range(config.num_agents)
        for axis in ("x", "y", "yaw")
    )


def _equalities(config: HideAndSeekConfig) -> str:
    """First a weld for each agent's grip, then for each object one lock of each of its joints."""
    objects = [f"box{i}" for i in range(config.num_boxes)]
    objects += [f"ramp{i}" for i in range(config.ramps)]
    if not objects:
        return ""
    axes = ("x", "y", "yaw") if config.physics.planar else ("x", "y", "z", "yaw")
    welds = "".join(
        f'<weld body1="agent{index}" body2="{objects[0]}" active="false"/>'
        for index in range(config.num_agents)
    )
    return welds + "".join(
        f'<joint joint1="{name}_{axis}" active="false"/>' for name in objects for axis in axes
    )
