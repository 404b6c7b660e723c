"""Rays against boxes, wedges and spheres, for all agents of many worlds by a few array operations.

MuJoCo's `mj_multiRay` gives the same distances (a test compares them). It works ray by ray, and
takes several times as long here.

Origins are [worlds, agents, 3] and directions [worlds, agents, rays, 3]. Distances are in units of
the direction's length, and infinite without a hit.
"""

from __future__ import annotations

import numpy as np

FAR = 1e6
"""Where things are put that no ray shall hit."""


def box_distances(
    origin: np.ndarray, direction: np.ndarray, centre: np.ndarray, half: np.ndarray
) -> np.ndarray:
    """[worlds, agents, rays, boxes]: boxes along the axes; centres and half sizes are [worlds,
    boxes, 3]."""
    inverse = 1.0 / direction
    near = far = np.empty(0)
    for axis in range(3):
        middle = centre[:, None, :, axis] - origin[:, :, None, axis]
        along = inverse[..., axis, None]
        near, far = _clip(
            middle[:, :, None] * along,
            half[:, None, None, :, axis] * np.abs(along),
            None if axis == 0 else (near, far),
        )
    return _first(near, far)


def turned_distances(
    origin: np.ndarray,
    direction: np.ndarray,
    centre: np.ndarray,
    half: np.ndarray,
    yaw: np.ndarray,
    wedges: int,
) -> np.ndarray:
    """[worlds, agents, rays, bodies]: boxes that are turned around z; the last `wedges` are ramps.

    A ramp is the part of its box below the plane y + z = 0 of its own frame.
    """
    cosine, sine = np.cos(yaw)[:, None], np.sin(yaw)[:, None]
    x, y, z = np.moveaxis(centre[:, None] - origin[:, :, None], -1, 0)
    own_x, own_y = x * cosine + y * sine, y * cosine - x * sine
    dx, dy, dz = (direction[..., axis, None] for axis in range(3))
    cosine, sine = cosine[:, :, None], sine[:, :, None]
    turned_x, turned_y = _away_from_zero(dx * cosine + dy * sine), dy * cosine - dx * sine
    turned_y = _away_from_zero(turned_y)
    near = far = np.empty(0)
    for axis, (middle, along) in enumerate(((own_x, turned_x), (own_y, turned_y), (z, dz))):
        inverse = 1.0 / along
        near, far = _clip(
            middle[:, :, None] * inverse,
            half[:, None, None, :, axis] * np.abs(inverse),
            None if axis == 0 else (near, far),
        )
    if wedges:
        # On the slope side of a ramp the ray has to pass the plane.
        slope = _away_from_zero(turned_y[..., -wedges:] + dz)
        crossing = (own_y + z)[:, :, None, -wedges:] / slope
        inward = slope < 0
        part = (..., slice(-wedges, None))
        near[part] = np.where(inward, np.maximum(near[part], crossing), near[part])
        far[part] = np.where(inward, far[part], np.minimum(far[part], crossing))
    return _first(near, far)


def sphere_distances(
    origin: np.ndarray, direction: np.ndarray, centre: np.ndarray, radius: float
) -> np.ndarray:
    """[worlds, agents, rays, spheres]: spheres of one radius; centres are [worlds, spheres, 3]."""
    between = centre[:, None] - origin[:, :, None]
    square = np.einsum("warc,warc->war", direction, direction)[..., None]
    ahead = np.matmul(direction, between.swapaxes(-1, -2))
    room = np.einsum("wanc,wanc->wan", between, between) - radius**2
    root = ahead * ahead - square * room[:, :, None]
    hit = (root >= 0) & (ahead > 0)
    distance = (ahead - np.sqrt(np.where(hit, root, 0.0))) / square
    return np.where(hit, distance, np.inf)


def directed(direction: np.ndarray) -> np.ndarray:
    """The directions, with no component of exactly 0: each is divided by."""
    return _away_from_zero(direction)


def _away_from_zero(values: np.ndarray) -> np.ndarray:
    return np.where(np.abs(values) < 1e-9, 1e-9, values)


def _clip(
    middle: np.ndarray, reach: np.ndarray, before: tuple[np.ndarray, np.ndarray] | None
) -> tuple[np.ndarray, np.ndarray]:
    """The part of a ray between two parallel planes, within the part `before`."""
    near, far = middle - reach, np.add(middle, reach, out=middle)
    if before is None:
        return near, far
    return np.maximum(before[0], near, out=near), np.minimum(before[1], far, out=far)


def _first(near: np.ndarray, far: np.ndarray) -> np.ndarray:
    np.maximum(near, 0.0, out=near)
    near[near > far] = np.inf
    return near
