"""Fully connected layers, and their initial weights."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn

from srl.kernels.towers import ACTIVATED
from srl.policies.nets.config import Activation

# In place: the gradient of a linear layer does not need its output, and this touches less memory.
ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "tanh": torch.tanh_,
    "relu": torch.relu_,
    "elu": functools.partial(F.elu, inplace=True),
}

GAIN = math.sqrt(2.0)
"""Gain of hidden layers; heads have their own."""


def orthogonal(layer: nn.Linear | nn.Conv2d, gain: float = GAIN) -> nn.Linear | nn.Conv2d:
    """Sets a layer's weights to an orthogonal matrix and its bias to zero, in place."""
    nn.init.orthogonal_(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


class MLP(nn.Module):
    """Linear layers, each followed by the activation; without layers it is the identity."""

    def __init__(self, num_inputs: int, sizes: Sequence[int], activation: Activation) -> None:
        super().__init__()
        widths = [num_inputs, *sizes]
        self.layers = nn.ModuleList(orthogonal(nn.Linear(a, b)) for a, b in pairwise(widths))
        self.activation = activation
        self.use_kernels = True
        """Whether layers without gradients run by kernels."""
        self.num_outputs = widths[-1]
        # The same parameters again, outside of the module tree: at a few rows, finding them in the
        # tree takes longer than the arithmetic.
        self.in_order = [(layer.weight, layer.bias) for layer in self.layers]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, num_inputs] to [N, num_outputs]."""
        if self.use_kernels and not torch.is_grad_enabled():
            activated = ACTIVATED[self.activation]
            for weight, bias in self.in_order:
                x = activated(x, weight, bias)  # type: ignore[arg-type]
            return x
        activation = ACTIVATIONS[self.activation]
        for weight, bias in self.in_order:
            x = activation(F.linear(x, weight, bias))  # type: ignore[arg-type]
        return x
