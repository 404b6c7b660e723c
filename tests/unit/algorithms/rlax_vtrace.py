"""Writes rlax_vtrace.json: what rlax's V-trace makes of random rows, episode ends inside.

Runs in an environment of its own, because rlax brings JAX and TensorFlow Probability:

    pip install rlax==0.1.9 jax==0.10.2 && python tests/unit/algorithms/rlax_vtrace.py
"""

from __future__ import annotations

import json
from pathlib import Path

import jax
import numpy as np
import rlax

jax.config.update("jax_enable_x64", True)

GAMMA, TICKS, ROWS = 0.9, 8, 3


def case(lam: float, clip: float, seed: int) -> dict[str, object]:
    """One set of rows; `value` has one more tick, `ends` marks actions that end an episode."""
    random = np.random.default_rng(seed)
    value = random.normal(size=(TICKS + 1, ROWS))
    reward = random.normal(size=(TICKS, ROWS))
    log_ratio = random.normal(scale=0.7, size=(TICKS, ROWS))
    ends = random.random((TICKS, ROWS)) < 0.25
    found = [
        rlax.vtrace_td_error_and_advantage(
            value[:-1, row],
            value[1:, row],
            reward[:, row],
            GAMMA * ~ends[:, row],
            np.exp(log_ratio[:, row]),
            lambda_=lam,
            clip_rho_threshold=clip,
            clip_pg_rho_threshold=clip,
        )
        for row in range(ROWS)
    ]
    error = np.stack([one.errors for one in found], 1)
    advantage = np.stack([one.pg_advantage for one in found], 1)
    inputs = {"value": value, "reward": reward, "log_ratio": log_ratio, "ends": ends}
    outputs = {"target": error + value[:-1], "weighted_advantage": advantage}
    arrays = {name: array.tolist() for name, array in {**inputs, **outputs}.items()}
    return {"lam": lam, "clip": clip, "gamma": GAMMA, **arrays}


if __name__ == "__main__":
    cases = [case(1.0, 1.0, 0), case(0.95, 1.0, 1), case(0.5, 1.3, 2), case(0.0, 1.0, 3)]
    Path(__file__).with_suffix(".json").write_text(json.dumps(cases) + "\n")
