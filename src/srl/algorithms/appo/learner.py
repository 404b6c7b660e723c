"""Asynchronous PPO: the clipped surrogate on V-trace advantages, for data of any age."""

from __future__ import annotations

import torch

from srl.algorithms.appo.config import APPOConfig
from srl.algorithms.learning.outputs import outputs_everywhere
from srl.algorithms.ops.vtrace import vtrace
from srl.algorithms.ppo.learner import PPO
from srl.algorithms.ppo.rollout import Rollout
from srl.data.records import SampleBatch


class APPO(PPO):
    """PPO on data that may be many policy versions old."""

    Config = APPOConfig
    config: APPOConfig

    def make_rollout(self, batch: SampleBatch) -> Rollout:
        """A batch whose clip range lies around the policy that acted.

        The policy at the first use of a sample may be many versions newer. Bounded only by that
        policy, steps could lead anywhere.
        """
        rollout = super().make_rollout(batch)
        rollout.bound_by_behaviour()
        return rollout

    def targets(self, rollout: Rollout) -> tuple[torch.Tensor, torch.Tensor]:
        """V-trace advantages and value targets, by the policy before the update.

        The advantage has no weight rho: PPO's ratio weights it.
        """
        config = self.config
        log_prob, value = outputs_everywhere(self._unrolls, rollout)
        traced = vtrace(
            log_ratio=log_prob - rollout.log_prob,
            value=value,
            reward=self.clipped_reward(rollout.reward),
            acted=rollout.acted,
            terminated=rollout.terminated,
            truncated=rollout.truncated,
            gamma=config.gamma,
            lam=config.gae_lambda,
            rho_clip=config.vtrace_rho_clip,
            c_clip=config.vtrace_c_clip,
        )
        return traced.advantage_t, traced.target_t
