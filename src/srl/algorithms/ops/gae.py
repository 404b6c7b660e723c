"""Generalised advantage estimation over fragments that hold several episodes."""

from __future__ import annotations

from typing import NamedTuple

import torch

from srl.algorithms.ops.idle_ticks import backward_sum, following_values
from srl.algorithms.ops.masking import check_same_shape


class GAE(NamedTuple):
    """Advantages and returns; both are 0 where no action was taken."""

    advantage_t: torch.Tensor
    """float [T, B]."""
    return_t: torch.Tensor
    """float [T, B]: advantage plus value, the target of the critic."""


@torch.no_grad()
def gae(
    *,
    value: torch.Tensor,
    reward: torch.Tensor,
    acted: torch.Tensor,
    terminated: torch.Tensor,
    truncated: torch.Tensor,
    gamma: float,
    lam: float,
) -> GAE:
    """Advantages of [T + 1, B] ticks, the last of which only bootstraps.

    Schulman et al. 2016, "High-dimensional continuous control using generalized advantage
    estimation", eq. 16. Ticks without an action are skipped (see `idle_ticks`): the result is that
    of the row without them.
    """
    check_same_shape(value=value, reward=reward)
    counts_t, inert_t, value_tp1 = following_values(value, acted, terminated, truncated)
    delta_t = torch.where(counts_t, reward[:-1] + gamma * value_tp1 - value[:-1], 0.0)
    decay_t = counts_t.to(value.dtype) * (gamma * lam)
    if inert_t is not None:
        decay_t.masked_fill_(inert_t, 1.0)
    carried = backward_sum(delta_t, decay_t)[:-1]
    advantage_t = carried if inert_t is None else torch.where(counts_t, carried, 0.0)
    return GAE(advantage_t, torch.where(counts_t, advantage_t + value[:-1], 0.0))
