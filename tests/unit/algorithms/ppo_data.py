"""Batches that a policy itself collects in toy worlds, without the rest of the system."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from srl.algorithms.config import AlgorithmConfig
from srl.algorithms.learning.policy_gradient import PolicyGradient
from srl.data.records import SampleBatch
from srl.data.spec import AgentSpec, ArraySpec, Discrete
from srl.data.trajectory import TrajectorySpec, from_tree, to_tree
from srl.data.tree import leaves, tree_map
from srl.policies.actor_critic import ActorCritic
from srl.policies.protocol import Policy

AGENT = AgentSpec(obs=ArraySpec(shape=(3,)), action=Discrete(4), has_action_mask=True)


def trajectory_spec(
    policy: Policy, config: AlgorithmConfig, rows: int, turn_based: bool = False
) -> TrajectorySpec:
    wanted = config.sampling()
    return TrajectorySpec(
        length=wanted.length,
        rows=rows,
        envs=rows,
        agent=policy.agent,
        extras=policy.extras_spec,
        policy_state=policy.state_spec,
        burn_in=wanted.burn_in,
        state_every=wanted.state_every,
        turn_based=turn_based,
    )


class ToyWorld:
    """Episodes of `episode_length` actions: `observe(t, secret)` is seen, `pay(t, secret, action)`
    is earned."""

    def __init__(
        self,
        policy: ActorCritic,
        config: AlgorithmConfig,
        rows: int,
        episode_length: int,
        observe: Callable[[int, np.ndarray], Any],
        pay: Callable[[int, np.ndarray, np.ndarray], np.ndarray],
        num_secrets: int = 2,
        seed: int = 0,
    ) -> None:
        self.policy, self.spec = policy, trajectory_spec(policy, config, rows)
        self.rows, self.episode_length = rows, episode_length
        self.observe, self.pay, self.num_secrets = observe, pay, num_secrets
        self.rng = np.random.default_rng(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.state = tree_map(lambda leaf: torch.zeros(rows, *leaf.shape), policy.state_spec)

    def batch(self) -> tuple[SampleBatch, float]:
        """One batch of whole ticks, and the mean reward per action. Every batch starts with a new
        episode."""
        data = self.spec.allocate()
        length, paid = self.episode_length, []
        secret = np.zeros(self.rows, np.int64)
        for tick in range(self.spec.capacity):
            t = tick % (length + 1)
            if t == 0:
                secret = self.rng.integers(0, self.num_secrets, self.rows)
            put(data.obs, tick, self.observe(t, secret))
            data.is_first[tick] = t == 0
            data.terminated[tick] = t == length
            data.alive[tick] = True
            data.acted[tick] = t < length
            every = self.spec.state_every
            if self.state is not None and tick % every == 0:
                put(data.policy_state, tick // every, self.state)
            if t == length:
                continue
            obs = at(data.obs, tick)
            first = torch.from_numpy(data.is_first[tick])
            with torch.inference_mode():
                act = self.policy.act(
                    obs, self.state, first, torch.ones(self.rows), None, self.generator
                )
            self.state = act.policy_state
            data.action[tick] = act.action.numpy()
            put(data.extras, tick, act.extras)
            data.reward[tick] = self.pay(t, secret, data.action[tick])
            paid.append(data.reward[tick].mean())
        wanted = SampleBatch(
            data=data,
            burn_in=self.spec.burn_in,
            state_every=self.spec.state_every,
        )
        return wanted, float(np.mean(paid))


def random_batch(
    algorithm: PolicyGradient, seed: int = 0, rows: int = 6, inert: bool = True, num_items: int = 1
) -> SampleBatch:
    """Ticks of all kinds in random order, under the episode rules, of two policy versions."""
    policy, rng = algorithm.policy, np.random.default_rng(seed)
    assert isinstance(policy, ActorCritic)
    spec = trajectory_spec(policy, algorithm.config, rows)
    data = spec.allocate()
    for array in leaves(to_tree(data)):
        if array.dtype.kind == "f":
            array[...] = rng.normal(size=array.shape)
    data.action[...] = rng.integers(0, 4, data.action.shape)
    data.extras["log_prob"][...] = -1.4 + 0.1 * rng.normal(size=data.acted.shape)
    assert data.action_mask is not None
    data.action_mask[...] = True
    odds = [0.7, 0.1, 0.1, 0.1] if inert else [0.8, 0.1, 0.1, 0.0]
    kind = rng.choice(4, data.acted.shape, p=odds)
    data.acted[...] = kind == 0
    data.terminated[...] = kind == 1
    data.truncated[...] = kind == 2
    data.alive[...] = kind != 3
    data.is_first[1:] = (data.terminated | data.truncated)[:-1]
    data.acted[-1] = True
    data.terminated[-1] = data.truncated[-1] = False
    data.policy_version[...] = np.where(data.acted, rng.integers(0, 2, data.acted.shape), -1)
    return SampleBatch(
        data=data,
        num_fragments=num_items,
        burn_in=spec.burn_in,
        state_every=spec.state_every,
        learner_version=1,
    )


def split_batch(batch: SampleBatch, rank: int, count: int) -> SampleBatch:
    """The fragments of a batch that one of several trainers gets."""
    num_items = batch.num_fragments

    def own(array: np.ndarray) -> np.ndarray:
        items = array.reshape(array.shape[0], num_items, -1, *array.shape[2:])
        return np.ascontiguousarray(items[:, rank::count]).reshape(
            array.shape[0], -1, *array.shape[2:]
        )

    return SampleBatch(
        data=from_tree(tree_map(own, to_tree(batch.data))),
        num_fragments=len(range(rank, num_items, count)),
        burn_in=batch.burn_in,
        state_every=batch.state_every,
        learner_version=batch.learner_version,
    )


def learn(algorithm: PolicyGradient, batch: SampleBatch, progress: float = 0.0) -> dict[str, float]:
    """One whole update."""
    *steps, result = algorithm.update(batch, progress)
    assert all(step is None for step in steps)
    assert result is not None
    return result.metrics


def put(target: Any, index: Any, value: Any) -> None:
    """Writes a tree of arrays into a tree at an index of its first axis."""

    def write(to: np.ndarray, new: Any) -> None:
        to[index] = new

    tree_map(write, target, value)


def at(tree: Any, index: Any) -> Any:
    """A tree at an index of its first axis, as tensors."""
    return tree_map(lambda leaf: torch.from_numpy(leaf[index]), tree)
