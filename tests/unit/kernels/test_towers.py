"""Towers against the same layers, differentiated by torch."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F

from srl.kernels.packed_towers import PackedTowers
from srl.kernels.towers import Layers, run_towers
from srl.policies.nets.mlp import ACTIVATIONS


def layers(*widths: int) -> Layers:
    return [
        (
            (0.5 * torch.randn(n, m, dtype=torch.float64)).requires_grad_(),
            torch.randn(n, dtype=torch.float64, requires_grad=True),
        )
        for m, n in pairwise(widths)
    ]


def reference(x: torch.Tensor, tower: Layers, activation: str) -> torch.Tensor:
    for weight, bias in tower[:-1]:
        x = ACTIVATIONS[activation](F.linear(x, weight, bias))
    return F.linear(x, *tower[-1])


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("inner", [(), (6,), (6, 5, 7)])
def test_outputs_and_gradients_are_those_of_the_layers(
    activation: str, inner: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    towers = [layers(4, *inner, 3), layers(4, *inner[:1], 1)]
    x = torch.randn(9, 4, dtype=torch.float64, requires_grad=True)
    inputs = [x, *(tensor for tower in towers for layer in tower for tensor in layer)]
    ours = run_towers(x, towers, activation)
    expected = [reference(x, tower, activation) for tower in towers]
    factors = [torch.randn_like(out) for out in expected]
    for mine, wanted in zip(ours, expected, strict=True):
        torch.testing.assert_close(mine, wanted)
    found = torch.autograd.grad(ours, inputs, factors)
    for mine, wanted in zip(found, torch.autograd.grad(expected, inputs, factors), strict=True):
        torch.testing.assert_close(mine, wanted)
    with torch.no_grad():
        for mine, wanted in zip(run_towers(x, towers, activation), expected, strict=True):
            torch.testing.assert_close(mine, wanted)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("inner", [(6,), (6, 5, 7)])
def test_packed_towers_are_the_same_functions(activation: str, inner: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    first, second = (
        [layers(4, *inner, 3), layers(4, *inner, 1), layers(4, *inner, 2)] for _ in range(2)
    )
    x = torch.randn(9, 4, dtype=torch.float64)
    packed = PackedTowers(first, activation)
    memory = packed.memory(9)
    memory.seen.copy_(x.t())
    with torch.no_grad():
        for towers in (first, second, first):
            packed.load(towers)
            found = packed(memory).t().split([3, 1, 2], dim=1)
            for mine, tower in zip(found, towers, strict=True):
                torch.testing.assert_close(mine, reference(x, tower, activation))
