"""Losses of value distributions that are given by their quantiles."""

from __future__ import annotations

import torch


def quantile_huber(
    predicted: torch.Tensor, target: torch.Tensor, kappa: float = 1.0
) -> torch.Tensor:
    """The loss [...] of predicted quantiles [..., M] for samples of the target [..., K].

    Dabney et al. 2018, "Distributional reinforcement learning with quantile regression", eq. 10:
    the mean over targets, summed over quantiles, whose midpoints are (i + 1/2) / M.
    """
    count = predicted.shape[-1]
    midpoints = (torch.arange(count, device=predicted.device) + 0.5) / count
    error = target.unsqueeze(-2) - predicted.unsqueeze(-1)
    size = error.abs()
    huber = torch.where(size <= kappa, 0.5 * error.square(), kappa * (size - 0.5 * kappa))
    weight = (midpoints.unsqueeze(-1) - (error.detach() < 0).to(predicted.dtype)).abs()
    return (weight * huber / kappa).mean(-1).sum(-1)
