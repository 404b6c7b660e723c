"""How wide the way through a door still is, with boxes and ramps beside or inside of it."""

from __future__ import annotations

import numpy as np


def free_gap(rectangles: np.ndarray, first: int, second: int) -> float:
    """The widest way between two rectangles of all, in metres.

    A disc of this diameter passes between `first` and `second` (the wall pieces beside a door),
    whatever chain of the other rectangles stands between them. `rectangles` is float [n, 5]: centre
    x, y, half sizes along the rectangle's own x and y, and its angle.
    """
    widest = distances(rectangles)
    # Of all chains of rectangles from one piece to the other, the one with the smallest largest gap
    # blocks most.
    for via in range(len(widest)):
        widest = np.minimum(widest, np.maximum(widest[:, via, None], widest[None, via]))
    return float(widest[first, second])


def distances(rectangles: np.ndarray) -> np.ndarray:
    """float [n, n]: distances between rectangles; 0 where they touch or overlap."""
    centre, half, angle = rectangles[:, :2], rectangles[:, 2:4], rectangles[:, 4]
    cosine, sine = np.cos(angle), np.sin(angle)
    along = np.stack([cosine, sine], -1)
    across = np.stack([-sine, cosine], -1)
    signs = np.array([(1, 1), (1, -1), (-1, 1), (-1, -1)])
    corners = centre[:, None] + signs[:, :1] * (half[:, :1] * along)[:, None]
    corners = corners + signs[:, 1:] * (half[:, 1:] * across)[:, None]
    # [n, n, 4]: from each corner of a rectangle to each other rectangle.
    between = corners[:, None] - centre[None, :, None]
    x = np.abs((between * along[None, :, None]).sum(-1)) - half[None, :, None, 0]
    y = np.abs((between * across[None, :, None]).sum(-1)) - half[None, :, None, 1]
    corner = np.hypot(np.maximum(x, 0.0), np.maximum(y, 0.0)).min(-1)
    found = np.minimum(corner, corner.T)
    # Rectangles that cross each other may have all their corners outside; then no axis parts them.
    axes = np.concatenate([along, across])
    middle = centre @ axes.T
    reach = np.abs(along @ axes.T) * half[:, :1] + np.abs(across @ axes.T) * half[:, 1:]
    apart = np.abs(middle[:, None] - middle[None]) - reach[:, None] - reach[None]
    n = len(rectangles)
    own = apart.reshape(n, n, 2, n)
    i, j = np.arange(n)[:, None], np.arange(n)[None]
    parted = np.maximum(own[i, j, :, i].max(-1), own[i, j, :, j].max(-1)) > 0
    return np.where(parted, found, 0.0)
