import subprocess
import sys

import numpy as np
import pytest
import torch

from srl.algorithms.learning.adam import Adam
from srl.data.tree import flatten
from srl.kernels.adam import has_fused_adam


def test_this_torch_has_the_fused_kernel() -> None:
    assert has_fused_adam(), (
        "torch._fused_adam_ is gone from this torch. Adam then steps by torch.optim.Adam, which "
        "takes seconds longer to start: call the kernel by its new name in srl/kernels/adam.py."
    )


@pytest.mark.parametrize("use_kernels", [False, True])
def test_moves_as_torchs_adam_does(use_kernels: bool) -> None:
    torch.manual_seed(0)
    ours, theirs = torch.nn.Linear(5, 3), torch.nn.Linear(5, 3)
    theirs.load_state_dict(ours.state_dict())
    mine = Adam(ours.parameters(), lr=1e-2, eps=1e-5, weight_decay=1e-3, use_kernels=use_kernels)
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


@pytest.mark.usefixtures("double")
def test_the_kernel_steps_as_torch_does_and_their_states_are_one() -> None:
    torch.manual_seed(0)
    modules = [torch.nn.Linear(5, 3) for _ in range(2)]
    modules[1].load_state_dict(modules[0].state_dict())
    plain, fast = (
        Adam(module.parameters(), lr=1e-2, use_kernels=kernels)
        for module, kernels in zip(modules, (False, True), strict=True)
    )
    for number in range(6):
        gradient = torch.randn_like(plain.grad)
        for adam in (plain, fast):
            adam.lr = 1e-2 / (number + 1)
            adam.grad.copy_(gradient)
            adam.step()
        if number == 2:  # Each goes on with what the other has kept.
            states = plain.state(modules[0]), fast.state(modules[1])
            plain.restore(modules[0], states[1])
            fast.restore(modules[1], states[0])
        if number == 3:
            plain.backup(), plain.step(), plain.rollback()
    torch.testing.assert_close(plain.flat, fast.flat, rtol=1e-5, atol=1e-12)
    found, expected = flatten(fast.state(modules[1])), flatten(plain.state(modules[0]))
    assert found["step"] == expected["step"] == 6
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5)


def test_does_not_import_the_compiler() -> None:
    code = """
import sys, torch
from srl.algorithms.learning.adam import Adam
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
