"""Pictures of a game for videos: drawn from above, and beside it by a camera where that works."""

from __future__ import annotations

import numpy as np

from srl.envs.hide_and_seek.camera import Camera
from srl.envs.hide_and_seek.game import Game
from srl.envs.hide_and_seek.render import SIZE, draw


class Pictures:
    """Draws the worlds of a game.

    A game in the plane, or on a machine without a graphics library, is only drawn from above.
    """

    def __init__(self, game: Game) -> None:
        self._game = game
        self._camera: Camera | None = None
        self._tried = game.config.physics.planar

    def picture(self, world: int) -> np.ndarray:
        """A picture (uint8 [height, width, 3]) of one world."""
        if not self._tried:
            self._tried = True
            self._camera = _make_camera(self._game)
        above = draw(self._game, world)
        if self._camera is None:
            return above
        return np.concatenate([self._camera.picture(world), above], axis=1)

    def close(self) -> None:
        """Frees the camera. Safe to call twice."""
        if self._camera is not None:
            self._camera.close()
            self._camera = None


def _make_camera(game: Game) -> Camera | None:
    """A camera, or None if no graphics library works."""
    try:
        return Camera(game, SIZE)
    except Exception:  # Each library has its own errors, of any kind.
        return None
