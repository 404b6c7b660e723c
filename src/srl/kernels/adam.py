"""One step of Adam over flat arrays, in one call.

Equal to `torch.optim.Adam`, which goes layer by layer. Making one of these imports torch's
compiler, and that takes seconds of start-up that a trainer has no use for.
"""

from __future__ import annotations

from typing import NamedTuple

import torch


class AdamState(NamedTuple):
    """The arrays that a step changes."""

    parameters: torch.Tensor
    exp_avg: torch.Tensor
    exp_avg_sq: torch.Tensor
    num_steps: torch.Tensor
    """float32 []: steps taken."""


def has_fused_adam() -> bool:
    """Whether this version of torch has the kernel, which is not in torch's documentation."""
    return hasattr(torch, "_fused_adam_")


def fused_adam(
    state: AdamState,
    gradient: torch.Tensor,
    *,
    lr: float,
    betas: tuple[float, float],
    weight_decay: float,
    eps: float,
) -> None:
    """Moves the parameters along their gradient, in place."""
    state.num_steps.add_(1)
    torch._fused_adam_(
        [state.parameters],
        [gradient],
        [state.exp_avg],
        [state.exp_avg_sq],
        [],
        [state.num_steps],
        lr=lr,
        beta1=betas[0],
        beta2=betas[1],
        weight_decay=weight_decay,
        eps=eps,
        amsgrad=False,
        maximize=False,
    )
