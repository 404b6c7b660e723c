"""Plays whole episodes in one process, with environments and policies but without streams.

The evaluator, `srl eval`, `srl play` and `run.policy.act` all use this module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from srl.data.records import EnvStep, InferenceRequest
from srl.data.spec import AgentSpec, ArraySpec
from srl.data.stacking import push_frame
from srl.data.tree import Tree, leaves, tree_map
from srl.envs.protocol import EnvGroup
from srl.errors import PolicyError
from srl.policies.protocol import Policy
from srl.tracebacks import user_code
from srl.workers.policy import infer


class PolicyRunner:
    """A policy with the memory of its rows: frame stacks and policy state."""

    def __init__(self, policy: Policy, rows: int, *, explore: float, seed: int) -> None:
        self.policy = policy
        self._generator = torch.Generator().manual_seed(seed)
        self._explore = np.full(rows, explore, np.float32)

        def zeros(leaf: ArraySpec) -> np.ndarray:
            return np.zeros((rows, *leaf.seen_shape), leaf.dtype)

        self._agent: AgentSpec = policy.agent
        self._obs: Tree = tree_map(zeros, self._agent.obs)
        self._state: Tree = tree_map(zeros, policy.state_spec)
        self._first = np.zeros(rows, bool)
        self._stacks: list[int] = [leaf.stack for leaf in leaves(self._agent.obs)]

    def explore(self, temperature: float) -> None:
        """Sets how randomly the next actions are chosen: 0 is greedy, 1 is as in training."""
        self._explore.fill(temperature)

    def act(
        self, obs: Tree, is_first: np.ndarray, action_mask: np.ndarray | None, asks: np.ndarray
    ) -> np.ndarray:
        """Actions for [rows, ...] of single frames; only rows in `asks` advance their state."""
        for kept, new, stack in zip(leaves(self._obs), leaves(obs), self._stacks, strict=True):
            if stack > 1:
                push_frame(kept, new, is_first)
            else:
                kept[...] = new
        # A row may not be on turn when its episode begins: its flag waits until it is.
        self._first |= is_first
        request = InferenceRequest(
            self._obs, self._state, self._first.copy(), self._explore, action_mask
        )
        with user_code(f"policy {type(self.policy).__name__}", PolicyError):
            act = infer(self.policy, request, self._generator, torch.device("cpu"))
        for kept, new in zip(leaves(self._state), leaves(act.policy_state), strict=True):
            kept[asks] = new.numpy()[asks]
        self._first &= ~asks
        return act.action.numpy()


@dataclass
class PlayedEpisodes:
    """Episodes that were played, by policy."""

    returns: dict[str, list[float]]
    lengths: dict[str, list[int]]
    agents: dict[str, list[int]]
    """Index of each episode's agent among the policy's agents."""
    metrics: dict[str, list[float]]
    """What the environment reports of each episode, by name; NaN where it does not know."""


class EpisodeObserver(Protocol):
    """Sees all that one policy's agents see and do."""

    def observe(self, step: EnvStep) -> None:
        """Takes what a tick shows. Its arrays are written again in the next tick."""

    def act(self, action: np.ndarray) -> None:
        """Takes the actions that answer the last tick, [rows, ...]."""

    def end(self, row: int, terminated: bool) -> None:
        """Learns that an episode that counts has ended with the last tick."""


class Player:
    """Plays episodes with fixed policies, tick by tick."""

    def __init__(
        self,
        envs: EnvGroup,
        policies: dict[str, Policy],
        *,
        episodes: int,
        seed: int,
        explore: float = 0.0,
        on_tick: Callable[[EnvGroup], None] | None = None,
        observers: Mapping[str, EpisodeObserver] | None = None,
    ) -> None:
        """`observers` are by policy."""
        self._envs = envs
        self._on_tick = on_tick
        self._observers = observers or {}
        self._runners = {
            policy: PolicyRunner(
                policies[policy], envs.num_envs * len(agents), explore=explore, seed=seed + i
            )
            for i, (policy, agents) in enumerate(envs.policy_agents.items())
        }
        # Each environment plays an equal share, so that short episodes are not more frequent.
        share, rest = divmod(episodes, envs.num_envs)
        self._left = np.array([share + (i < rest) for i in range(envs.num_envs)])
        self.result = PlayedEpisodes(
            returns={policy: [] for policy in envs.policy_agents},
            lengths={policy: [] for policy in envs.policy_agents},
            agents={policy: [] for policy in envs.policy_agents},
            metrics={name: [] for name in envs.spec.metrics},
        )
        self._sums = {policy: np.zeros(r._explore.size) for policy, r in self._runners.items()}
        self._counts = {
            policy: np.zeros(r._explore.size, np.int64) for policy, r in self._runners.items()
        }
        self._steps = envs.reset(seed)
        self._count()

    @property
    def done(self) -> bool:
        """Whether all episodes are played."""
        return not self._left.any()

    @property
    def episodes_left(self) -> int:
        """Episodes that have not ended yet."""
        return int(self._left.sum())

    def tick(self) -> None:
        """Steps every environment once."""
        actions = {}
        for policy, step in self._steps.items():
            asks = step.turn | step.truncated
            actions[policy] = self._runners[policy].act(
                step.obs, step.is_first, step.action_mask, asks
            )
            self._counts[policy] += step.turn
        for policy, observer in self._observers.items():
            observer.act(actions[policy])
        self._steps = self._envs.step(actions)
        self._count()

    def _count(self) -> None:
        if self._on_tick is not None:
            self._on_tick(self._envs)
        for policy, observer in self._observers.items():
            observer.observe(self._steps[policy])
        over = np.ones(self._envs.num_envs, bool)
        ended = np.zeros(self._envs.num_envs, bool)
        for policy, step in self._steps.items():
            sums, counts = self._sums[policy], self._counts[policy]
            sums += step.reward
            final = step.terminated | step.truncated
            per_env = (step.alive & ~final).reshape(self._envs.num_envs, -1)
            over &= ~per_env.any(axis=1)
            ended |= final.reshape(self._envs.num_envs, -1).any(axis=1)
            agents = len(self._envs.policy_agents[policy])
            for row in np.flatnonzero(final):
                if self._left[row // agents] > 0:
                    self.result.returns[policy].append(float(sums[row]))
                    self.result.lengths[policy].append(int(counts[row]))
                    self.result.agents[policy].append(int(row % agents))
                    if policy in self._observers:
                        self._observers[policy].end(int(row), bool(step.terminated[row]))
                sums[row] = 0.0
                counts[row] = 0
        ended &= over & (self._left > 0)
        self._left -= ended
        # Every policy's record has the metrics of all environments.
        step = next(iter(self._steps.values()))
        for name, values in (step.metrics or {}).items():
            self.result.metrics[name] += values[ended].tolist()
