"""The value of a joint action from the values of its parts, which agents can maximise alone."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from srl.algorithms.ops.masking import check_same_shape


def sum_of_values(value: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
    """The sum of the values [..., agents] of those agents that are `present` (bool): [...].

    Sunehag et al. 2018, "Value-decomposition networks for cooperative multi-agent learning", eq. 4.
    """
    check_same_shape(value=value, present=present)
    return torch.where(present, value, 0.0).sum(-1)


def monotonic_mixing(
    value: torch.Tensor,
    present: torch.Tensor,
    weight_1: torch.Tensor,
    bias_1: torch.Tensor,
    weight_2: torch.Tensor,
    bias_2: torch.Tensor,
) -> torch.Tensor:
    """Mixes the values [..., agents] by a network with one hidden layer, whose weights may be
    different for each entry: [...].

    Rashid et al. 2018, "QMIX: Monotonic value function factorisation for deep multi-agent
    reinforcement learning", fig. 2a. Weights count with their absolute values, so the result never
    falls when a value rises. Agents that are not `present` count as 0. Shapes: `weight_1` [...,
    agents, units], `bias_1` and `weight_2` [..., units], `bias_2` [...].
    """
    check_same_shape(value=value, present=present)
    check_same_shape(bias_1=bias_1, weight_2=weight_2)
    value = torch.where(present, value, 0.0)
    hidden = F.elu((value.unsqueeze(-1) * weight_1.abs()).sum(-2) + bias_1)
    return (hidden * weight_2.abs()).sum(-1) + bias_2
