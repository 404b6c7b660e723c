"""Many copies of a scene that are stepped together, and set up for new episodes in place."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import mujoco
import numpy as np

from srl.data.tree import Tree
from srl.envs.hide_and_seek.layout import OUTER_PIECES, max_doors
from srl.envs.hide_and_seek.placement import EpisodeStart
from srl.envs.hide_and_seek.scene import ABSENT_GROUP, ARM_GROUP, BODY_GROUP, WALL_GROUP, Scene

_PARKING = (-40.0, -40.0)
"""Where bodies are that an episode does not have; they touch nothing and feel no gravity."""
_PARKING_STEP = 3.0


class Worlds:
    """Worlds with a model each. Arrays are of all worlds and are written in place."""

    def __init__(self, scene: Scene, num_worlds: int, threads: int = 1) -> None:
        self.scene = scene
        self.num_worlds = num_worlds
        bodies = len(scene.body_ids)
        shape = (num_worlds, bodies, scene.num_joints)
        self.qpos = np.zeros(shape)
        """float [worlds, bodies, joints]: centres x, y, (z) and yaw."""
        self.qvel = np.zeros(shape)
        """float [worlds, bodies, joints]."""
        self.present = np.zeros((num_worlds, bodies), bool)
        """bool [worlds, bodies]: which agents, boxes and ramps the episode has."""
        self.box_sizes = np.full(
            (num_worlds, scene.config.num_boxes, 2), scene.config.physics.box_size
        )
        """float [worlds, boxes, 2]: full sizes along the box's own x and y."""
        self.control = np.zeros((num_worlds, scene.num_agents, 3))
        """float [worlds, agents, 3]: controls of the motors along x, y and around z."""
        self.walls = np.full((num_worlds, len(scene.wall_ids), 4), np.nan)
        """float [worlds, pieces, 4]: centre and half sizes; zeros for pieces that are missing. NaN
        before the first episode."""
        self.doors = np.full((num_worlds, max_doors(scene.config), 2), -1)
        """int [worlds, doors, 2]: the two pieces beside each door, or -1."""
        self.door_places = np.zeros((*self.doors.shape[:2], 4))
        """float [worlds, doors, 4]: the middle of each door and its direction; zeros for none."""
        self.active = np.zeros((num_worlds, scene.model.neq), bool)
        """bool [worlds, equalities]: which grips and locks hold."""
        self.broken = np.zeros(num_worlds, bool)
        """bool [worlds]: whether the last step ended with numbers that physics cannot explain."""
        self.models = [copy.copy(scene.model) for _ in range(num_worlds)]
        # Worlds share the data of their thread, which stays in the processor's cache: a world is
        # its model and these few arrays.
        self._warmstart = np.zeros((num_worlds, scene.model.nv))
        self._datas = [mujoco.MjData(scene.model) for _ in range(max(1, threads))]
        self._rows = [
            (
                self.control[i].reshape(-1),
                self.qpos[i].reshape(-1),
                self.qvel[i].reshape(-1),
                self._warmstart[i],
                self.active[i],
            )
            for i in range(num_worlds)
        ]
        self._substeps = scene.config.physics.substeps
        self._max_square = scene.config.physics.max_speed**2
        self._pool = ThreadPoolExecutor(threads) if threads > 1 else None

    def step(self, worlds: list[int]) -> None:
        """Advances these worlds by one environment step."""
        if self._pool is None:
            self._step(worlds, self._datas[0])
        else:
            count = len(self._datas)
            parts = [(worlds[i::count], data) for i, data in enumerate(self._datas)]
            for done in [self._pool.submit(self._step, part, data) for part, data in parts]:
                done.result()
        self.broken |= self._has_left()

    def _has_left(self) -> np.ndarray:
        """bool [worlds]: whether a body has passed through an outer wall.

        With a coarse time step two agents may meet so fast that the contact throws one of them.
        """
        where = self.qpos[..., :2]
        outside = ((where < 0) | (where > self.scene.config.side)).any(2) & self.present
        walled = (self.walls[:, :OUTER_PIECES, 2] > 0).all(1)
        return np.asarray(outside.any(1) & walled)

    def _step(self, worlds: list[int], data: Any) -> None:
        step, substeps = mujoco.mj_step, self._substeps
        ctrl, qpos, qvel = data.ctrl, data.qpos, data.qvel
        warmstart, active = data.qacc_warmstart, data.eq_active
        for index in worlds:
            model = self.models[index]
            my_control, my_qpos, my_qvel, my_warmstart, my_active = self._rows[index]
            ctrl[:], qpos[:], qvel[:] = my_control, my_qpos, my_qvel
            warmstart[:], active[:] = my_warmstart, my_active
            step(model, data, substeps)
            my_qpos[:], my_qvel[:], my_warmstart[:] = qpos, qvel, warmstart
            self.broken[index] = broken = self._is_broken(index)
            if broken:
                mujoco.mj_resetData(model, data)

    def _is_broken(self, index: int) -> bool:
        velocity = self._rows[index][2]
        total = float(velocity.dot(velocity))
        if total < self._max_square:
            return False
        speeds = np.square(self.qvel[index, :, :-1]).sum(-1)
        good = (speeds < self._max_square).all() and np.isfinite(self.qpos[index]).all()
        return not (good and np.isfinite(total))

    def begin(self, index: int, start: EpisodeStart) -> None:
        """Sets one world up for a new episode."""
        scene = self.scene
        centres = np.concatenate([start.agents, start.boxes, start.ramps])
        present = ~np.isnan(centres[:, 0])
        self._set_walls(index, start.layout.pieces)
        self._set_bodies(index, present, start.box_sizes)
        self._set_doors(index, start.layout.doors)
        parked = np.flatnonzero(~present)
        centres[parked] = _PARKING
        centres[parked, 0] -= _PARKING_STEP * parked
        self.qpos[index] = 0.0
        self.qpos[index, :, :2] = centres
        if not scene.config.physics.planar:
            self.qpos[index, :, 2] = scene.rest_heights
        self.qvel[index] = 0.0
        self._rest(index)

    def rewind(self, index: int, qpos: np.ndarray, qvel: np.ndarray) -> None:
        """Puts one world back to earlier positions and speeds, without grips and locks."""
        self.qpos[index], self.qvel[index] = qpos, qvel
        self._rest(index)

    def _rest(self, index: int) -> None:
        self._warmstart[index] = 0.0
        self.active[index] = self.broken[index] = False

    def frames(self, index: int) -> Any:
        """The data with the frames of one world's bodies; the next call writes it again."""
        data = self._datas[0]
        data.qpos[:] = self._rows[index][1]
        mujoco.mj_kinematics(self.models[index], data)
        return data

    def _set_walls(self, index: int, pieces: np.ndarray) -> None:
        model, scene = self.models[index], self.scene
        if np.array_equal(self.walls[index], pieces):
            return
        self.walls[index] = pieces
        geoms, bodies = scene.wall_geoms, scene.wall_ids
        there = pieces[:, 2] > 0
        heights = model.geom_size[geoms, 2]
        model.body_pos[bodies, :2] = np.where(there[:, None], pieces[:, :2], _PARKING)
        model.body_pos[bodies, 2] = heights
        sizes = np.where(there[:, None], pieces[:, 2:], 1.0)
        self._resize(model, geoms, np.column_stack([sizes, heights]))
        self._switch(model, geoms, bodies, there, WALL_GROUP)

    def _set_doors(self, index: int, doors: np.ndarray) -> None:
        """Says which walls are beside doors, and computes the doors' places from theirs."""
        self.doors[index] = doors
        self.door_places[index] = 0.0
        for place, pieces in zip(self.door_places[index], doors, strict=True):
            if pieces[0] >= 0:
                (*one, half_x, half_y), (*other, end_x, end_y) = self.walls[index, pieces]
                along = np.array((half_x, half_y)) > np.array((half_y, half_x))
                first = one + along * (half_x, half_y)
                second = other - along * (end_x, end_y)
                place[:2], place[2:] = (first + second) / 2, along

    def _set_bodies(self, index: int, present: np.ndarray, sizes: np.ndarray) -> None:
        """Says which bodies are in the game, and how large boxes are."""
        known_present, known_sizes = self.present[index], self.box_sizes[index]
        if np.array_equal(known_present, present) and np.array_equal(known_sizes, sizes):
            return
        self._set_present(index, present)
        self._set_boxes(index, sizes)
        # Masses and inertias, and how many bodies are out of gravity: without any at this call,
        # MuJoCo would not look at them again.
        mujoco.mj_setConst(self.models[index], self._datas[0])

    def _set_boxes(self, index: int, sizes: np.ndarray) -> None:
        model, scene = self.models[index], self.scene
        self.box_sizes[index] = sizes
        physics = scene.config.physics
        first = scene.num_agents
        bodies = scene.body_ids[first : first + len(sizes)]
        geoms = [scene.body_geoms[first + i][0] for i in range(len(sizes))]
        full = np.column_stack([sizes, np.full(len(sizes), physics.box_size)])
        self._resize(model, geoms, full / 2)
        squares = np.square(full) * physics.box_mass / 12
        model.body_inertia[bodies] = squares.sum(-1, keepdims=True) - squares
        if physics.planar:
            weight = physics.floor_friction * physics.gravity * physics.box_mass
            yaw = model.body_dofadr[bodies] + model.body_dofnum[bodies] - 1
            model.dof_frictionloss[yaw] = weight * np.hypot(*sizes.T) / 2

    def _set_present(self, index: int, present: np.ndarray) -> None:
        self.present[index] = present
        model, scene = self.models[index], self.scene
        for rank, group in enumerate((BODY_GROUP, ARM_GROUP, ARM_GROUP)):
            having = [body for body, found in enumerate(scene.body_geoms) if len(found) > rank]
            geoms = [scene.body_geoms[body][rank] for body in having]
            self._switch(model, geoms, scene.body_ids[having], present[having], group)
        model.body_gravcomp[scene.body_ids] = ~present

    @staticmethod
    def _resize(model: Any, geoms: Any, half_sizes: np.ndarray) -> None:
        """Changes the sizes of box geoms, with all that MuJoCo derives from them."""
        model.geom_size[geoms] = half_sizes
        model.geom_aabb[geoms, 3:] = half_sizes
        model.geom_rbound[geoms] = np.linalg.norm(half_sizes, axis=-1)
        nodes = model.body_bvhadr[model.geom_bodyid[geoms]]
        model.bvh_aabb[nodes, 3:] = half_sizes

    @staticmethod
    def _switch(
        model: Any,
        geoms: Any,
        bodies: np.ndarray,
        on: np.ndarray,
        group: int,
    ) -> None:
        """Lets geoms collide and be hit by rays, or not."""
        model.geom_contype[geoms] = model.geom_conaffinity[geoms] = on
        model.geom_group[geoms] = np.where(on, group, ABSENT_GROUP)
        model.body_contype[bodies] = model.body_conaffinity[bodies] = on

    def state(self) -> dict[str, Tree]:
        """All that later steps depend on."""
        return {
            "qpos": self.qpos.copy(),
            "qvel": self.qvel.copy(),
            "warmstart": self._warmstart.copy(),
            "active": self.active.copy(),
            "walls": self.walls.copy(),
            "box_sizes": self.box_sizes.copy(),
            "present": self.present.copy(),
            "doors": self.doors.copy(),
            "equality": np.stack([model.eq_data for model in self.models]),
            "equality_body": np.stack([model.eq_obj2id for model in self.models]),
        }

    def restore(self, state: dict[str, Tree]) -> None:
        """Continues from `state`."""
        for index in range(self.num_worlds):
            model = self.models[index]
            self._set_walls(index, state["walls"][index])
            self._set_bodies(index, state["present"][index], state["box_sizes"][index])
            self._set_doors(index, state["doors"][index])
            model.eq_data[:] = state["equality"][index]
            model.eq_obj2id[:] = state["equality_body"][index]
        self.qpos[:], self.qvel[:] = state["qpos"], state["qvel"]
        self._warmstart[:], self.active[:] = state["warmstart"], state["active"]
        self.broken[:] = False

    def close(self) -> None:
        """Ends the threads. Safe to call twice."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
