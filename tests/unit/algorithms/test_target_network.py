"""The target network: when it moves, how far, and what a checkpoint or a rollback restores."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from srl.algorithms.learning.adam import Adam
from srl.algorithms.learning.target_network import TargetNetwork
from srl.errors import CheckpointError
from srl.policies.nets.norm import RunningNorm


def module(weight: float) -> nn.Linear:
    """One weight and one bias, both of this value."""
    made = nn.Linear(1, 1)
    fill(made, weight)
    return made


def fill(module: nn.Module, value: float) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(value)


def test_a_hard_copy_is_made_every_n_steps() -> None:
    online = module(0.0)
    target = TargetNetwork(online, every=3)
    seen = []
    for step in range(7):
        fill(online, float(step))
        target.step()
        seen.append(target.module.weight.item())
    assert seen == [0.0, 0.0, 0.0, 3.0, 3.0, 3.0, 6.0]


def test_a_soft_update_moves_by_tau_of_the_difference() -> None:
    online = module(1.0)
    target = TargetNetwork(online, tau=0.25)
    target.step()
    fill(online, 2.0)
    target.step()
    assert target.module.weight.item() == pytest.approx(1.25)
    target.step()
    assert target.module.bias.item() == pytest.approx(1.4375)


def test_the_first_step_copies_weights_that_were_loaded_later() -> None:
    online = module(0.0)
    target = TargetNetwork(online, tau=0.005)
    online.load_state_dict(module(5.0).state_dict())
    target.step()
    assert target.module.weight.item() == 5.0


def test_buffers_are_copied_even_in_soft_updates() -> None:
    norm = RunningNorm((2,))
    target = TargetNetwork(nn.Sequential(norm, module(1.0)), tau=0.1)
    target.step()
    norm.track(torch.tensor([[1.0, 2.0], [3.0, 6.0]]))
    assert target.module.state_dict()["0.mean"].tolist() == [0.0, 0.0]
    target.step()
    assert target.module.state_dict()["0.mean"].tolist() == [2.0, 4.0]


def test_an_optimizer_with_flat_parameters_does_not_move_the_copy() -> None:
    online = module(1.0)
    optimizer = Adam(online.parameters(), lr=0.1)
    target = TargetNetwork(online, every=10)
    target.step()
    online(torch.ones(1, 1)).sum().backward()
    optimizer.step()
    assert online.weight.item() != 1.0
    assert target.module.weight.item() == 1.0
    assert not any(parameter.requires_grad for parameter in target.module.parameters())


@pytest.mark.parametrize("tau", [1.0, 0.5])
def test_a_rollback_restores_weights_and_count(tau: float) -> None:
    online = module(1.0)
    target = TargetNetwork(online, tau=tau, every=2)
    target.step()
    target.backup()
    for value in (2.0, 3.0, 4.0):
        fill(online, value)
        target.step()
    assert target.module.weight.item() != 1.0
    target.rollback()
    assert (target.module.weight.item(), target.num_steps) == (1.0, 1)
    # A second rollback, or one without a change before it, changes nothing.
    target.step()
    target.backup()
    target.rollback()
    assert (target.module.weight.item(), target.num_steps) == (1.0, 2)


def test_a_restored_target_continues_where_it_was() -> None:
    online = module(1.0)
    target = TargetNetwork(online, every=4)
    for value in (1.0, 2.0, 3.0):
        fill(online, value)
        target.step()
    other = TargetNetwork(module(9.0), every=4)
    other.restore(target.state())
    assert (other.module.weight.item(), other.num_steps) == (1.0, 3)
    other.step()
    assert other.module.weight.item() == 1.0
    other.step()
    assert other.module.weight.item() == 9.0


def test_a_state_of_another_network_is_refused() -> None:
    state = TargetNetwork(module(1.0)).state()
    with pytest.raises(CheckpointError, match=r"weight: expected shape \[1, 2\], got \[1, 1\]"):
        TargetNetwork(nn.Linear(2, 1)).restore(state)
