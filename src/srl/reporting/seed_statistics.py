"""Statistics of few runs: interquartile means, bootstrap intervals, probability of improvement.

As in Agarwal et al., *Deep Reinforcement Learning at the Edge of the Statistical Precipice*
(NeurIPS 2021).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]
Interval = tuple[float, float]
RESAMPLES = 2000
CONFIDENCE = 0.95
_TRIMMED = 0.25
"""Share of the values that is left out at each end."""


def interquartile_mean(values: Array, axis: int = 0) -> Array:
    """Mean of the middle half of the values along an axis.

    Of n values, `int(n / 4)` are left out at each end.
    """
    ordered = np.sort(values, axis=axis)
    count = values.shape[axis]
    cut = int(_TRIMMED * count)
    found: Array = np.take(ordered, range(cut, count - cut), axis=axis).mean(axis=axis)
    return found


def probability_of_improvement(values: Array, others: Array) -> Array:
    """How likely a run of `others` scores more than a run of `values`; equal scores count half.

    Runs are along the first axis.
    """
    difference = others[None] - values[:, None]
    found: Array = ((difference > 0) + 0.5 * (difference == 0)).mean(axis=(0, 1))
    return found


class Bootstrap:
    """Draws runs again and again, with replacement, from each group for itself (stratified)."""

    def __init__(self, seed: int = 0, resamples: int = RESAMPLES) -> None:
        self._random = np.random.default_rng(seed)
        self._resamples = resamples

    def draw(self, values: Array) -> Array:
        """Resamples along the first axis: the result is [runs, resamples, ...]."""
        count = len(values)
        return values[self._random.integers(0, count, (count, self._resamples))]

    def interval(self, of: Callable[..., Array], *groups: Array) -> tuple[Array, Array]:
        """The interval of a statistic that takes one array of runs for each group."""
        found = of(*(self.draw(values) for values in groups))
        outside = 100 * (1 - CONFIDENCE) / 2
        low, high = np.percentile(found, (outside, 100 - outside), axis=0)
        return low, high


def curve_at(steps: Array, values: Array, grid: Array) -> Array:
    """A run's curve at the steps of a grid; NaN before its first and after its last point."""
    found: Array = np.interp(grid, steps, values, left=np.nan, right=np.nan)
    return found
