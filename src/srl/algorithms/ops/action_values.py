"""Values of actions: the best action, and the value of one action."""

from __future__ import annotations

import torch


def greedy_action(value: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    """The action [...] with the highest value of [..., actions].

    `mask` [..., actions] is True where an action is allowed, or None.
    """
    if mask is not None:
        value = value.masked_fill(~mask, -torch.inf)
    return value.argmax(-1)


def value_of(value: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    """The values [..., *rest] of actions [...], from [..., actions, *rest]."""
    axis = action.dim()
    index = action.reshape(*action.shape, *(1,) * (value.dim() - axis))
    index = index.expand(*action.shape, 1, *value.shape[axis + 1 :])
    return value.gather(axis, index).squeeze(axis)
