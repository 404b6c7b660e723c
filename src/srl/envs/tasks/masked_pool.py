"""CartPole without velocities by EnvPool: the environment of the benchmark workload W4.

SRL and every compared system that can step a pool use it.
"""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from srl.extras import import_extra

POSITIONS = [0, 2]
"""Indices of the observation that are kept: position and angle."""


class MaskedPool(gymnasium.vector.VectorEnv[np.ndarray, np.ndarray, np.ndarray]):  # type: ignore[misc]
    """EnvPool's CartPole-v1 on one thread; each reset makes a new pool with the reset's seed."""

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012
    has_action_mask = False

    def __init__(self, *, num_envs: int) -> None:
        envpool = self._envpool = import_extra("envpool", "CartPole without velocities")
        self.num_envs = num_envs
        spec = envpool.make_spec("CartPole-v1")
        with warnings.catch_warnings():
            # EnvPool's float64 bounds make Gymnasium warn about precision.
            warnings.simplefilter("ignore", UserWarning)
            seen = spec.gymnasium_observation_space
        low, high = (bound[POSITIONS].astype(np.float32) for bound in (seen.low, seen.high))
        self.single_observation_space = spaces.Box(low, high, dtype=np.float32)
        self.single_action_space = spec.gymnasium_action_space
        self._pool: Any = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Starts an episode in every environment."""
        self.close()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            self._pool = self._envpool.make(
                "CartPole-v1",
                env_type="gymnasium",
                num_envs=self.num_envs,
                num_threads=1,
                seed=(seed or 0) % 2**31,
            )
        return self._pool.reset()[0][:, POSITIONS], {}

    def step(
        self, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Steps all environments; after the end of an episode the next one begins."""
        obs, reward, done, truncated, _ = self._pool.step(actions.astype(np.int32))
        return obs[:, POSITIONS], reward, done, truncated, {}

    def close(self, **_: Any) -> None:
        """Closes the pool."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()
