"""Batches of windows as a replay draws them, made by hand."""

from __future__ import annotations

from typing import Any

import numpy as np

from srl.data.records import SampleBatch, Trajectory
from srl.data.spec import AgentSpec, ArraySpec, Box

NUM_OBS, NUM_ACTIONS = 3, 2
AGENT = AgentSpec(
    obs=ArraySpec(shape=(NUM_OBS,)),
    action=Box(shape=(NUM_ACTIONS,), low=(-2.0, 0.0), high=(2.0, 1.0)),
)
"""Bounds that are not -1 and 1, so that a missing conversion shows."""


def windows(
    rows: int, *, ticks: int = 2, fragments: int = 1, seed: int = 0, **given: Any
) -> SampleBatch:
    """Windows of [ticks, rows] inside of episodes; `given` replaces fields of the trajectory."""
    random = np.random.default_rng(seed)
    no = np.zeros((ticks, rows), bool)
    low, high = np.array(AGENT.action.low), np.array(AGENT.action.high)
    fields: dict[str, Any] = {
        "obs": random.standard_normal((ticks, rows, NUM_OBS)).astype(np.float32),
        "is_first": no.copy(),
        "terminated": no.copy(),
        "truncated": no.copy(),
        "alive": ~no,
        "acted": ~no,
        "action": random.uniform(low, high, (ticks, rows, NUM_ACTIONS)).astype(np.float32),
        "reward": random.standard_normal((ticks, rows)).astype(np.float32),
        "policy_version": np.zeros((ticks, rows), np.int64),
        "extras": {},
        "policy_state": None,
    }
    data = Trajectory(**{**fields, **given})
    return SampleBatch(data, num_fragments=fragments, bootstrap=ticks - 1)
