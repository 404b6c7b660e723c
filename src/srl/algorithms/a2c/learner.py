"""Advantage actor-critic, the synchronous A3C (Mnih et al. 2016)."""

from __future__ import annotations

import torch

from srl.algorithms.a2c.config import A2CConfig
from srl.algorithms.learning.one_pass import OnePass, TargetInputs, Targets
from srl.algorithms.ops.gae import gae


class A2C(OnePass):
    """The plain policy gradient with a learned baseline, on data of the policy itself."""

    Config = A2CConfig
    config: A2CConfig

    def targets(self, ticks: TargetInputs, counts: torch.Tensor) -> Targets:
        """Returns of n steps, up to the end of each fragment (`gae_lambda` 1)."""
        found = gae(
            value=ticks.value,
            reward=ticks.reward,
            acted=ticks.acted,
            terminated=ticks.terminated,
            truncated=ticks.truncated,
            gamma=self.config.gamma,
            lam=self.config.gae_lambda,
        )
        return Targets(found.advantage_t, found.return_t, {})
