"""Towers packed for inference: the same functions as in `towers`, with few operations.

At a few dozen rows an operation costs more than its arithmetic, and new memory costs more than
writing it. So the first layers of all towers are one product, each later layer is one batched
product, and all heads are one product. All results go into memory that is kept. Observations are
columns, the fastest layout for products with few outputs.

Biases are weights of a unit that is always 1. That unit is a row of ones below the input, and one
more unit in each hidden layer, whose activation is 1. The affine part of tanh(z) = 2 sigmoid(2 z) -
1 is moved into the next layer's weights. The price is a copy of the weights, which must be made
again whenever they change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F

from srl.kernels.towers import Layers

_INPUT_FOR_ONE = {"tanh": 40.0, "relu": 1.0, "elu": 1.0}
"""The input for which the activation (a sigmoid in place of tanh) is exactly 1."""


class Memory(NamedTuple):
    """The memory that the layers write for one number of rows, some of it in several shapes."""

    seen: torch.Tensor
    """[inputs, rows]: the part of `inputs` that takes observations."""
    inputs: torch.Tensor
    """[inputs + 1, rows]: the last row is ones."""
    hidden: list[torch.Tensor]
    """[towers, units + 1, rows] of each hidden layer."""
    flat: list[torch.Tensor]
    """[towers * (units + 1), rows] of each hidden layer."""
    out: torch.Tensor
    """[outputs of all towers, rows]."""


class PackedTowers:
    """Towers with equal hidden layers over one input, without gradients."""

    def __init__(self, towers: Sequence[Layers], activation: str) -> None:
        """Packs the current weights of `towers`. Each has at least one hidden layer, all of equal
        widths."""
        self._activation = activation
        count, like = len(towers), towers[0][0][0].detach()
        self._widths = [like.shape[1], *(weight.shape[0] for weight, _ in towers[0][:-1])]
        num_outputs = sum(layers[-1][0].shape[0] for layers in towers)
        self._layers = [
            like.new_zeros(count, after + 1, before + 1)
            for before, after in zip(self._widths, self._widths[1:], strict=False)
        ]
        for weight in self._layers:
            weight[:, -1, -1] = _INPUT_FOR_ONE[activation]
        self._heads = like.new_zeros(num_outputs, count, self._widths[-1] + 1)
        self._factors = self._make_factors() if activation == "tanh" else []
        self._first = self._layers[0].flatten(0, 1)
        self._last = self._heads.flatten(1)
        self._views = self._find_views(towers)
        self.load(towers)

    def _find_views(self, towers: Sequence[Layers]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Views of the packed weights, for weight and bias of each layer, tower by tower."""
        found, first = [], 0
        for number, layers in enumerate(towers):
            size = layers[-1][0].shape[0]
            views = [weight[number, :-1] for weight in self._layers]
            views.append(self._heads[first : first + size, number])
            found += [(view[:, :-1], view[:, -1]) for view in views]
            first += size
        return found

    def _make_factors(self) -> list[torch.Tensor]:
        """The factors for layers and heads where sigmoids take the place of tanh."""
        factors = [
            torch.full_like(weight, 4.0 if number else 2.0)
            for number, weight in enumerate(self._layers)
        ]
        for factor in factors:
            factor[:, :, -1] = 2.0
            factor[:, -1] = 1.0
        of_heads = torch.full_like(self._heads, 2.0)
        of_heads[:, :, -1] = 1.0
        return [*factors, of_heads]

    @torch.no_grad()
    def load(self, towers: Sequence[Layers]) -> None:
        """Packs the current weights of the towers."""
        layers_in_order = [layer for layers in towers for layer in layers]
        for (weight_view, bias_view), (weight, bias) in zip(
            self._views, layers_in_order, strict=True
        ):
            weight_view.copy_(weight)
            bias_view.copy_(bias)
        if not self._factors:
            return
        # Layers that read sigmoids in place of tanh: W (2 s - 1) + b = (2 W) s + (b - W 1).
        for weight in (*self._layers[1:], self._heads):
            weight[:, :, -1].sub_(weight[:, :, :-1].sum(-1))
        for weight, factor in zip((*self._layers, self._heads), self._factors, strict=True):
            weight.mul_(factor)

    def __call__(self, memory: Memory) -> torch.Tensor:
        """Runs the towers on `memory.seen`, and returns their outputs, one tower below the
        other."""
        _, inputs, hidden, flat, out = memory
        torch.mm(self._first, inputs, out=flat[0])
        self._activate(flat[0])
        for number in range(1, len(hidden)):
            torch.bmm(self._layers[number], hidden[number - 1], out=hidden[number])
            self._activate(flat[number])
        return torch.mm(self._last, flat[-1], out=out)

    def memory(self, rows: int) -> Memory:
        """Makes the memory for this number of rows."""
        heads = self._heads
        inputs = heads.new_ones(self._widths[0] + 1, rows)
        hidden = [heads.new_empty(heads.shape[1], width + 1, rows) for width in self._widths[1:]]
        return Memory(
            seen=inputs[:-1],
            inputs=inputs,
            hidden=hidden,
            flat=[layer.flatten(0, 1) for layer in hidden],
            out=heads.new_empty(len(heads), rows),
        )

    def _activate(self, x: torch.Tensor) -> None:
        match self._activation:
            case "tanh":
                x.sigmoid_()
            case "relu":
                x.relu_()
            case _:
                F.elu_(x)
