"""One fully connected network and its gradients, for a few hundred rows or more.

Equal to linear layers and activations of torch under autograd (`srl.policies.nets.mlp`). Only what
is asked for is computed: the gradients of the weights, of the input, or both.

Products of float32 matrices on a CPU run by oneDNN, which torch has for its compiler. torch's
default there is MKL, which uses half of the vector units of AMD's processors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from srl.kernels.towers import BACKWARD, Layers

_IN_PLACE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "tanh": torch.tanh_,
    "relu": torch.relu_,
    "elu": F.elu_,
}


def run_dense(x: torch.Tensor, layers: Layers, activation: str) -> torch.Tensor:
    """The output for [N, n]; the activation follows all layers but the last.

    Gradients flow if they are enabled, as one node of the graph.
    """
    if not torch.is_grad_enabled():
        return forward_pass(x, layers, activation)[0]
    weights = [tensor for layer in layers for tensor in layer]
    out: torch.Tensor = _Dense.apply(x, activation, *weights)  # type: ignore[no-untyped-call]
    return out


def forward_pass(
    x: torch.Tensor, layers: Layers, activation: str
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """As `run_dense` without gradients. Also returns the input of each layer, for the two functions
    below."""
    inputs = [x]
    for weight, bias in layers[:-1]:
        inputs.append(_linear(inputs[-1], weight, bias, activation))
    return _linear(inputs[-1], *layers[-1]), inputs


def backward_pass(
    gradient: torch.Tensor, inputs: Sequence[torch.Tensor], layers: Layers, activation: str
) -> None:
    """Overwrites the gradients of all weights, where torch keeps them.

    `gradient` [N, n] is that of the output.
    """
    for number in range(len(layers) - 1, -1, -1):
        weight, bias = layers[number]
        assert weight.grad is not None
        weight.grad.copy_(_weight_gradient(gradient, inputs[number]))
        torch.sum(gradient, 0, out=bias.grad)
        if number:
            gradient = _back(gradient, weight, inputs[number], activation)


def input_gradient(
    gradient: torch.Tensor,
    inputs: Sequence[torch.Tensor],
    layers: Layers,
    activation: str,
    first: int = 0,
) -> torch.Tensor:
    """The gradient of the input's columns from `first` on; the weights' are not computed."""
    for number in range(len(layers) - 1, 0, -1):
        gradient = _back(gradient, layers[number][0], inputs[number], activation)
    return _linear(gradient, layers[0][0][:, first:].t(), None)


def has_onednn_linear() -> bool:
    """Whether this version of torch has oneDNN's linear layer, which is not in torch's
    documentation."""
    return bool(torch.backends.mkldnn.is_available()) and hasattr(  # type: ignore[no-untyped-call]
        torch.ops.mkldnn, "_linear_pointwise"
    )


_HAS_ONEDNN = has_onednn_linear()
_FEWEST_PRODUCTS = 1 << 21
"""Multiplications in the smallest layer that runs by oneDNN. Each call of it takes about 12
microseconds longer to start."""


def _linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, activation: str = ""
) -> torch.Tensor:
    """activation(x @ weight.T + bias); no activation by default."""
    large = x.shape[0] * weight.shape[0] * weight.shape[1] >= _FEWEST_PRODUCTS
    if large and _HAS_ONEDNN and x.is_cpu and x.dtype == torch.float32:
        fused = activation if activation in ("relu", "tanh") else ""
        out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
            x, weight, bias, fused or "none", [], ""
        )
        return out if fused == activation else _IN_PLACE[activation](out)
    out = F.linear(x, weight, bias)
    return _IN_PLACE[activation](out) if activation else out


def _weight_gradient(gradient: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return _linear(gradient.t(), x.t(), None)


def _back(
    gradient: torch.Tensor, weight: torch.Tensor, x: torch.Tensor, activation: str
) -> torch.Tensor:
    """From the gradient of a layer's output to that of the layer before, before its activation."""
    return BACKWARD[activation](_linear(gradient, weight.t(), None), x)


class _Dense(torch.autograd.Function):
    """All layers as one node of the graph."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, activation: str, *weights: torch.Tensor) -> torch.Tensor:
        layers = list(zip(weights[::2], weights[1::2], strict=True))
        out, inputs = forward_pass(x, layers, activation)
        ctx.activation = activation
        ctx.save_for_backward(*inputs, *weights[::2])
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        (gradient,) = gradients
        depth = len(ctx.saved_tensors) // 2
        inputs, weights = ctx.saved_tensors[:depth], ctx.saved_tensors[depth:]
        found: list[torch.Tensor | None] = [None] * (2 * depth)
        for number in range(depth - 1, -1, -1):
            if ctx.needs_input_grad[2 + 2 * number]:
                found[2 * number] = _weight_gradient(gradient, inputs[number])
                found[2 * number + 1] = gradient.sum(0)
            if number:
                gradient = _back(gradient, weights[number], inputs[number], ctx.activation)
        wanted = ctx.needs_input_grad[0]
        return _linear(gradient, weights[0].t(), None) if wanted else None, None, *found
