"""PPO learns toy tasks within seconds: the whole learner, and nothing else of the system."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from ppo_data import ToyWorld, learn

from srl.algorithms.appo.learner import APPO
from srl.algorithms.ppo.learner import PPO
from srl.data.spec import AgentSpec, ArraySpec, Box, Discrete, MultiBinary, MultiDiscrete
from srl.policies.actor_critic import ActorCritic, ActorCriticConfig

torch.set_num_threads(1)

VECTOR = ArraySpec(shape=(2,))


def train(
    agent: AgentSpec,
    network: dict[str, Any],
    world: dict[str, Any],
    updates: int,
    kind: type[PPO] = PPO,
    **settings: Any,
) -> list[float]:
    """Mean reward per action of every batch, in the order of training."""
    torch.manual_seed(0)
    policy = ActorCritic(agent, ActorCriticConfig(**network))
    config = kind.Config(
        **{"rollout_length": 16, "learning_rate": 3e-3, "entropy_coefficient": 0.0, **settings}
    )
    toy = ToyWorld(policy, config, rows=32, **world)
    algorithm = kind(policy, config, seed=1)
    rewards = []
    for _ in range(updates):
        batch, reward = toy.batch()
        learn(algorithm, batch)
        rewards.append(reward)
    return rewards


def one_hot(t: int, secret: np.ndarray) -> np.ndarray:
    return np.eye(2, dtype=np.float32)[secret]


def matches(t: int, secret: np.ndarray, action: np.ndarray) -> np.ndarray:
    return (action == secret).astype(np.float32)


BANDIT = {"episode_length": 3, "observe": one_hot, "pay": matches}


@pytest.mark.parametrize(
    "network",
    [{"normalize_returns": False}, {"normalize_obs": True}, {"kernels": "reference"}],
    ids=["plain", "normalised", "reference"],
)
@pytest.mark.parametrize("kind", [PPO, APPO])
def test_contextual_bandit(network: dict[str, Any], kind: type[PPO]) -> None:
    agent = AgentSpec(obs=VECTOR, action=Discrete(2))
    assert train(agent, network, BANDIT, 15, kind, epochs=4)[-1] > 0.9


@pytest.mark.parametrize("kind", ["lstm", "gru"])
@pytest.mark.parametrize(
    "settings", [{"chunk_length": 16}, {"chunk_length": 4, "burn_in": 4}], ids=str
)
def test_memory(kind: str, settings: dict[str, int]) -> None:
    """The secret is shown once; the right action is wanted two ticks later."""

    def observe(t: int, secret: np.ndarray) -> np.ndarray:
        return one_hot(t, secret) * (t == 0)

    def pay(t: int, secret: np.ndarray, action: np.ndarray) -> np.ndarray:
        return matches(t, secret, action) * 3 * (t == 2)

    agent = AgentSpec(obs=VECTOR, action=Discrete(2))
    network = {"recurrent": kind, "recurrent_size": 16, "hidden_sizes": (16,)}
    world = {"episode_length": 3, "observe": observe, "pay": pay}
    rewards = train(agent, network, world, 40, learning_rate=1e-2, **settings)
    assert max(rewards[-5:]) > 0.9


def test_without_memory_the_secret_is_lost() -> None:
    def observe(t: int, secret: np.ndarray) -> np.ndarray:
        return one_hot(t, secret) * (t == 0)

    def pay(t: int, secret: np.ndarray, action: np.ndarray) -> np.ndarray:
        return matches(t, secret, action) * 3 * (t == 2)

    world = {"episode_length": 3, "observe": observe, "pay": pay}
    rewards = train(AgentSpec(obs=VECTOR, action=Discrete(2)), {}, world, 20)
    assert max(rewards[-5:]) < 0.75


def test_real_valued_actions() -> None:
    """The right action is -0.5 or 0.5; the reward falls with the distance."""

    def pay(t: int, secret: np.ndarray, action: np.ndarray) -> np.ndarray:
        distance = action[:, 0] - (secret - 0.5)
        return np.maximum(1 - distance**2, -1).astype(np.float32)

    agent = AgentSpec(obs=VECTOR, action=Box(shape=(1,), low=(-1.0,), high=(1.0,)))
    world = {"episode_length": 3, "observe": one_hot, "pay": pay}
    assert train(agent, {}, world, 40, learning_rate=1e-2)[-1] > 0.9


def test_several_choices() -> None:
    """Both parts must be right."""

    def pay(t: int, secret: np.ndarray, action: np.ndarray) -> np.ndarray:
        return ((action[:, 0] == secret) & (action[:, 1] == 2 - secret)).astype(np.float32)

    world = {"episode_length": 3, "observe": one_hot, "pay": pay}
    agent = AgentSpec(obs=VECTOR, action=MultiDiscrete((2, 3)))
    assert train(agent, {}, world, 30, learning_rate=1e-2)[-1] > 0.9


def test_switches() -> None:
    def pay(t: int, secret: np.ndarray, action: np.ndarray) -> np.ndarray:
        return ((action[:, 0] == secret) & (action[:, 1] == 1)).astype(np.float32)

    world = {"episode_length": 3, "observe": one_hot, "pay": pay}
    agent = AgentSpec(obs=VECTOR, action=MultiBinary(2))
    assert train(agent, {}, world, 30)[-1] > 0.9
