import subprocess
import sys

import pytest
import torch

from srl.algorithms.adam import Adam


def test_moves_as_torchs_adam_does() -> None:
    torch.manual_seed(0)
    ours, theirs = torch.nn.Linear(5, 3), torch.nn.Linear(5, 3)
    theirs.load_state_dict(ours.state_dict())
    mine = Adam(ours.parameters(), lr=1e-2, eps=1e-5, weight_decay=1e-3)
    reference = torch.optim.Adam(
        theirs.parameters(), lr=1e-2, eps=1e-5, weight_decay=1e-3, fused=True
    )
    for _ in range(20):
        x = torch.randn(7, 5)
        for module, optimizer in ((ours, mine), (theirs, reference)):
            optimizer.zero_grad()
            module(x).square().sum().backward()
            optimizer.step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


def test_does_not_import_the_compiler() -> None:
    code = """
import sys, torch
from srl.algorithms.adam import Adam
module = torch.nn.Linear(2, 2)
adam = Adam(module.parameters(), lr=0.1)
module(torch.zeros(1, 2)).sum().backward()
adam.step()
adam.zero_grad()
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_clips_as_torch_does_and_says_how_long_the_gradient_was() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.Linear(3, 2))
    adam = Adam(module.parameters(), lr=0.1)
    module(torch.ones(4, 5)).sum().backward()
    copies = [p.detach().clone().requires_grad_() for p in module.parameters()]
    for copy, parameter in zip(copies, module.parameters(), strict=True):
        assert parameter.grad is not None
        copy.grad = parameter.grad.clone()
    norm = torch.nn.utils.clip_grad_norm_(copies, 0.5)
    assert adam.clip(None) == pytest.approx(float(norm))
    assert adam.clip(0.5) == pytest.approx(float(norm))
    for copy, parameter in zip(copies, module.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, copy.grad)
    assert adam.clip(0.5) == pytest.approx(0.5, rel=1e-4)


def test_parameters_keep_their_memory_format() -> None:
    layer = torch.nn.Conv2d(4, 8, 3).to(memory_format=torch.channels_last)
    weight = layer.weight.detach().clone()
    Adam(layer.parameters(), lr=0.1)
    assert torch.equal(layer.weight, weight)
    assert layer.weight.is_contiguous(memory_format=torch.channels_last)
    assert layer.weight.grad is not None
    assert layer.weight.grad.stride() == layer.weight.stride()
