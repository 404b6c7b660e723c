"""What agents see: the cone, lines of sight and the lidar, by one call of MuJoCo for each agent."""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np

from srl.envs.hide_and_seek.scene import ABSENT_GROUP, FLOOR_GROUP, Scene
from srl.envs.hide_and_seek.worlds import Worlds

_LIFT = 1e-9
"""Added to the height of targets: a ray of no length would end the process."""


def other_bodies(scene: Scene) -> np.ndarray:
    """int [agents, others]: the bodies that each agent observes, in the order of its observation.

    First the agents after it, cyclically, then boxes and ramps.
    """
    agents = scene.num_agents
    objects = np.arange(agents, agents + scene.num_objects)
    rows = [[*((a + 1 + np.arange(agents - 1)) % agents), *objects] for a in range(agents)]
    return np.array(rows).reshape(agents, -1)


class Sight:
    """Lines of sight and lidars in all worlds."""

    def __init__(self, worlds: Worlds) -> None:
        self._worlds = worlds
        scene, config = worlds.scene, worlds.scene.config
        agents, lidar = config.num_agents, config.lidar_rays
        self._others = other_bodies(scene)
        count = lidar + self._others.shape[1]
        shape = (worlds.num_worlds, agents)
        self.visible = np.zeros((*shape, count - lidar), bool)
        """bool [worlds, agents, others]: whether the agent sees the other (`other_bodies`)."""
        self.lidar = np.zeros((*shape, lidar), np.float32)
        """float [worlds, agents, rays]: distance to the first hit, or `lidar_no_hit`."""
        self._rays = np.zeros((*shape, count, 3))
        angles = 2 * np.pi * np.arange(lidar) / max(lidar, 1)
        self._rays[:, :, :lidar, 0], self._rays[:, :, :lidar, 1] = np.cos(angles), np.sin(angles)
        self._origins = np.zeros((*shape, 3))
        self._hits = np.full((*shape, count), -1, np.int32)
        self._distances = np.zeros((*shape, count))
        self._groups = np.ones(6, np.uint8)
        self._groups[[FLOOR_GROUP, ABSENT_GROUP]] = 0
        self._index_of_geom = np.append(scene.index_of_geom, -1)
        # The first geom of each body is what is looked at; a ramp's geom has another centre than
        # the ramp.
        geoms = np.array([found[0] for found in scene.body_geoms])
        self._agent_geoms, self._other_geoms = geoms[:agents], geoms[self._others]
        self._half_cone = np.cos(np.radians(config.vision_degrees / 2))
        corners = scene.rest_heights * config.original_observation
        self._shift = corners[self._others] - corners[:agents, None]
        self._calls = [self._calls_of(world) for world in range(worlds.num_worlds)]

    def _calls_of(self, w: int) -> list[tuple[int, np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
        """What each agent's call needs: its body, origin and rays, and memory for the results."""
        rays = self._rays[w].reshape(len(self._others), -1)
        bodies = self._worlds.scene.body_ids.tolist()
        return [
            (bodies[a], self._origins[w, a], rays[a], self._hits[w, a], self._distances[w, a])
            for a in range(len(self._others))
        ]

    def cast(self, world: int, data: Any) -> None:
        """Casts the rays of all agents of one world, whose frames are in `data`."""
        model = self._worlds.models[world]
        centres = data.geom_xpos
        origins = self._origins[world]
        centres.take(self._agent_geoms, 0, origins)
        towards = centres.take(self._other_geoms, 0)
        towards -= origins[:, None]
        towards[..., 2] += _LIFT
        count, lidar = self._hits.shape[-1], self.lidar.shape[-1]
        self._rays[world, :, lidar:] = towards
        groups, far = self._groups, mujoco.mjMAXVAL
        for a, (body, origin, rays, hits, distances) in enumerate(self._calls[world]):
            if self._worlds.present[world, a]:
                mujoco.mj_multiRay(
                    model, data, origin, rays, groups, True, body, hits, distances, None, count, far
                )

    def look(self) -> None:
        """Computes what every agent sees, from the rays that were cast."""
        worlds, agents, lidar = self._worlds, len(self._others), self.lidar.shape[-1]
        hit = self._index_of_geom[self._hits[:, :, lidar:]]
        np.equal(hit, self._others, out=self.visible)
        self.visible &= self._in_cone()
        self.visible &= worlds.present[:, self._others]
        self.visible &= worlds.present[:, :agents, None]
        distances = self._distances[:, :, :lidar]
        no_hit = worlds.scene.config.lidar_no_hit
        np.copyto(self.lidar, np.where(distances < 0, no_hit, distances), casting="same_kind")

    def seen_by(self, world: int, agent: int) -> list[int]:
        """The bodies that an agent sees."""
        return self._others[agent][self.visible[world, agent]].tolist()  # type: ignore[no-any-return]

    def outline(self, world: int, agent: int, angles: np.ndarray) -> np.ndarray:
        """float [angles]: how far an agent can see at the height of its centre, for pictures."""
        rays = np.stack([np.cos(angles), np.sin(angles), np.zeros_like(angles)], -1).reshape(-1)
        hits, distances = np.full(len(angles), -1, np.int32), np.zeros(len(angles))
        body, origin = self._calls[world][agent][:2]
        model, data = self._worlds.models[world], self._worlds.frames(world)
        mujoco.mj_multiRay(
            model, data, origin, rays, self._groups, True, body, hits, distances, None,
            len(angles), mujoco.mjMAXVAL,
        )  # fmt: skip
        far = 2 * self._worlds.scene.config.side
        return np.where(distances < 0, far, distances)

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
