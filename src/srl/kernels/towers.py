"""Several fully connected networks (towers) over one input, with gradients written by hand.

Equal to linear layers and activations of torch under autograd (`srl.policies.nets.mlp`).

Two small towers are the usual actor and critic for vector observations. Autograd would record a
node for every operation of them. At a few hundred rows that costs as much as the arithmetic. Here
all towers are one node. Layers run through `ACTIVATED`, which inference uses, too.
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
    # tanh(z) = 2 sigmoid(2 z) - 1: torch's CPU kernel for tanh takes three times as long as the one
    # for sigmoid, and longer than the matrix product before it. The factor 2 is free in that
    # product.
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

BACKWARD: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "tanh": torch.ops.aten.tanh_backward,
    "relu": _relu_backward,
    "elu": _elu_backward,
}
"""(gradient of the output, output) to the gradient of the activation's input."""


def run_towers(x: torch.Tensor, towers: Sequence[Layers], activation: str) -> list[torch.Tensor]:
    """The output of each tower for [N, n]; the activation follows all layers but a tower's last.

    Gradients flow if they are enabled.
    """
    if torch.is_grad_enabled():
        weights = [tensor for layers in towers for layer in layers for tensor in layer]
        depths = tuple(len(layers) for layers in towers)
        return list(_Towers.apply(x, activation, depths, *weights))  # type: ignore[no-untyped-call]
    return [_run(x, layers, ACTIVATED[activation])[0] for layers in towers]


def forward_pass(
    x: torch.Tensor, towers: Sequence[Layers], activation: str
) -> tuple[list[torch.Tensor], list[list[torch.Tensor]]]:
    """As `run_towers` without gradients. Also returns the input of every layer, for
    `backward_pass`."""
    found = [_run(x, layers, ACTIVATED[activation]) for layers in towers]
    return [out for out, _ in found], [inputs for _, inputs in found]


def backward_pass(
    gradients: Sequence[torch.Tensor],
    inputs: Sequence[list[torch.Tensor]],
    towers: Sequence[Layers],
    activation: str,
) -> None:
    """Overwrites the gradients of all weights, where torch keeps them.

    `gradients` are those of the towers' outputs, and `inputs` come from `forward_pass`.
    """
    backward = BACKWARD[activation]
    for gradient, seen, layers in zip(gradients, inputs, towers, strict=True):
        for number in range(len(layers) - 1, -1, -1):
            weight, bias = layers[number]
            torch.mm(gradient.t(), seen[number], out=weight.grad)
            torch.sum(gradient, 0, out=bias.grad)
            if number:
                gradient = backward(gradient @ weight, seen[number])


def _run(
    x: torch.Tensor,
    layers: Layers,
    activated: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor],
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """One tower's output, and the input of each of its layers."""
    inputs = [x]
    for weight, bias in layers[:-1]:
        x = activated(x, weight, bias)
        inputs.append(x)
    weight, bias = layers[-1]
    return torch.addmm(bias, x, weight.t()), inputs


class _Towers(torch.autograd.Function):
    """All towers as one node of the graph."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, activation: str, depths: tuple[int, ...], *weights: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        outputs, inputs, at = [], [], 0
        for depth in depths:
            tensors = weights[at : at + 2 * depth]
            layers = list(zip(tensors[::2], tensors[1::2], strict=True))
            out, seen = _run(x, layers, ACTIVATED[activation])
            outputs.append(out)
            inputs += seen
            at += 2 * depth
        ctx.activation, ctx.depths = activation, depths
        ctx.save_for_backward(*inputs, *weights)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        backward = BACKWARD[ctx.activation]
        saved = ctx.saved_tensors
        num_layers = sum(ctx.depths)
        inputs, weights = saved[:num_layers], saved[num_layers:]
        found: list[torch.Tensor | None] = [None] * len(weights)
        wanted, of_x = ctx.needs_input_grad[0], None
        last = -1
        for depth, gradient in zip(ctx.depths, gradients, strict=True):
            first, last = last + 1, last + depth
            for layer in range(last, first - 1, -1):
                found[2 * layer] = gradient.t() @ inputs[layer]
                found[2 * layer + 1] = gradient.sum(0)
                if layer > first:
                    gradient = backward(gradient @ weights[2 * layer], inputs[layer])
                elif wanted:
                    of_last = gradient @ weights[2 * layer]
                    of_x = of_last if of_x is None else of_x + of_last
        return of_x, None, None, *found
