"""Batches of teams written by hand, and the two-step game without the rest of the system."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from srl.algorithms.config import AlgorithmConfig
from srl.algorithms.dqn.config import DQNConfig
from srl.data.records import SampleBatch
from srl.data.spec import AgentSpec, ArraySpec, Discrete, TeamSpec
from srl.data.trajectory import TrajectorySpec
from srl.data.tree import leaves
from srl.envs.tasks.two_step_game import PAYOFF
from srl.policies.protocol import Policy
from srl.policies.q_network import QNetwork
from srl.policies.q_network_config import QNetworkConfig

STATES, ACTIONS, AGENTS = 4, 3, 2
STATE = ArraySpec(shape=(2,))
TEAM = TeamSpec(num_agents=AGENTS, env_state=STATE)
AGENT = AgentSpec(obs=ArraySpec(shape=(STATES,)), action=Discrete(ACTIONS))


def with_team(policy: Policy, team: TeamSpec = TEAM) -> Any:
    """A policy that knows its team, as the system makes it."""
    policy.team = team
    return policy


def spec_of(policy: Policy, config: AlgorithmConfig, envs: int, row: Any = None) -> TrajectorySpec:
    """Fragments as a learner gets them: windows from a replay, or what actors write."""
    shape = config.windows() if isinstance(config, DQNConfig) else config.sampling()
    return TrajectorySpec(
        length=shape.length,
        rows=envs * policy.team.num_agents,
        envs=envs,
        agent=policy.agent,
        extras=policy.extras_spec,
        policy_state=policy.state_spec,
        env_state=policy.team.env_state,
        row=row,
        burn_in=shape.burn_in,
        bootstrap=shape.bootstrap,
        state_every=shape.state_every,
    )


def sample_batch(spec: TrajectorySpec, data: Any, num_fragments: int = 1) -> SampleBatch:
    """The batch with this data."""
    return SampleBatch(
        data=data,
        num_fragments=num_fragments,
        num_agents=spec.num_agents,
        burn_in=spec.burn_in,
        bootstrap=spec.bootstrap,
        state_every=spec.state_every,
        learner_version=1,
    )


def batch_of(learner: Any, states: list[list[list[int]]], row: Any = None, **arrays: Any) -> Any:
    """A batch of windows that see `states` [envs][agents][ticks]; every tick has an action, and
    other `arrays` are given in this order, too (`env_state` without the agents)."""
    spec = spec_of(learner.policy, learner.config, len(states), row)
    data = spec.allocate()
    data.obs[...] = np.eye(STATES, dtype=np.float32)[rows_of(states)]
    data.acted[...] = data.alive[...] = True
    for name, value in arrays.items():
        new = np.swapaxes(np.array(value), 0, 1) if name == "env_state" else rows_of(value)
        getattr(data, name)[...] = new
    return sample_batch(spec, data)


def rows_of(value: Any) -> np.ndarray:
    """[envs][agents][ticks] as [ticks, envs * agents]."""
    array = np.array(value)
    return np.moveaxis(array, 2, 0).reshape(array.shape[2], -1)


def random_batch(
    policy: Policy, config: AlgorithmConfig, envs: int, seed: int, num_fragments: int = 1
) -> SampleBatch:
    """Episodes of teams whose agents are done one after another, in both ways."""
    rng = np.random.default_rng(seed)
    spec = spec_of(policy, config, envs * num_fragments)
    data, agents = spec.allocate(), policy.team.num_agents
    for leaf in leaves([data.obs, data.extras, data.policy_state, data.env_state, data.reward]):
        leaf[...] = rng.normal(size=leaf.shape)
    data.action[...] = rng.integers(ACTIONS, size=data.action.shape)
    data.policy_version[...] = 1
    if "log_prob" in (policy.extras_spec or {}):
        data.extras["log_prob"][...] = -1.1
    for env in range(spec.envs):
        playing = np.zeros(agents, bool)
        for tick in range(spec.capacity):
            row = slice(env * agents, (env + 1) * agents)
            final = data.terminated[tick - 1, row] | data.truncated[tick - 1, row]
            playing &= ~final if tick else playing
            if not playing.any():
                playing[:] = True
                data.is_first[tick, row] = True
            ends = playing & (rng.random(agents) < 0.2) & ~data.is_first[tick, row]
            limit = rng.random(agents) < 0.4
            data.alive[tick, row] = playing
            data.terminated[tick, row], data.truncated[tick, row] = ends & ~limit, ends & limit
            data.acted[tick, row] = playing & ~ends
    data.reward[...] *= data.acted
    return sample_batch(spec, data, num_fragments)


def game_batch(learner: Any, envs: int, rng: np.random.Generator) -> SampleBatch:
    """Transitions of the two-step game under uniform actions, of its two ticks alike."""
    spec = spec_of(learner.policy, learner.config, envs)
    data = spec.allocate()
    first, chosen = rng.integers(2, size=(2, envs, 2))
    second = rng.random(envs) < 0.5
    data.acted[0] = data.alive[...] = True
    situation = np.stack([np.zeros(envs, int), 1 + first[:, 0]])
    situation[:, second] = 1 + first[second, 0]
    data.env_state[...] = np.eye(3)[situation]
    shown = np.repeat(data.env_state, 2, 1)
    names = np.tile(np.eye(2), (2, envs, 1))
    data.obs[...] = np.concatenate([shown, names], -1)
    actions = np.where(second[:, None], chosen, first)
    data.action[0] = actions.reshape(-1)
    paid = PAYOFF[first[:, 0], chosen[:, 0], chosen[:, 1]] * second
    data.reward[0] = paid.repeat(2)
    data.terminated[1] = second.repeat(2)
    data.acted[1] = ~data.terminated[1]
    return sample_batch(spec, data)


def game_policy(**network: Any) -> QNetwork:
    """A policy of the two-step game."""
    torch.manual_seed(network.pop("seed", 0))
    agent = AgentSpec(obs=ArraySpec(shape=(5,)), action=Discrete(2))
    policy = QNetwork(agent, QNetworkConfig(hidden_sizes=(64,), **network))
    return with_team(policy, TeamSpec(num_agents=2, env_state=ArraySpec(shape=(3,))))


def greedy_return(policy: QNetwork) -> float:
    """What both agents are paid where each takes its best action."""
    situation, paid = 0, 0.0
    for _ in range(2):
        shown = [np.concatenate([np.eye(3)[situation], np.eye(2)[agent]]) for agent in (0, 1)]
        obs = torch.tensor(np.array(shown), dtype=torch.float32)
        flags = torch.zeros(2, dtype=torch.bool)
        actions = policy.act(
            obs, None, flags, torch.zeros(2), None, torch.Generator()
        ).action.tolist()
        if situation:
            paid = float(PAYOFF[situation - 1, actions[0], actions[1]])
        situation = 1 + actions[0]
    return paid
