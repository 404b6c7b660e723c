"""A perspective picture of a game by MuJoCo, where a graphics library works without a screen.

The environment variable MUJOCO_GL names the library, as for MuJoCo itself. If it is unset on Linux
and there is no screen, the library is EGL.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import mujoco
import numpy as np

from srl.envs.hide_and_seek.game import Game
from srl.envs.hide_and_seek.render import HIDER, SEEKER
from srl.envs.hide_and_seek.scene import ABSENT_GROUP, ARM_GROUP

_MAX_GEOMS = 500


class Camera:
    """Draws the worlds of a game as a camera above the floor's edge sees them."""

    def __init__(self, game: Game, size: int) -> None:
        """Raises an error of the graphics library if there is none that works."""
        self._game, self._size = game, size
        self._context = _make_context(size)
        self._context.make_current()
        scene, side = game.worlds.scene, game.config.side
        self._buffers = mujoco.MjrContext(scene.model, mujoco.mjtFontScale.mjFONTSCALE_100)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._buffers)
        self._scene = mujoco.MjvScene(scene.model, _MAX_GEOMS)
        self._options = mujoco.MjvOption()
        self._options.geomgroup[ARM_GROUP] = 1
        self._options.geomgroup[ABSENT_GROUP] = 0
        self._view = mujoco.MjvCamera()
        self._view.lookat[:] = side / 2, side / 2 - 0.03 * side, 0.0
        self._view.distance, self._view.azimuth, self._view.elevation = 1.45 * side, 90.0, -55.0

    def picture(self, world: int) -> np.ndarray:
        """A picture (uint8 [size, size, 3]) of one world."""
        worlds = self._game.worlds
        model, data = worlds.models[world], worlds.frames(world)
        mujoco.mj_comPos(model, data)
        mujoco.mj_camlight(model, data)
        self._context.make_current()
        mujoco.mjv_updateScene(
            model, data, self._options, None, self._view, mujoco.mjtCatBit.mjCAT_ALL, self._scene
        )
        self._tint_locked(world)
        area = mujoco.MjrRect(0, 0, self._size, self._size)
        mujoco.mjr_render(area, self._scene, self._buffers)
        picture = np.empty((self._size, self._size, 3), np.uint8)
        mujoco.mjr_readPixels(picture, None, area, self._buffers)
        return picture[::-1]

    def _tint_locked(self, world: int) -> None:
        """Gives locked objects the colour of the team that locked them."""
        game, agents = self._game, self._game.config.num_agents
        colours = {}
        for thing in np.flatnonzero(game.interaction.locked[world]):
            owner = game.interaction.owner[world, thing]
            team = HIDER if owner < game.config.hiders[1] else SEEKER
            for geom in game.worlds.scene.body_geoms[agents + thing]:
                colours[geom] = np.array(team) / 255.0
        for index in range(self._scene.ngeom):
            geom = self._scene.geoms[index]
            if geom.objtype == mujoco.mjtObj.mjOBJ_GEOM and geom.objid in colours:
                geom.rgba[:3] = 0.3 * geom.rgba[:3] + 0.7 * colours[geom.objid]

    def close(self) -> None:
        """Frees the buffers."""
        self._buffers.free()
        self._context.free()


def _make_context(size: int) -> Any:
    if os.environ.get("MUJOCO_GL") or sys.platform != "linux" or os.environ.get("DISPLAY"):
        return mujoco.gl_context.GLContext(size, size)
    from mujoco.egl import GLContext

    return GLContext(size, size)
