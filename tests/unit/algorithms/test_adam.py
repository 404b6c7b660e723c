import subprocess
import sys

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
        assert torch.equal(a, b)


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
