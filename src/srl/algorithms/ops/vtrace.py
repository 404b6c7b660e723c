"""V-trace: value targets for data that was collected by an older policy."""

from __future__ import annotations

from typing import NamedTuple

import torch

from srl.algorithms.ops.idle_ticks import backward_sum, following_values
from srl.algorithms.ops.masking import check_same_shape


class VTrace(NamedTuple):
    """Targets, advantages and weights; all are 0 where no action was taken."""

    target_t: torch.Tensor
    """float [T, B]: v_s of the paper, the target of the critic."""
    advantage_t: torch.Tensor
    """float [T, B]: r_t + gamma * (lam * v_{t+1} + (1 - lam) * V(x_{t+1})) - V(x_t), *without* the
    weight rho (PPO's ratio brings its own). On data of the policy itself this is GAE."""
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
    """V-trace targets for [T + 1, B] ticks.

    `log_ratio` is the learner's minus the actor's log probability of each action.

    Espeholt et al. 2018, "IMPALA", section 4.1 and remark 2 (`lam`). The paper gives the advantage
    for `lam` = 1. Below 1 it mixes the target and the value of the next tick, as rlax does. So it
    equals GAE where all ratios are 1. Ticks without an action are skipped (see `idle_ticks`).
    """
    check_same_shape(value=value, reward=reward, log_ratio=log_ratio)
    counts_t, inert_t, value_tp1 = following_values(value, acted, terminated, truncated)
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
    # At a final tick the error is 0, so its value does not change. At an inert tick the error is
    # that of the tick after it.
    mixed_tp1 = value_tp1 + lam * error[1:]
    advantage_t = torch.where(counts_t, reward_t + gamma * mixed_tp1 - value_t, 0.0)
    return VTrace(target_t, advantage_t, rho_t)
