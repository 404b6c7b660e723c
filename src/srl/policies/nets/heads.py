"""From features to a distribution over actions, by the kind of the action space."""

from __future__ import annotations

from math import prod

import torch
import torch.nn.functional as F
from torch import nn

from srl.data.spec import ActionSpec, Box, Discrete, MultiBinary, MultiDiscrete
from srl.policies.distributions import (
    Bernoulli,
    Categorical,
    DiagGaussian,
    Distribution,
    MultiCategorical,
)
from srl.policies.drawing import ChoiceDraw, VectorDraw
from srl.policies.nets.mlp import orthogonal


class ActionHead(nn.Module):
    """The last layer of a policy; for real-valued actions the standard deviation is a parameter of
    its own."""

    def __init__(
        self,
        num_inputs: int,
        action: ActionSpec,
        *,
        gain: float = 0.01,
        initial_log_std: float = 0.0,
    ) -> None:
        super().__init__()
        self.action = action
        self.linear = orthogonal(nn.Linear(num_inputs, _num_parameters(action)), gain)
        if isinstance(action, Box):
            self.log_std = nn.Parameter(torch.full(action.shape, initial_log_std))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Features [..., n] to what `distribution` reads."""
        return F.linear(features, self.linear.weight, self.linear.bias)

    def distribution(self, out: torch.Tensor, mask: torch.Tensor | None) -> Distribution:
        """[..., parameters] and a mask [..., choices] or None to a distribution over [...]."""
        match self.action:
            case Discrete():
                return Categorical(out, mask)
            case MultiDiscrete(nvec):
                return MultiCategorical(out, nvec, mask)
            case MultiBinary():
                return Bernoulli(out, mask)
            case Box(shape):
                mean = out if len(shape) == 1 else out.reshape(*out.shape[:-1], *shape)
                return DiagGaussian(mean, self.log_std, len(shape))

    def drawing(self, out: torch.Tensor) -> ChoiceDraw | VectorDraw | None:
        """What draws as the distribution over `out.t()` does, from [parameters, rows] that are
        written again and again; None where only the distribution itself can."""
        match self.action:
            case Discrete() if out.is_cpu:
                return ChoiceDraw(out)
            case Box(shape) if out.is_cpu and len(shape) == 1:
                return VectorDraw(out, self.log_std)
        return None


def _num_parameters(action: ActionSpec) -> int:
    match action:
        case Discrete(n) | MultiBinary(n):
            return n
        case MultiDiscrete(nvec):
            return sum(nvec)
        case Box(shape):
            return prod(shape)
