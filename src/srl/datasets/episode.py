"""One recorded episode, as a dataset holds it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(slots=True)
class Episode:
    """n steps of one agent, in values of its environment's own spaces. *Made in* `recorder.py` and
    `reader.py`, *read in* `writer.py` and `steps.py`."""

    observations: Any
    """[n + 1, ...] with the final observation; dicts and tuples of arrays where the space is one.
    """
    actions: np.ndarray
    """[n, ...]"""
    rewards: np.ndarray
    """float64 [n]"""
    terminations: np.ndarray
    """bool [n]: only the last one may be set."""
    truncations: np.ndarray
    """bool [n]: only the last one may be set."""
    action_masks: np.ndarray | None = None
    """[n + 1, choices], or None. A dataset has them as `infos/action_mask`."""
    seed: int | None = None
    """The seed of the reset that began it, or None if it began without one."""

    @property
    def num_steps(self) -> int:
        """Its number of steps."""
        return len(self.rewards)
