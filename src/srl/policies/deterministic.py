"""A policy that always chooses the same action for an observation, plus noise: the policy of
TD3."""

from __future__ import annotations

import torch

from srl.data.spec import AgentSpec
from srl.policies.bounded_actor import BoundedActor
from srl.policies.deterministic_config import DeterministicConfig


class Deterministic(BoundedActor):
    """Chooses tanh of its network's output, and adds normal noise where it explores.

    It is also `BestUnitActions`, which TD3 asks for (Fujimoto et al. 2018).
    """

    Config = DeterministicConfig
    config: DeterministicConfig
    name = "deterministic"

    def __init__(self, agent: AgentSpec, config: DeterministicConfig) -> None:
        super().__init__(agent, config, outputs=1)

    def explore(
        self, out: torch.Tensor, explore: torch.Tensor, generator: torch.Generator
    ) -> torch.Tensor:
        """As `BoundedActor.explore`: the noise is multiplied by `explore`, and the result clipped
        to the bounds."""
        noise = torch.empty_like(out).normal_(generator=generator).mul_(explore)
        return out.tanh().add_(noise, alpha=self.config.exploration_noise).clamp_(-1.0, 1.0)

    def best(self, seen: dict[str, torch.Tensor]) -> torch.Tensor:
        """As `BestUnitActions.best`."""
        return self.outputs(seen).tanh()
