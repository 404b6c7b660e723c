"""The environments of the workloads, through Gymnasium and through EnvPool.

HalfCheetah is v5, which EnvPool and Gymnasium 1.x both have; Gymnasium 0.29 (Sample Factory,
PufferLib) ends at v4, so those peers take it from EnvPool.
"""

from __future__ import annotations

import numpy as np

ENVPOOL = {"cartpole": "CartPole-v1", "cheetah": "HalfCheetah-v5", "pong": "Pong-v5"}
ENVPOOL["cartpole_masked"] = "CartPole-v1"
POSITIONS = [0, 2]
"""What is left of CartPole's observation without velocities."""


def make_gym(env: str):
    """One environment, as Gymnasium gives it."""
    import gymnasium

    if env == "cheetah":
        return gymnasium.make("HalfCheetah-v5")
    if env == "pong":
        return make_pong()
    made = gymnasium.make("CartPole-v1")
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


def pool_actions(env: str, actions: np.ndarray) -> np.ndarray:
    """Actions in the type and the bounds that a pool takes."""
    if env == "cheetah":
        return np.clip(actions, -1.0, 1.0).astype(np.float64)
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
    if env == "cheetah":
        return seen, spaces.Box(-1.0, 1.0, taken.shape, np.float32)
    return seen, spaces.Discrete(int(taken.n))
