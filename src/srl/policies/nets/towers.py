"""Fully connected networks side by side over one input, with gradients written by hand.

Two small towers are the usual actor and critic of vector observations. Autograd would record a node
for every operation of them, and at a few hundred rows that costs as much as the arithmetic; here
all towers are one node. Layers run through `activated`, which is also what inference uses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

Layers = Sequence[tuple[torch.Tensor, torch.Tensor]]
"""Weight and bias of each layer, first to last."""

_MINUS_ONE = torch.tensor(-1.0)


def _tanh(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    # tanh(z) = 2 sigmoid(2 z) - 1: torch's CPU kernel of tanh takes three times as long as that of
    # sigmoid, and longer than the matrix product before it. The factor 2 costs nothing in there.
    out = torch.addmm(bias, x, weight.t(), beta=2, alpha=2).sigmoid_()
    return torch.add(_MINUS_ONE, out, alpha=2, out=out)


def _relu(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.linear(x, weight, bias).relu_()


def _elu(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.elu_(F.linear(x, weight, bias))


def _elu_backward(gradient: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten.elu_backward(gradient, 1.0, 1.0, 1.0, True, out)  # type: ignore[no-any-return]


def _relu_backward(gradient: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten.threshold_backward(gradient, out, 0)  # type: ignore[no-any-return]


ACTIVATED: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "tanh": _tanh,
    "relu": _relu,
    "elu": _elu,
}
"""activation(x @ weight.T + bias) for inputs [N, n], without gradients."""

_BACKWARD: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "tanh": torch.ops.aten.tanh_backward,
    "relu": _relu_backward,
    "elu": _elu_backward,
}
"""(gradient of the output, the output) to the gradient of the activation's input."""


def run_towers(x: torch.Tensor, towers: Sequence[Layers], activation: str) -> list[torch.Tensor]:
    """What each tower makes of [N, n]; the activation follows all layers but a tower's last.

    With gradients if they are enabled.
    """
    if torch.is_grad_enabled():
        weights = [tensor for layers in towers for layer in layers for tensor in layer]
        depths = tuple(len(layers) for layers in towers)
        return list(_Towers.apply(x, activation, depths, *weights))  # type: ignore[no-untyped-call]
    activated = ACTIVATED[activation]
    outputs = []
    for layers in towers:
        out = x
        for weight, bias in layers[:-1]:
            out = activated(out, weight, bias)
        weight, bias = layers[-1]
        outputs.append(torch.addmm(bias, out, weight.t()))
    return outputs


class _Towers(torch.autograd.Function):
    """All towers as one node of the graph."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, activation: str, depths: tuple[int, ...], *weights: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        activated = ACTIVATED[activation]
        inputs, outputs, at = [], [], 0
        for depth in depths:
            out = x
            for _ in range(depth - 1):
                inputs.append(out)
                out = activated(out, weights[at], weights[at + 1])
                at += 2
            inputs.append(out)
            outputs.append(torch.addmm(weights[at + 1], out, weights[at].t()))
            at += 2
        ctx.activation, ctx.depths = activation, depths
        ctx.save_for_backward(*inputs, *weights)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        backward = _BACKWARD[ctx.activation]
        saved = ctx.saved_tensors
        num_layers = sum(ctx.depths)
        inputs, weights = saved[:num_layers], saved[num_layers:]
        found: list[torch.Tensor | None] = [None] * len(weights)
        wanted, of_x = ctx.needs_input_grad[0], None
        last = -1
        for depth, gradient in zip(ctx.depths, gradients, strict=True):
            first, last = last + 1, last + depth
            for layer in range(last, first - 1, -1):
                if layer < last:
                    gradient = backward(gradient, inputs[layer + 1])
                found[2 * layer] = gradient.t() @ inputs[layer]
                found[2 * layer + 1] = gradient.sum(0)
                if layer > first or wanted:
                    gradient = gradient @ weights[2 * layer]
            if wanted:
                of_x = gradient if of_x is None else of_x + gradient
        return of_x, None, None, *found
