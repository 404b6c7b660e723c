"""Environments as the CleanRL-style scripts step them: one call for all of them."""

from __future__ import annotations

import numpy as np
from environments import make_envpool, make_gym, pool_actions, pool_observations


class Vector:
    """`reset()` gives observations; `step(actions)` observations, rewards and ends."""

    def __init__(self, env: str, num_envs: int, seed: int, vec: str, env_threads: int) -> None:
        self._env, self._seed, self._pool = env, seed, vec == "envpool"
        if self._pool:
            self._envs = make_envpool(env, num_envs, seed, env_threads)
            self.action_space = self._envs.action_space
        else:
            import gymnasium

            makers = [lambda: make_gym(env)] * num_envs
            if vec == "sync":
                self._envs = gymnasium.vector.SyncVectorEnv(makers)
            else:
                self._envs = gymnasium.vector.AsyncVectorEnv(makers)
            self.action_space = self._envs.single_action_space

    def reset(self) -> np.ndarray:
        if self._pool:
            return pool_observations(self._env, self._envs.reset()[0])
        return self._envs.reset(seed=self._seed)[0]

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        if self._pool:
            actions = pool_actions(self._envs, actions)
        elif self.action_space.shape:
            actions = np.clip(actions, self.action_space.low, self.action_space.high)
        obs, rewards, terminated, truncated, _ = self._envs.step(actions)
        if self._pool:
            obs = pool_observations(self._env, obs)
        return obs, rewards, np.logical_or(terminated, truncated)


class Normalized:
    """A vector whose observations and returns are in units of their running deviation."""

    def __init__(self, vector: Vector, num_envs: int, gamma: float) -> None:
        self._vector, self._gamma = vector, gamma
        self._returns = np.zeros(num_envs)
        self._obs_moments, self._return_moments = Moments(), Moments()
        self.action_space = vector.action_space
        self.raw_rewards = np.zeros(num_envs)

    def reset(self) -> np.ndarray:
        return self._see(self._vector.reset())

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        obs, rewards, ends = self._vector.step(actions)
        self.raw_rewards = rewards
        self._returns = self._returns * self._gamma + rewards
        self._return_moments.add(self._returns[:, None])
        self._returns[ends] = 0.0
        scaled = np.clip(rewards / self._return_moments.deviation()[0], -10, 10)
        return self._see(obs), scaled, ends

    def _see(self, obs: np.ndarray) -> np.ndarray:
        self._obs_moments.add(obs)
        moments = self._obs_moments
        return np.clip((obs - moments.mean) / moments.deviation(), -10, 10).astype(np.float32)


class Moments:
    """Running mean and variance of rows (Chan et al. 1979)."""

    def __init__(self) -> None:
        self.count, self.mean, self.variance = 1e-4, 0.0, 1.0

    def add(self, rows: np.ndarray) -> None:
        mean, variance, count = rows.mean(0), rows.var(0), len(rows)
        delta, total = mean - self.mean, self.count + count
        self.mean = self.mean + delta * count / total
        square = self.variance * self.count + variance * count
        self.variance = (square + delta**2 * self.count * count / total) / total
        self.count = total

    def deviation(self) -> np.ndarray:
        return np.sqrt(self.variance + 1e-8)
