"""Rescaled values: large returns become small, so that rewards need no clipping."""

from __future__ import annotations

import torch

EPSILON = 1e-3
"""Slope for large values; it keeps the function invertible."""


def rescale(x: torch.Tensor, epsilon: float = EPSILON) -> torch.Tensor:
    """h(x) = sign(x) (sqrt(|x| + 1) - 1) + epsilon x (Pohlen et al. 2018, "Observe and look
    further")."""
    return x.sign() * ((x.abs() + 1.0).sqrt() - 1.0) + epsilon * x


def unscale(x: torch.Tensor, epsilon: float = EPSILON) -> torch.Tensor:
    """The inverse of `rescale`."""
    # In double precision: the root subtracts numbers that are nearly equal.
    wide = x.double()
    root = ((1.0 + 4.0 * epsilon * (wide.abs() + 1.0 + epsilon)).sqrt() - 1.0) / (2.0 * epsilon)
    return (wide.sign() * (root.square() - 1.0)).to(x.dtype)
