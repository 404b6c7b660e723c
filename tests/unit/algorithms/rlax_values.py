"""Writes rlax_values.json: what rlax makes of n-step returns, rescaling and quantiles.

Runs in an environment of its own, because rlax brings JAX and TensorFlow Probability:

    pip install rlax==0.1.9 jax==0.10.2 && python tests/unit/algorithms/rlax_values.py
"""

from __future__ import annotations

import json
from pathlib import Path

import jax
import numpy as np
import rlax

jax.config.update("jax_enable_x64", True)

GAMMA, TICKS, ROWS = 0.9, 9, 3


def n_steps(n: int, seed: int) -> dict[str, object]:
    """Targets of one set of rows; `ends` marks actions that end an episode."""
    random = np.random.default_rng(seed)
    value = random.normal(size=(TICKS + 1, ROWS))
    reward = random.normal(size=(TICKS, ROWS))
    ends = random.random((TICKS, ROWS)) < 0.2
    targets = [
        rlax.n_step_bootstrapped_returns(
            reward[:, row], GAMMA * ~ends[:, row], value[1:, row], n
        ).tolist()
        for row in range(ROWS)
    ]
    inputs = {"value": value.tolist(), "reward": reward.tolist(), "ends": ends.tolist()}
    return {"n": n, "gamma": GAMMA, "targets": targets, **inputs}


def rescaling() -> dict[str, object]:
    """h and its inverse at numbers of all sizes."""
    x = np.concatenate([np.linspace(-3, 3, 13), [-1e4, -200.0, 200.0, 1e4]])
    return {
        "x": x.tolist(),
        "rescaled": rlax.signed_hyperbolic(x, 1e-3).tolist(),
        "unscaled": rlax.signed_parabolic(x, 1e-3).tolist(),
    }


def quantiles(seed: int, kappa: float) -> dict[str, object]:
    """The loss of predicted quantiles for others."""
    random = np.random.default_rng(seed)
    predicted, target = random.normal(size=(4, 5)), 2 * random.normal(size=(4, 7))
    middles = (np.arange(5) + 0.5) / 5
    losses = [
        float(rlax.quantile_regression_loss(p, middles, t, kappa))
        for p, t in zip(predicted, target, strict=True)
    ]
    arrays = {"predicted": predicted.tolist(), "target": target.tolist()}
    return {"kappa": kappa, "losses": losses, **arrays}


if __name__ == "__main__":
    found = {
        "n_steps": [n_steps(1, 0), n_steps(3, 1), n_steps(5, 2)],
        "rescaling": rescaling(),
        "quantiles": [quantiles(0, 1.0), quantiles(1, 0.5)],
    }
    Path(__file__).with_suffix(".json").write_text(json.dumps(found) + "\n")
