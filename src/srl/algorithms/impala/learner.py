"""IMPALA: the policy gradient with V-trace, from actors that never wait (Espeholt et al. 2018)."""

from __future__ import annotations

import torch

from srl.algorithms.impala.config import IMPALAConfig
from srl.algorithms.learning.one_pass import OnePass, TargetInputs, Targets
from srl.algorithms.ops.vtrace import vtrace


class IMPALA(OnePass):
    """The policy gradient on data of older policies, with clipped importance weights."""

    Config = IMPALAConfig
    handles_stale_samples = True
    config: IMPALAConfig

    def targets(self, ticks: TargetInputs, counts: torch.Tensor) -> Targets:
        """V-trace targets, and advantages times their clipped weights."""
        config = self.config
        found = vtrace(
            log_ratio=ticks.log_prob - ticks.behaviour_log_prob,
            value=ticks.value,
            reward=ticks.reward,
            acted=ticks.acted,
            terminated=ticks.terminated,
            truncated=ticks.truncated,
            gamma=config.gamma,
            lam=config.vtrace_lambda,
            rho_clip=config.vtrace_rho_clip,
            c_clip=config.vtrace_c_clip,
        )
        rho = found.rho_t[counts]
        metrics = {
            "rho_mean": rho.mean(),
            "rho_clipped": (rho >= config.vtrace_rho_clip).to(rho).mean(),
        }
        return Targets(found.rho_t * found.advantage_t, found.target_t, metrics)
