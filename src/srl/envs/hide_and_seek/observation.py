"""What agents observe: arrays of fixed sizes, with masks of what is visible and what exists.

The numbers of an entity are its true ones, also while it is hidden: a policy must use the masks.
"""

from __future__ import annotations

import numpy as np
from gymnasium import spaces

from srl.envs.hide_and_seek.config import HideAndSeekConfig
from srl.envs.hide_and_seek.interaction import Interaction
from srl.envs.hide_and_seek.layout import max_doors
from srl.envs.hide_and_seek.sight import Sight, other_bodies
from srl.envs.hide_and_seek.worlds import Worlds


def observation_space(config: HideAndSeekConfig) -> spaces.Dict:
    """The space of every agent's observation. Kinds that a game does not have are left out."""
    agent = 8 + 2 + (0 if config.original_observation else 1)
    thing = 9 + 3 * config.show_box_size
    counts = {"agents": config.num_agents - 1, "boxes": config.num_boxes, "ramps": config.ramps}
    doors = max_doors(config) if config.show_doors else 0
    sizes = {
        "agents": agent,
        "boxes": thing + 2 * (doors > 0) + 3,
        "ramps": thing + 3 * config.lockable_ramps,
    }
    found: dict[str, spaces.Space[np.ndarray]] = {"self": _box(agent)}
    if config.lidar_rays:
        found["lidar"] = spaces.Box(0.0, np.inf, (config.lidar_rays, 1), np.float32)
    for kind, count in counts.items():
        if count:
            found[kind] = _box(count, sizes[kind])
            found[f"{kind}_visible"] = spaces.MultiBinary(count)
            found[f"{kind}_exist"] = spaces.MultiBinary(count)
    if doors:
        found["doors"] = _box(doors, 4)
        found["doors_visible"] = found["doors_exist"] = spaces.MultiBinary(doors)
    return spaces.Dict(found)


def _box(*shape: int) -> spaces.Box:
    return spaces.Box(-np.inf, np.inf, shape, np.float32)


class Observation:
    """The observations of all agents of all worlds, written in place."""

    def __init__(self, worlds: Worlds, sight: Sight, interaction: Interaction) -> None:
        self._worlds, self._sight, self._interaction = worlds, sight, interaction
        config = self._config = worlds.scene.config
        agents, boxes = config.num_agents, config.num_boxes
        lead = (worlds.num_worlds, agents)
        self.arrays = {
            name: np.zeros((*lead, *space.shape), space.dtype)
            for name, space in observation_space(config).items()
        }
        """[worlds, agents, ...] by the name of the part."""
        others = other_bodies(worlds.scene)
        self._other_agents = others[:, : agents - 1]
        self._columns = {
            "agents": slice(0, agents - 1),
            "boxes": slice(agents - 1, agents - 1 + boxes),
            "ramps": slice(agents - 1 + boxes, None),
        }
        self._others = others
        self._agent_rows = np.zeros((*lead, self.arrays["self"].shape[-1]), np.float32)
        self._agent_rows[:, : config.hiders[1], -2] = 1.0
        self._is_hider = np.arange(agents) < config.hiders[1]
        objects = boxes + config.ramps
        self._object_rows = np.zeros((worlds.num_worlds, objects, 9), np.float32)
        self._corners = worlds.scene.rest_heights * config.original_observation

    def write(self, time: np.ndarray) -> None:
        """Writes the observations of all worlds; `time` is int [worlds], steps since the start."""
        arrays, agents = self.arrays, self._config.num_agents
        self._write_rows(time)
        arrays["self"][:] = self._agent_rows
        if self._config.lidar_rays:
            arrays["lidar"][..., 0] = self._sight.lidar
        if agents > 1:
            np.take(self._agent_rows, self._other_agents, axis=1, out=arrays["agents"])
        boxes = self._config.num_boxes
        locked = self._lock_flags()
        for kind, which in (("boxes", slice(0, boxes)), ("ramps", slice(boxes, None))):
            if kind not in arrays:
                continue
            array = arrays[kind]
            array[..., :9] = self._object_rows[:, None, which]
            if kind == "boxes" and self._config.show_box_size:
                array[..., 9:12] = self._box_sizes()[:, None]
            if kind == "boxes" and "doors" in arrays:
                array[..., -5:-3] = self._box_offsets()[:, None]
            if kind == "boxes" or self._config.lockable_ramps:
                array[..., -3:] = locked[:, :, which]
        self._write_masks()
        if "doors" in arrays:
            arrays["doors"][:] = self._worlds.door_places[:, None]
            for mask in ("doors_visible", "doors_exist"):
                arrays[mask][:] = self._worlds.doors[:, None, :, 0] >= 0
        missing = ~self._worlds.present[:, :agents]
        if missing.any():
            for array in arrays.values():
                array[missing] = 0

    def _write_rows(self, time: np.ndarray) -> None:
        """Computes the numbers of each body once, for all that observe it."""
        worlds, config, agents = self._worlds, self._config, self._config.num_agents
        mine, things = self._agent_rows, self._object_rows
        qpos, qvel, flat = worlds.qpos, worlds.qvel, worlds.scene.num_joints - 1
        cosine, sine = np.cos(qpos[..., -1]), np.sin(qpos[..., -1])
        for rows, part in ((mine, slice(0, agents)), (things, slice(agents, None))):
            rows[..., 2] = worlds.scene.rest_heights[part]
            rows[..., :flat] = qpos[:, part, :flat]
            if config.original_observation:
                rows[..., :3] -= self._corners[part, None]
            at = 3
            if rows is mine and config.original_observation:
                rows[..., 3] = qpos[:, part, -1]
            else:
                rows[..., 3], rows[..., 4], at = cosine[:, part], sine[:, part], 4
            rows[..., at + 1 : at + 1 + flat] = qvel[:, part, :flat]
            rows[..., at + 4] = qvel[:, part, -1]
            rows *= worlds.present[:, part, None]
        present = worlds.present[:, :agents]
        mine[..., -2] = self._is_hider & present
        steps = config.preparation_steps
        mine[..., -1] = np.minimum(1.0, time / steps)[:, None] * present if steps else present

    def _box_sizes(self) -> np.ndarray:
        """float [worlds, boxes, 3]: full sizes; zeros for boxes that are missing."""
        worlds, agents = self._worlds, self._config.num_agents
        sizes = np.empty((*worlds.box_sizes.shape[:2], 3))
        sizes[..., :2], sizes[..., 2] = worlds.box_sizes, self._config.physics.box_size
        sizes *= worlds.present[:, agents : agents + sizes.shape[1], None]
        return sizes

    def _box_offsets(self) -> np.ndarray:
        """float [worlds, boxes, 2]: from the nearest door's middle to each box; 0 without doors."""
        worlds, agents = self._worlds, self._config.num_agents
        boxes = slice(agents, agents + self._config.num_boxes)
        offsets = worlds.qpos[:, boxes, None, :2] - worlds.door_places[:, None, :, :2]
        there = worlds.doors[:, None, :, 0] >= 0
        distances = np.where(there, np.hypot(offsets[..., 0], offsets[..., 1]), np.inf)
        nearest = distances.argmin(2)[..., None, None]
        found = np.take_along_axis(offsets, nearest, 2)[:, :, 0]
        return found * (there.any(2) & worlds.present[:, boxes])[..., None]

    def _lock_flags(self) -> np.ndarray:
        """bool [worlds, agents, objects, 3]: locked by me, by my team, by anyone."""
        locked, owner = self._interaction.locked[:, None], self._interaction.owner[:, None]
        me = np.arange(self._config.num_agents)[:, None]
        team = self._is_hider[:, None] == self._is_hider[owner]
        flags = np.empty((*team.shape, 3), bool)
        flags[..., 0], flags[..., 1], flags[..., 2] = owner == me, team, True
        flags &= locked[..., None]
        return flags

    def _write_masks(self) -> None:
        worlds, agents = self._worlds, self._config.num_agents
        there = worlds.present[:, :agents, None] & worlds.present[:, self._others]
        for kind, columns in self._columns.items():
            if kind in self.arrays:
                self.arrays[f"{kind}_visible"][:] = self._sight.visible[..., columns]
                self.arrays[f"{kind}_exist"][:] = there[..., columns]
