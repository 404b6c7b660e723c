"""Exploration of policies that choose by values."""

from __future__ import annotations

import torch


def epsilon_greedy(
    value: torch.Tensor,
    epsilon: torch.Tensor,
    mask: torch.Tensor | None,
    generator: torch.Generator,
) -> torch.Tensor:
    """The action with the highest value [rows, n], or a random one with probability `epsilon`
    [rows].

    `mask` [rows, n] is True where an action is allowed, or None; other actions are never chosen.
    """
    rows, size = value.shape
    noise = torch.rand(rows, size + 1, generator=generator, device=value.device, dtype=value.dtype)
    is_random = noise[:, size] < epsilon
    # The largest of n equal random numbers is a uniform choice.
    scores = torch.where(is_random.unsqueeze(1), noise[:, :size], value)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return scores.argmax(1)
