"""Observations as columns, the layout that packed towers read: copied, or normalised with numpy."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch


class Norm(Protocol):
    """A running norm of observations, as `srl.policies.nets.norm.RunningNorm` is."""

    mean: torch.Tensor
    clip: float

    @property
    def factor(self) -> torch.Tensor:
        """One over the standard deviation."""

    def __call__(self, x: torch.Tensor) -> Any:
        """[rows, n] normalised."""


class ColumnScaling:
    """A running norm for vectors as columns, with numpy."""

    def __init__(self, norm: Norm) -> None:
        """Takes the current statistics of `norm`."""
        self._norm = norm
        self._mean = np.empty((*norm.mean.shape, 1), norm.mean.numpy().dtype)
        self._factor = np.empty_like(self._mean)
        self.load()

    def load(self) -> None:
        """Takes the current statistics of the norm."""
        self._mean[:, 0] = self._norm.mean.numpy()
        self._factor[:, 0] = self._norm.factor.numpy()

    def __call__(self, obs: np.ndarray, out: np.ndarray) -> None:
        """Writes [n, rows] into `out`, normalised."""
        np.subtract(obs, self._mean, out)
        np.multiply(out, self._factor, out)
        np.maximum(out, -self._norm.clip, out=out)
        np.minimum(out, self._norm.clip, out=out)


def copy_columns(obs: np.ndarray, out: np.ndarray) -> None:
    """Writes [n, rows] into `out` as they are."""
    np.copyto(out, obs)
