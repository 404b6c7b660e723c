"""The environments of the workloads, through Gymnasium and through EnvPool.

HalfCheetah is v5, which EnvPool and Gymnasium 1.x both have; Gymnasium 0.29 (Sample Factory,
PufferLib) ends at v4, so those peers take it from EnvPool.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from workloads import ENVPOOL

POSITIONS = [0, 2]
"""What is left of CartPole's observation without velocities."""


def make_gym(env: str):
    """One environment, as Gymnasium gives it."""
    import gymnasium

    if env == "pong":
        return make_pong()
    # EnvPool has Gymnasium's own names.
    made = gymnasium.make(ENVPOOL[env])
    return without_velocities(made) if env == "cartpole_masked" else made


def make_pong():
    """Pong, 84x84 grey, four frames skipped and four stacked."""
    import ale_py
    import gymnasium

    gymnasium.register_envs(ale_py)
    raw = gymnasium.make("ALE/Pong-v5", frameskip=1, repeat_action_probability=0.0)
    seen = gymnasium.wrappers.AtariPreprocessing(raw, noop_max=30, frame_skip=4)
    return gymnasium.wrappers.FrameStackObservation(seen, 4)


def without_velocities(env):
    """CartPole that shows only position and angle."""
    import gymnasium

    class Masked(gymnasium.ObservationWrapper):
        def __init__(self, env) -> None:
            super().__init__(env)
            space = env.observation_space
            low, high = space.low[POSITIONS], space.high[POSITIONS]
            self.observation_space = gymnasium.spaces.Box(low, high, dtype=np.float32)

        def observation(self, observation):
            return observation[POSITIONS]

    return Masked(env)


def make_envpool(env: str, num_envs: int, seed: int, num_threads: int):
    """All environments as one pool; CartPole's velocities are left to the caller."""
    import envpool

    return envpool.make(
        ENVPOOL[env],
        env_type="gymnasium",
        num_envs=num_envs,
        num_threads=num_threads,
        seed=seed,
    )


def pool_actions(pool, actions: np.ndarray) -> np.ndarray:
    """Actions in the type and the bounds that a pool takes."""
    space = pool.action_space
    if space.shape:
        return np.clip(actions, space.low, space.high).astype(space.dtype)
    return actions.astype(np.int32)


def pool_observations(env: str, observations: np.ndarray) -> np.ndarray:
    """Observations as the policy sees them."""
    if env == "cartpole_masked":
        return observations[:, POSITIONS]
    return observations if env == "pong" else observations.astype(np.float32, copy=False)


def pool_spaces(env: str, pool):
    """Spaces of one environment of a pool, as the policy sees it: observation and action."""
    from gymnasium import spaces

    first = pool_observations(env, pool.reset()[0])
    low, high = (0, 255) if first.dtype == np.uint8 else (-np.inf, np.inf)
    seen = spaces.Box(low, high, first.shape[1:], first.dtype)
    taken = pool.action_space
    if taken.shape:
        return seen, spaces.Box(taken.low, taken.high, dtype=np.float32)
    return seen, spaces.Discrete(int(taken.n))
