"""Who is rewarded for what: seen hiders, and agents and objects outside the play area."""

from __future__ import annotations

import numpy as np

from srl.envs.hide_and_seek.config import HideAndSeekConfig


def rewards(
    config: HideAndSeekConfig, sees: np.ndarray, centres: np.ndarray, present: np.ndarray
) -> np.ndarray:
    """float32 [worlds, agents]: the rewards of a step after the preparation phase.

    `sees` is bool [worlds, seekers, hiders], `centres` float [worlds, bodies, 2] and `present` bool
    [worlds, bodies].
    """
    worlds, hiders, agents = len(sees), config.hiders[1], config.num_agents
    found = np.empty((worlds, agents), np.float32)
    hider_seen, seeker_sees = sees.any(1), sees.any(2)
    if config.reward == "joint_zero_sum":
        any_seen = np.any(sees, axis=(1, 2))[:, None]
        found[:, :hiders] = np.where(any_seen, -1.0, 1.0)
        found[:, hiders:] = np.where(any_seen, 1.0, -1.0)
    else:
        found[:, :hiders] = np.where(hider_seen, -1.0, 1.0)
        found[:, hiders:] = np.where(seeker_sees, 1.0, -1.0)
        if config.reward == "joint_mean":
            for team in (slice(0, hiders), slice(hiders, agents)):
                there = present[:, team]
                mean = (found[:, team] * there).sum(1) / there.sum(1)
                found[:, team] = mean[:, None]
    low, high = config.bounds
    outside = ((centres < low) | (centres > high)).any(2) & present
    punished = outside[:, :agents]
    if config.objects_in_bounds:
        punished = punished | outside[:, agents:].any(1, keepdims=True)
    found[punished] = -config.bounds_penalty
    found[~present[:, :agents]] = 0.0
    return found
