"""PPO learns toy tasks within seconds: the whole learner, and nothing else of the system."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from ppo_data import ToyWorld, learn

from srl.algorithms.ppo.config import PPOConfig
from srl.algorithms.ppo.learner import PPO
from srl.data.spec import AgentSpec, ArraySpec, Box, Discrete, MultiBinary, MultiDiscrete
from srl.policies.actor_critic import ActorCritic, ActorCriticConfig

torch.set_num_threads(1)

VECTOR = ArraySpec(shape=(2,))


def one_hot(t: int, secret: np.ndarray) -> np.ndarray:
    return np.eye(2, dtype=np.float32)[secret]


def train(
    agent: AgentSpec, network: dict[str, Any], world: dict[str, Any], updates: int, **settings: Any
) -> list[float]:
    torch.manual_seed(0)
    policy = ActorCritic(agent, ActorCriticConfig(**network))
    config = PPOConfig(
        **{"rollout_length": 16, "learning_rate": 3e-3, "entropy_coefficient": 0.0, **settings}
    )
    toy = ToyWorld(policy, config, rows=32, **world)
    algorithm = PPO(policy, config, seed=1)
    rewards = []
    for _ in range(updates):
        batch, reward = toy.batch()
        learn(algorithm, batch)
        rewards.append(reward)
    return rewards


def matches(t: int, secret: np.ndarray, action: np.ndarray) -> np.ndarray:
    return (action == secret).astype(np.float32)


@pytest.mark.parametrize(
    "network", [{}, {"normalize_obs": True, "normalize_returns": True}], ids=["plain", "normalised"]
)
def test_contextual_bandit(network: dict[str, Any]) -> None:
    world = {"episode_length": 3, "observe": one_hot, "pay": matches}
    rewards = train(AgentSpec(obs=VECTOR, action=Discrete(2)), network, world, 15)
    assert rewards[-1] > 0.9
