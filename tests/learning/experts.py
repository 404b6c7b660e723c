"""An expert that is a rule, and datasets of what it does."""

from __future__ import annotations

from pathlib import Path

import gymnasium
import numpy as np

from srl.datasets.episode import Episode
from srl.datasets.writer import DatasetWriter

RULE = np.array([0.1, 0.3, 1.0, 1.0])
"""CartPole: the sign of this weighted sum of the observation says where to push. It never falls."""


def record_rule(folder: Path, episodes: int, steps: int = 500) -> Path:
    """Writes episodes of CartPole in which the rule acts, each cut after some steps."""
    env = gymnasium.make("CartPole-v1")
    with DatasetWriter(
        folder, observation_space=env.observation_space, action_space=env.action_space
    ) as writer:
        for seed in range(episodes):
            seen, actions = [env.reset(seed=seed)[0]], []
            for _ in range(steps):
                actions.append(int(seen[-1] @ RULE > 0))
                obs, _, terminated, truncated, _ = env.step(actions[-1])
                seen.append(obs)
                assert not terminated
                if truncated:
                    break
            ends = np.arange(len(actions)) == len(actions) - 1
            writer.add(
                Episode(
                    observations=np.stack(seen),
                    actions=np.array(actions),
                    rewards=np.ones(len(actions)),
                    terminations=np.zeros(len(actions), bool),
                    truncations=ends,
                    seed=seed,
                )
            )
        return writer.finish()
