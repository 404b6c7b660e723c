"""The action head: from features to a distribution over actions, by the kind of action space."""

from __future__ import annotations

from math import prod

import torch
import torch.nn.functional as F
from torch import nn

from srl.data.spec import ActionSpec, Box, Discrete, MultiBinary, MultiDiscrete
from srl.kernels.sampling import ChoiceSampler, VectorSampler
from srl.policies.distributions import (
    FORBIDDEN,
    Bernoulli,
    Categorical,
    DiagGaussian,
    Distribution,
    MultiCategorical,
)
from srl.policies.nets.mlp import orthogonal


class ActionHead(nn.Module):
    """The last layer of a policy. For real-valued actions the standard deviation is a separate
    parameter."""

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
        """Features [..., n] to the parameters that `distribution` reads."""
        return F.linear(features, self.linear.weight, self.linear.bias)

    def distribution(self, out: torch.Tensor, mask: torch.Tensor | None) -> Distribution:
        """The distribution over [...], from [..., parameters] and a mask [..., choices] or None."""
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

    def make_sampler(self, out: torch.Tensor) -> ChoiceSampler | VectorSampler | None:
        """A kernel that samples from the distribution over `out.t()`; None where only the
        distribution itself can sample.

        It reads `out` [parameters, rows] at every call, so the caller writes new parameters into
        that memory.
        """
        match self.action:
            case Discrete() if out.is_cpu:
                return ChoiceSampler(out, FORBIDDEN)
            case Box(shape) if out.is_cpu and len(shape) == 1:
                return VectorSampler(out, self.log_std)
        return None


def _num_parameters(action: ActionSpec) -> int:
    match action:
        case Discrete(n) | MultiBinary(n):
            return n
        case MultiDiscrete(nvec):
            return sum(nvec)
        case Box(shape):
            return prod(shape)
