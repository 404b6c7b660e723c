"""Towers packed for acting: the same functions in as few operations as it takes.

At a few dozen rows an operation costs more than its arithmetic. Here the first layers of all towers
are one product, each later layer is one batched product, and the affine part of
tanh(z) = 2 sigmoid(2 z) - 1 is moved into the next layer's weights. The price is a copy of the
weights, made anew whenever they change.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from srl.policies.nets.towers import Layers


class PackedTowers:
    """Towers of equal hidden layers over one input, without gradients."""

    def __init__(self, towers: Sequence[Layers], activation: str) -> None:
        """Packs what the towers hold now; at least one hidden layer each, of equal widths."""
        self._activation = activation
        self._count = len(towers)
        hidden = [[(w.detach(), b.detach()) for w, b in layers[:-1]] for layers in towers]
        heads = [(layers[-1][0].detach(), layers[-1][1].detach()) for layers in towers]
        twice = 2.0 if activation == "tanh" else 1.0
        first = [layers[0] for layers in hidden]
        self._weight = (torch.cat([w for w, _ in first]) * twice).t().contiguous()
        self._bias = torch.cat([b for _, b in first]) * twice
        self._width = first[0][0].shape[0]
        self._later = [
            self._stacked([layers[depth] for layers in hidden], twice)
            for depth in range(1, len(hidden[0]))
        ]
        self._heads = [self._after(w, b) for w, b in heads]

    def _stacked(
        self, layers: list[tuple[torch.Tensor, torch.Tensor]], twice: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One later layer of all towers: weights [towers, in, out] and biases [towers, 1, out]."""
        packed = [self._after(w, b) for w, b in layers]
        weight = torch.stack([w for w, _ in packed]) * twice
        return weight, torch.stack([b for _, b in packed]).unsqueeze(1) * twice

    def _after(self, weight: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """A layer that reads sigmoids where it read tanh: W (2 s - 1) + b = (2 W) s + (b - W 1)."""
        if self._activation != "tanh":
            return weight.t(), bias
        return (2.0 * weight).t(), bias - weight.sum(1)

    def _activate(self, x: torch.Tensor) -> torch.Tensor:
        match self._activation:
            case "tanh":
                return x.sigmoid_()
            case "relu":
                return x.relu_()
            case _:
                return F.elu_(x)

    def __call__(self, x: torch.Tensor) -> list[torch.Tensor]:
        """What each tower makes of [N, n]."""
        hidden = self._activate(torch.addmm(self._bias, x, self._weight))
        by_tower = hidden.view(-1, self._count, self._width).transpose(0, 1)
        for weight, bias in self._later:
            by_tower = self._activate(torch.baddbmm(bias, by_tower, weight))
        return [
            torch.addmm(bias, seen, weight)
            for seen, (weight, bias) in zip(by_tower.unbind(), self._heads, strict=True)
        ]
