"""Priorities of what a replay draws, and weights that correct for them."""

from __future__ import annotations

import torch

from srl.algorithms.ops.masking import check_same_shape

LARGEST_SHARE = 0.9
"""Weight of a window's largest error in its priority; its mean error has the rest."""


def window_priority(
    error: torch.Tensor, mask: torch.Tensor, largest_share: float = LARGEST_SHARE
) -> torch.Tensor:
    """The priority [B] of each window, from errors [T, B] where `mask` is set: the largest size of
    an error, mixed with their mean (Kapturowski et al. 2019, "Recurrent experience replay"). A
    window without any has 0."""
    check_same_shape(error=error, mask=mask)
    size = torch.where(mask, error.abs(), 0.0)
    mean = size.sum(0) / mask.sum(0).clamp(min=1)
    return largest_share * size.amax(0) + (1.0 - largest_share) * mean


def importance_weight(
    weight: torch.Tensor, exponent: float, largest: torch.Tensor | None = None
) -> torch.Tensor:
    """Weights [B] for a loss, of at most 1 (Schaul et al. 2016, "Prioritized experience replay",
    section 3.4).

    `weight` [B] is the probability of a uniform draw of each window, divided by that of its draw.
    `largest` is the largest one, if `weight` is only a part of all.
    """
    largest = weight.amax() if largest is None else largest
    return (weight / largest).pow(exponent)
