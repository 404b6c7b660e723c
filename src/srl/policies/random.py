"""A policy that chooses at random: a baseline, a first opponent, and a test of everything but
learning."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from srl.data.spec import AgentSpec, Box, Discrete, MultiBinary, MultiDiscrete
from srl.data.tree import Tree, leaves
from srl.policies.distributions import Bernoulli, Categorical, MultiCategorical
from srl.policies.protocol import Policy, PolicyOutput


@dataclass(frozen=True, kw_only=True)
class RandomConfig:
    """There is nothing to set."""


class RandomPolicy(Policy):
    """Uniform over the allowed actions for any observation; standard normal where a bound is
    infinite.

    It has no parameters and ignores `explore`.
    """

    Config = RandomConfig

    def __init__(self, agent: AgentSpec, config: RandomConfig) -> None:
        super().__init__(agent, config)
        self.extras_spec = {}
        if isinstance(agent.action, Box):
            shape = agent.action.shape
            self._low = torch.tensor(agent.action.low).reshape(shape)
            self._high = torch.tensor(agent.action.high).reshape(shape)

    def act(
        self,
        obs: Tree,
        policy_state: Tree,
        is_first: torch.Tensor,
        explore: torch.Tensor,
        action_mask: torch.Tensor | None,
        generator: torch.Generator,
    ) -> PolicyOutput:
        """Chooses uniform actions for [rows, ...]."""
        rows = leaves(obs)[0].shape[0]
        device = is_first.device
        match self.agent.action:
            case Discrete(n):
                flat = torch.zeros(rows, n, device=device)
                action = Categorical(flat, action_mask).sample(generator)
            case MultiDiscrete(nvec):
                flat = torch.zeros(rows, sum(nvec), device=device)
                action = MultiCategorical(flat, nvec, action_mask).sample(generator)
            case MultiBinary(n):
                flat = torch.zeros(rows, n, device=device)
                action = Bernoulli(flat, action_mask).sample(generator)
            case Box(shape):
                action = self._box(torch.empty(rows, *shape, device=device), generator)
        return PolicyOutput(action, policy_state, {})

    def _box(self, out: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        low, high = self._low.to(out.device), self._high.to(out.device)
        # Bounds count as infinite if their distance is not a finite number.
        bounded = (high - low).isfinite()
        normal = torch.empty_like(out).normal_(generator=generator)
        span = torch.where(bounded, high - low, 0.0)
        start = torch.where(bounded, low, 0.0)
        uniform = out.uniform_(generator=generator) * span + start
        return torch.where(bounded, uniform, normal.clamp(low, high))
