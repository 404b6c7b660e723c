"""`any` and `all` for a few rows of flags, several times faster than numpy's."""

from __future__ import annotations

import numpy as np


def any_true(flags: np.ndarray) -> bool:
    """Whether any element of a bool array is True."""
    return 1 in flags.tobytes()


def all_true(flags: np.ndarray) -> bool:
    """Whether every element of a bool array is True."""
    return 0 not in flags.tobytes()
