"""Networks as one node of the graph, beside the same layers of torch."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from srl.kernels.dense import has_onednn_linear, run_dense
from srl.policies.nets.config import Activation
from srl.policies.nets.mlp import MLP


def network(width: int, activation: Activation) -> tuple[MLP, nn.Linear, list[nn.Parameter]]:
    torch.manual_seed(0)
    hidden, head = MLP(5, (width, width), activation), nn.Linear(width, 2)
    hidden.use_kernels = False
    return hidden, head, [*hidden.parameters(), *head.parameters()]


def test_this_torch_has_the_products_of_onednn() -> None:
    assert has_onednn_linear(), (
        "torch.ops.mkldnn._linear_pointwise is gone from this torch. Layers then run by torch's "
        "default: find the operation's new name for srl/kernels/dense.py."
    )


@pytest.mark.parametrize("activation", ["relu", "tanh", "elu"])
@pytest.mark.parametrize(
    ("width", "dtype"), [(7, torch.float64), (7, torch.float32), (128, torch.float32)]
)
def test_equals_the_layers_of_torch(activation: Activation, width: int, dtype: torch.dtype) -> None:
    hidden, head, parameters = network(width, activation)
    hidden.to(dtype), head.to(dtype)
    x = torch.randn(256, 5, dtype=dtype, requires_grad=True)  # Enough rows for oneDNN.
    layers = [*hidden.in_order, (head.weight, head.bias)]
    found, expected = run_dense(x, layers, activation), head(hidden(x))
    close = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {}
    torch.testing.assert_close(found, expected, **close)
    with torch.no_grad():
        torch.testing.assert_close(run_dense(x, layers, activation), expected, **close)
    of = torch.randn_like(expected)
    wanted = [x, *parameters]
    for one, other in zip(
        torch.autograd.grad(found, wanted, of),
        torch.autograd.grad(expected, wanted, of),
        strict=True,
    ):
        torch.testing.assert_close(one, other, **close)


def test_frozen_weights_get_no_gradient() -> None:
    hidden, head, parameters = network(7, "relu")
    layers = [(w.detach(), b.detach()) for w, b in (*hidden.in_order, (head.weight, head.bias))]
    x = torch.randn(4, 5, requires_grad=True)
    run_dense(x, layers, "relu").sum().backward()
    (expected,) = torch.autograd.grad(head(hidden(x)).sum(), x)
    torch.testing.assert_close(x.grad, expected)
    assert all(parameter.grad is None for parameter in parameters)
