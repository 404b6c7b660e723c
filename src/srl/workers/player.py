"""Playing whole episodes in one process: environments and policies side by side, without streams.

The evaluator, `srl eval`, `srl play` and `run.policy.act` all play through this.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from srl.data.records import InferenceRequest
from srl.data.spec import AgentSpec, ArraySpec
from srl.data.stacking import push_frame
from srl.data.tree import Tree, leaves, tree_map
from srl.envs.protocol import EnvGroup
from srl.policies.protocol import Policy
from srl.workers.policy import infer


class PolicyRunner:
    """A policy with the memory that its rows need: frame stacks and policy state."""

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
        """How far the next actions are from the most likely ones: 0 greedy, 1 as in training."""
        self._explore.fill(temperature)

    def act(
        self, obs: Tree, is_first: np.ndarray, action_mask: np.ndarray | None, asks: np.ndarray
    ) -> np.ndarray:
        """Actions for [rows, ...] of single frames; policy state moves on only where `asks`."""
        for kept, new, stack in zip(leaves(self._obs), leaves(obs), self._stacks, strict=True):
            if stack > 1:
                push_frame(kept, new, is_first)
            else:
                kept[...] = new
        # A row that is not on turn when its episode begins is told so when it is.
        self._first |= is_first
        request = InferenceRequest(
            self._obs, self._state, self._first.copy(), self._explore, action_mask
        )
        act = infer(self.policy, request, self._generator, torch.device("cpu"))
        for kept, new in zip(leaves(self._state), leaves(act.state), strict=True):
            kept[asks] = new.numpy()[asks]
        self._first &= ~asks
        return act.action.numpy()


@dataclass
class Result:
    """What was played, by policy."""

    returns: dict[str, list[float]] = field(default_factory=dict)
    lengths: dict[str, list[int]] = field(default_factory=dict)


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
    ) -> None:
        self._envs = envs
        self._on_tick = on_tick
        self._runners = {
            lane: PolicyRunner(
                policies[lane], envs.num_envs * len(agents), explore=explore, seed=seed + i
            )
            for i, (lane, agents) in enumerate(envs.lanes.items())
        }
        # Every environment plays its share, so that short episodes count no more than long ones.
        share, rest = divmod(episodes, envs.num_envs)
        self._left = np.array([share + (i < rest) for i in range(envs.num_envs)])
        self.result = Result({lane: [] for lane in envs.lanes}, {lane: [] for lane in envs.lanes})
        self._sums = {lane: np.zeros(r._explore.size) for lane, r in self._runners.items()}
        self._counts = {
            lane: np.zeros(r._explore.size, np.int64) for lane, r in self._runners.items()
        }
        self._steps = envs.reset(seed)
        self._count()

    @property
    def done(self) -> bool:
        """All episodes are played."""
        return not self._left.any()

    def tick(self) -> None:
        """One step of every environment."""
        actions = {}
        for lane, step in self._steps.items():
            asks = step.turn | step.truncated
            actions[lane] = self._runners[lane].act(step.obs, step.is_first, step.action_mask, asks)
            self._counts[lane] += step.turn
        self._steps = self._envs.step(actions)
        self._count()

    def _count(self) -> None:
        if self._on_tick is not None:
            self._on_tick(self._envs)
        over = np.ones(self._envs.num_envs, bool)
        ended = np.zeros(self._envs.num_envs, bool)
        for lane, step in self._steps.items():
            sums, counts = self._sums[lane], self._counts[lane]
            sums += step.reward
            final = step.terminated | step.truncated
            per_env = (step.alive & ~final).reshape(self._envs.num_envs, -1)
            over &= ~per_env.any(axis=1)
            ended |= final.reshape(self._envs.num_envs, -1).any(axis=1)
            agents = len(self._envs.lanes[lane])
            for row in np.flatnonzero(final):
                if self._left[row // agents] > 0:
                    self.result.returns[lane].append(float(sums[row]))
                    self.result.lengths[lane].append(int(counts[row]))
                sums[row] = 0.0
                counts[row] = 0
        self._left -= over & ended & (self._left > 0)

    def play(self) -> Result:
        """Plays to the end."""
        while not self.done:
            self.tick()
        return self.result
