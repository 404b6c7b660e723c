"""Batches of windows written by hand, and Q-networks that are tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from srl.algorithms.dqn.config import DQNConfig
from srl.algorithms.dqn.learner import DQN
from srl.data.records import SampleBatch
from srl.data.spec import AgentSpec, ArraySpec, Discrete
from srl.data.trajectory import TrajectorySpec
from srl.data.tree import leaves
from srl.policies.q_network import QNetwork
from srl.policies.q_network_config import QNetworkConfig

STATES, ACTIONS = 4, 3
KEYED = {"key": ArraySpec(dtype="int64"), "weight": ArraySpec()}
Table = list[list[float]]
"""Values of actions, state by state."""


def agent(mask: bool = False) -> AgentSpec:
    spec = ArraySpec(shape=(STATES,))
    return AgentSpec(obs=spec, action=Discrete(ACTIONS), has_action_mask=mask)


def make(network: dict[str, Any] | None = None, mask: bool = False, **settings: Any) -> DQN:
    """A learner with random weights."""
    torch.manual_seed(0)
    given = {"hidden_sizes": (16,), "recurrent_size": 8, **(network or {})}
    policy = QNetwork(agent(mask), QNetworkConfig(**given))
    settings = {"gradient_steps": 1, "max_grad_norm": None, **settings}
    return DQN(policy, DQNConfig(**settings))


def make_table(online: Table, target: Table, mask: bool = False, **settings: Any) -> DQN:
    """A learner whose networks are tables, because observations are one-hot."""
    quantiles = {"num_quantiles": settings.pop("num_quantiles", 0)}
    learner = make({"hidden_sizes": (), **quantiles}, mask, **settings)
    for module, table in ((learner.policy, online), (learner.target.module, target)):
        assert isinstance(module, QNetwork)
        weight, bias = module.head.last_layer or (None, None)
        assert weight is not None
        assert bias is not None
        with torch.no_grad():
            weight.copy_(torch.tensor(table).flatten(1).t())
            bias.zero_()
    # As after the first gradient step: nothing is copied before the next one.
    learner.target.num_steps = 1
    return learner


def spec_of(learner: DQN, rows: int, row: Any = None) -> TrajectorySpec:
    shape = learner.config.windows()
    return TrajectorySpec(
        length=shape.length,
        rows=rows,
        envs=rows,
        agent=learner.policy.agent,
        policy_state=learner.policy.state_spec,
        row=row,
        burn_in=shape.burn_in,
        bootstrap=shape.bootstrap,
        state_every=shape.state_every,
    )


def batch_of(learner: DQN, states: list[list[int]], row: Any = None, **arrays: Any) -> SampleBatch:
    """A batch of windows that see `states`, window by window; every tick has an action, and other
    `arrays` are given window by window, too."""
    spec = spec_of(learner, len(states), row)
    data = spec.allocate()
    data.obs[...] = np.eye(STATES, dtype=np.float32)[np.array(states).T]
    data.acted[...] = True
    data.alive[...] = True
    for name, value in arrays.items():
        getattr(data, name)[...] = np.swapaxes(np.array(value), 0, 1)
    return SampleBatch(
        data=data,
        num_fragments=1,
        burn_in=spec.burn_in,
        bootstrap=spec.bootstrap,
        state_every=spec.state_every,
    )


def random_batch(learner: DQN, rows: int, seed: int, row: Any = None) -> SampleBatch:
    """A batch of random ticks: episodes end in both ways, and some ticks have no action."""
    rng = np.random.default_rng(seed)
    spec = spec_of(learner, rows, row)
    ticks = spec.capacity
    data = spec.allocate()
    data.obs[...] = rng.normal(size=data.obs.shape)
    ends = rng.random((ticks, rows)) < 0.2
    ends[1:] &= ~ends[:-1]
    data.terminated[...] = ends & (rng.random((ticks, rows)) < 0.5)
    data.truncated[...] = ends & ~data.terminated
    data.is_first[1:] = ends[:-1]
    data.alive[...] = True
    data.acted[...] = ~ends & (rng.random((ticks, rows)) < 0.9)
    data.action[...] = rng.integers(ACTIONS, size=(ticks, rows))
    data.reward[...] = np.where(data.acted, rng.normal(size=(ticks, rows)), 0.0)
    for leaf in leaves(data.policy_state):
        leaf[...] = rng.normal(size=leaf.shape)
    if data.action_mask is not None:
        data.action_mask[...] = rng.random(data.action_mask.shape) < 0.7
        np.put_along_axis(data.action_mask, data.action[..., None], True, -1)
    if row:
        data.row["key"][...] = np.arange(rows)
        data.row["weight"][...] = 1.0
    return SampleBatch(
        data=data,
        num_fragments=1,
        burn_in=spec.burn_in,
        bootstrap=spec.bootstrap,
        state_every=spec.state_every,
    )


def learn(learner: DQN, batch: SampleBatch, progress: float = 0.0) -> Any:
    """The result of one learner step."""
    *steps, result = learner.update(batch, progress)
    assert steps == [None] * learner.config.gradient_steps
    assert result is not None
    return result
