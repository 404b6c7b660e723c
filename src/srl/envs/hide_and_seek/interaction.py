"""Grabbing and locking: who reaches what, who holds what, and what is locked by whom."""

from __future__ import annotations

from typing import Any

import numpy as np

from srl.data.tree import Tree
from srl.envs.hide_and_seek.worlds import Worlds


class Interaction:
    """The grips and locks of all worlds. *Objects* are boxes, then ramps."""

    def __init__(self, worlds: Worlds) -> None:
        self._worlds = worlds
        scene, config = worlds.scene, worlds.scene.config
        self._agents, self._objects = scene.num_agents, scene.num_objects
        shape = (worlds.num_worlds, self._objects)
        self.held = np.full((worlds.num_worlds, self._agents), -1)
        """int [worlds, agents]: the object that an agent holds, or -1."""
        self.locked = np.zeros(shape, bool)
        """bool [worlds, objects]."""
        self.owner = np.zeros(shape, np.int64)
        """int [worlds, objects]: who locked it last; agent 0 where nobody has."""
        self._is_hider = np.arange(self._agents) < config.hiders[1]
        self._lockable = np.arange(self._objects) < config.num_boxes
        self._lockable |= config.lockable_ramps
        halves = np.full((worlds.num_worlds, self._objects, 3), config.physics.box_size / 2)
        halves[:, config.num_boxes :] = config.physics.ramp_size / 2
        self._halves = halves
        self._heights = scene.rest_heights

    def begin(self, world: int) -> None:
        """Forgets the grips and locks of one world, whose physics has been set up anew."""
        self.held[world] = -1
        self.locked[world] = False
        self.owner[world] = 0

    def apply(
        self,
        grab: np.ndarray,
        lock: np.ndarray,
        visible: np.ndarray,
        playing: np.ndarray,
        randoms: list[np.random.Generator],
    ) -> None:
        """Applies the wishes of all agents in the worlds that play.

        `grab` and `lock` are bool [worlds, agents], `visible` is bool [worlds, agents, objects] of
        the last observation, `playing` is bool [worlds].
        """
        if not self._objects:
            return
        distance = self.distances()
        able = (distance <= self._worlds.scene.config.reach) & visible
        able &= playing[:, None, None]
        self._lock(lock, able, randoms)
        self._grab(grab, able, distance, playing)

    def distances(self) -> np.ndarray:
        """float [worlds, agents, objects]: from an agent's centre to an object's surface."""
        worlds, agents = self._worlds, self._agents
        self._halves[:, : worlds.box_sizes.shape[1], :2] = worlds.box_sizes / 2
        qpos = worlds.qpos
        between = qpos[:, :agents, None, :2] - qpos[:, None, agents:, :2]
        yaw = qpos[:, None, agents:, -1]
        sine, cosine = np.sin(yaw), np.cos(yaw)
        x, y = between[..., 0], between[..., 1]
        if qpos.shape[-1] == 4:
            up = qpos[:, :agents, None, 2] - qpos[:, None, agents:, 2]
        else:
            up = self._heights[:agents, None] - self._heights[agents:]
        halves = self._halves[:, None]
        along = np.maximum(np.abs(x * cosine + y * sine) - halves[..., 0], 0.0)
        across = np.maximum(np.abs(y * cosine - x * sine) - halves[..., 1], 0.0)
        above = np.maximum(np.abs(up) - halves[..., 2], 0.0)
        return np.asarray(np.sqrt(along * along + across * across + above * above))

    # -- locks ---------------------------------------------------------------------------------

    def _lock(self, lock: np.ndarray, able: np.ndarray, randoms: list[np.random.Generator]) -> None:
        wants = able & lock[:, :, None] & self._lockable
        refuses = able & ~lock[:, :, None]
        to_lock, to_unlock = self._decide(wants, refuses)
        to_lock &= ~self.locked
        to_unlock &= self.locked
        for world, thing in np.argwhere(to_lock):
            wanting = np.flatnonzero(wants[world, :, thing])
            self.owner[world, thing] = randoms[world].choice(wanting)
            self._switch(world, thing, True)
        for world, thing in np.argwhere(to_unlock):
            self._switch(world, thing, False)

    def _decide(self, wants: np.ndarray, refuses: np.ndarray) -> tuple[Any, Any]:
        """Which objects are to be locked and unlocked; [worlds, agents, objects] to [worlds,
        objects]."""
        rule = self._worlds.scene.config.lock_rule
        any_wants, any_refuses = wants.any(1), refuses.any(1)
        if rule == "any":
            return any_wants, any_refuses & ~any_wants
        if rule == "all":
            return any_wants & ~any_refuses, any_refuses
        owner = self.owner[:, None]
        if rule == "team":
            veto = self._is_hider[:, None] == self._is_hider[owner]
        else:
            veto = np.arange(self._agents)[:, None] == owner
        vetoed = (refuses & veto).any(1)
        return any_wants & ~vetoed, vetoed

    def _switch(self, world: int, thing: int, on: bool) -> None:
        """Fixes each joint of an object where it is now, or frees it."""
        worlds = self._worlds
        joints = worlds.scene.num_joints
        first = self._agents + thing * joints
        if on:
            where = worlds.qpos[world, self._agents + thing]
            worlds.models[world].eq_data[first : first + joints, 0] = where
        worlds.active[world, first : first + joints] = on
        self.locked[world, thing] = on

    # -- grips ---------------------------------------------------------------------------------

    def _grab(
        self, grab: np.ndarray, able: np.ndarray, distance: np.ndarray, playing: np.ndarray
    ) -> None:
        distance = np.where(able & grab[:, :, None], distance, np.inf)
        if self._worlds.scene.config.exclusive_grab:
            nearest = distance.argmin(1)[:, None] == np.arange(self._agents)[:, None]
            distance = np.where(nearest, distance, np.inf)
        target = distance.argmin(2)
        target[np.isinf(distance.min(2))] = -1
        changed = (target != self.held) & playing[:, None]
        for world, agent in np.argwhere(changed):
            self._grip(world, agent, int(target[world, agent]))

    def _grip(self, world: int, agent: int, thing: int) -> None:
        """Welds an object to an agent as they are now, or ends the agent's grip."""
        self.held[world, agent] = thing
        worlds = self._worlds
        model = worlds.models[world]
        worlds.active[world, agent] = thing >= 0
        if thing < 0:
            return
        body = self._agents + thing
        yaw = worlds.qpos[world, agent, -1]
        sine, cosine = np.sin(yaw), np.cos(yaw)
        between = np.zeros(3)
        between[2] = self._heights[body] - self._heights[agent]
        flat = worlds.scene.num_joints - 1
        between[:flat] = worlds.qpos[world, body, :flat] - worlds.qpos[world, agent, :flat]
        x, y, up = between
        turn = (worlds.qpos[world, body, -1] - yaw) / 2
        model.eq_obj2id[agent] = worlds.scene.body_ids[body]
        relation = model.eq_data[agent]
        relation[:] = 0.0
        # The object's place in the frame of the agent, and its rotation relative to the agent.
        relation[3:6] = x * cosine + y * sine, y * cosine - x * sine, up
        relation[6], relation[9] = np.cos(turn), np.sin(turn)
        relation[10] = 1.0

    # -- checkpoints ---------------------------------------------------------------------------

    def state(self) -> dict[str, Tree]:
        """All that later steps depend on, beside the physics."""
        return {"held": self.held.copy(), "locked": self.locked.copy(), "owner": self.owner.copy()}

    def restore(self, state: dict[str, Tree]) -> None:
        """Continues from `state`."""
        self.held[:], self.locked[:] = state["held"], state["locked"]
        self.owner[:] = state["owner"]
