"""V-trace: value targets for data that an older policy collected."""

from __future__ import annotations

from typing import NamedTuple

import torch

from srl.algorithms.ops.bridging import backward_sum, bridge
from srl.algorithms.ops.masking import check_same_shape


class VTrace(NamedTuple):
    """All are 0 where no action was taken."""

    target_t: torch.Tensor
    """float [T, B]: v_s of the paper, the target of the critic."""
    advantage_t: torch.Tensor
    """float [T, B]: r_t + gamma v_{t+1} - V(x_t), *without* the weight rho (PPO's ratio brings its
    own)."""
    rho_t: torch.Tensor
    """float [T, B]: clipped importance weights; IMPALA's policy gradient multiplies the advantage
    by them."""


@torch.no_grad()
def vtrace(
    *,
    log_ratio: torch.Tensor,
    value: torch.Tensor,
    reward: torch.Tensor,
    acted: torch.Tensor,
    terminated: torch.Tensor,
    truncated: torch.Tensor,
    gamma: float,
    lam: float = 1.0,
    rho_clip: float = 1.0,
    c_clip: float = 1.0,
) -> VTrace:
    """Targets for [T + 1, B] ticks; `log_ratio` is log of learner's over actor's probability of
    each action.

    Espeholt et al. 2018, "IMPALA", section 4.1 and remark 2 (`lam`). Ticks without an action are
    bridged.
    """
    check_same_shape(value=value, reward=reward, log_ratio=log_ratio)
    counts_t, inert_t, value_tp1 = bridge(value, acted, terminated, truncated)
    ratio_t = torch.where(counts_t, log_ratio[:-1], 0.0).exp()
    rho_t = torch.where(counts_t, ratio_t.clamp(max=rho_clip), 0.0)
    value_t = torch.where(counts_t, value[:-1], 0.0)
    reward_t = torch.where(counts_t, reward[:-1], 0.0)
    delta_t = rho_t * (reward_t + gamma * value_tp1 - value_t)
    decay_t = counts_t * (gamma * lam * ratio_t.clamp(max=c_clip))
    if inert_t is not None:
        decay_t = decay_t.masked_fill(inert_t, 1.0)
    error = backward_sum(delta_t, decay_t)
    target_t = torch.where(counts_t, value_t + error[:-1], 0.0)
    # At a final tick the error is 0, so its worth passes unchanged; at an inert one the next error
    # is carried.
    target_tp1 = value_tp1 + error[1:]
    advantage_t = torch.where(counts_t, reward_t + gamma * target_tp1 - value_t, 0.0)
    return VTrace(target_t, advantage_t, rho_t)
