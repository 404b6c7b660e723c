"""What agents see: the cone, lines of sight and the lidar."""

from __future__ import annotations

import numpy as np

from srl.envs.hide_and_seek.rays import (
    FAR,
    box_distances,
    directed,
    sphere_distances,
    turned_distances,
)
from srl.envs.hide_and_seek.scene import Scene
from srl.envs.hide_and_seek.worlds import Worlds

_CHUNK = 16
"""Worlds whose rays are cast at once: their arrays stay in the processor's cache."""


def other_bodies(scene: Scene) -> np.ndarray:
    """int [agents, others]: the bodies that each agent observes, in the order of its observation.

    First the agents after it, cyclically, then boxes and ramps.
    """
    agents = scene.num_agents
    objects = np.arange(agents, agents + scene.num_objects)
    rows = [[*((a + 1 + np.arange(agents - 1)) % agents), *objects] for a in range(agents)]
    return np.array(rows).reshape(agents, -1)


class Sight:
    """Lines of sight and lidars in all worlds.

    Rays hit walls, agents' spheres, boxes and ramps. The arms of agents hide nothing: they are
    below the centres of agents.
    """

    def __init__(self, worlds: Worlds) -> None:
        self._worlds = worlds
        scene, config = worlds.scene, worlds.scene.config
        agents, lidar = config.num_agents, config.lidar_rays
        self._others = other_bodies(scene)
        shape = (worlds.num_worlds, agents)
        self.visible = np.zeros((*shape, self._others.shape[1]), bool)
        """bool [worlds, agents, others]: whether the agent sees the other (`other_bodies`)."""
        self.lidar = np.zeros((*shape, lidar), np.float32)
        """float [worlds, agents, rays]: distance to the first hit, or `lidar_no_hit`."""
        angles = 2 * np.pi * np.arange(lidar) / max(lidar, 1)
        self._around = np.stack([np.cos(angles), np.sin(angles), np.zeros(lidar)], -1)
        bodies = len(scene.body_ids)
        self._centres = np.zeros((worlds.num_worlds, bodies, 3))
        self._centres[..., 2] = scene.rest_heights
        self._walls = np.zeros((worlds.num_worlds, len(scene.wall_ids), 2, 3))
        self._walls[..., 2] = scene.wall_heights[:, None] / 2
        self._half_cone = np.cos(np.radians(config.vision_degrees / 2))
        corners = scene.rest_heights * config.original_observation
        self._shift = corners[self._others] - corners[:agents, None]

    def look(self) -> None:
        """Computes what every agent sees now."""
        worlds, agents = self._worlds, len(self._others)
        self._place()
        for start in range(0, worlds.num_worlds, _CHUNK):
            part = slice(start, start + _CHUNK)
            origins, targets = self._centres[part, :agents], self._targets(part)
            towards = targets[:, self._others] - origins[:, :, None]
            lidar = np.broadcast_to(self._around, (*towards.shape[:2], *self._around.shape))
            rays = directed(np.concatenate([lidar, towards], 2))
            hit, distance = self.first_hits(part, origins, rays)
            count = lidar.shape[2]
            np.equal(hit[:, :, count:], self._others, out=self.visible[part])
            np.minimum(distance[:, :, :count], FAR, out=self.lidar[part], casting="same_kind")
        self.lidar[self.lidar >= FAR] = worlds.scene.config.lidar_no_hit
        self.visible &= self._in_cone()
        self.visible &= worlds.present[:, self._others]
        self.visible &= worlds.present[:, :agents, None]

    def _place(self) -> None:
        """Reads where everything is; what an episode does not have is out of sight."""
        worlds, flat = self._worlds, self._worlds.scene.num_joints - 1
        self._centres[..., :flat] = worlds.qpos[..., :flat]
        self._centres[..., 0][~worlds.present] = FAR
        self._walls[..., 0, :2] = worlds.walls[..., :2]
        self._walls[..., 1, :2] = worlds.walls[..., 2:]
        self._walls[..., 0, 0][worlds.walls[..., 2] == 0] = FAR

    def _targets(self, part: slice) -> np.ndarray:
        """float [worlds, bodies, 3]: what agents look at; of ramps the centre of mass."""
        ramps = self._worlds.scene.config.ramps
        targets = self._centres[part]
        if ramps:
            targets = targets.copy()
            yaw = self._worlds.qpos[part, -ramps:, -1]
            shift = self._worlds.scene.config.physics.ramp_size / 6
            targets[:, -ramps:, 0] += np.sin(yaw) * shift
            targets[:, -ramps:, 1] -= np.cos(yaw) * shift
            targets[:, -ramps:, 2] -= shift
        return targets

    def first_hits(
        self, part: slice, origins: np.ndarray, rays: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """What the rays of some worlds hit first, and where.

        Origins are float [worlds, agents, 3] of all agents, rays [worlds, agents, rays, 3] without
        zeros (`directed`). Returns int [worlds, agents, rays], the body, or a negative number for
        walls; and the distances.
        """
        worlds, config, agents = self._worlds, self._worlds.scene.config, len(self._others)
        walls, centres = self._walls[part], self._centres[part]
        spheres = sphere_distances(origins, rays, centres[:, :agents], config.physics.agent_radius)
        own = np.arange(agents)
        spheres[:, own, :, own] = np.inf
        found = [box_distances(origins, rays, walls[:, :, 0], walls[:, :, 1]), spheres]
        if worlds.scene.num_objects:
            halves = self._object_halves(part)
            yaw = worlds.qpos[part, agents:, -1]
            found.append(
                turned_distances(origins, rays, centres[:, agents:], halves, yaw, config.ramps)
            )
        distances = np.concatenate(found, -1)
        hit = distances.argmin(-1)
        first = np.take_along_axis(distances, hit[..., None], -1)[..., 0]
        return hit - walls.shape[1], first

    def _object_halves(self, part: slice) -> np.ndarray:
        """float [worlds, objects, 3]: half sizes of boxes and ramps."""
        worlds, config = self._worlds, self._worlds.scene.config
        sizes = worlds.box_sizes[part]
        halves = np.full((len(sizes), worlds.scene.num_objects, 3), config.physics.ramp_size / 2)
        halves[:, : config.num_boxes, :2] = sizes / 2
        halves[:, : config.num_boxes, 2] = config.physics.box_size / 2
        return halves

    def seen_by(self, world: int, agent: int) -> list[int]:
        """The bodies that an agent sees."""
        return self._others[agent][self.visible[world, agent]].tolist()  # type: ignore[no-any-return]

    def outline(self, world: int, angles: np.ndarray) -> np.ndarray:
        """float [agents, angles]: how far agents could see in some directions, for pictures.

        `angles` is float [agents, angles].
        """
        rays = np.stack([np.cos(angles), np.sin(angles), np.zeros_like(angles)], -1)[None]
        part = slice(world, world + 1)
        origins = self._centres[part, : len(self._others)]
        distances = self.first_hits(part, origins, directed(rays))[1][0]
        return np.asarray(np.minimum(distances, 2 * self._worlds.scene.config.side))

    def _in_cone(self) -> np.ndarray:
        """bool [worlds, agents, others]: whether the other's centre is in the agent's cone."""
        worlds, agents = self._worlds, len(self._others)
        x, y, yaw = (worlds.qpos[..., column] for column in (0, 1, -1))
        across = x[:, self._others] - x[:, :agents, None] - self._shift
        along = y[:, self._others] - y[:, :agents, None] - self._shift
        # An agent's front is -y of its own frame.
        sine, cosine = np.sin(yaw[:, :agents, None]), np.cos(yaw[:, :agents, None])
        ahead = across * sine - along * cosine
        return np.asarray(ahead >= self._half_cone * np.sqrt(across * across + along * along))
