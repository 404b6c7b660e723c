"""The twin critic beside two networks of torch, with kernels and without."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from transition_data import AGENT, NUM_ACTIONS, NUM_OBS

from srl.algorithms.learning.twin_critic import TwinCritic, TwinCriticLearner
from srl.policies.bounded_actor_config import BoundedActorConfig

torch.set_num_threads(1)
WIDTH, ROWS = 8, 16
Data = dict[str, torch.Tensor]


def twins(use_kernels: bool) -> TwinCritic:
    torch.manual_seed(0)
    network = BoundedActorConfig(kernels="auto" if use_kernels else "reference")
    return TwinCritic(AGENT, NUM_ACTIONS, (WIDTH, WIDTH), network)


def separate(critic: TwinCritic) -> list[nn.Sequential]:
    """Two networks of torch with the same weights."""
    networks = []
    for tower, head in zip(critic.towers, critic.heads, strict=True):
        first, second = copy.deepcopy(tower.layers)
        layers = (first, nn.ReLU(), second, nn.ReLU(), copy.deepcopy(head))
        networks.append(nn.Sequential(*layers))
    return networks


@pytest.fixture
def data() -> Data:
    torch.manual_seed(1)
    return {
        "obs": torch.randn(ROWS, NUM_OBS),
        "action": torch.rand(ROWS, NUM_ACTIONS) * 2 - 1,
        "target": torch.randn(ROWS),
        "weight": torch.rand(ROWS),
    }


def learner(critic: TwinCritic, **settings: float) -> TwinCriticLearner:
    wanted = {"learning_rate": 1e-3, "tau": 0.1, **settings}
    return TwinCriticLearner(critic, **wanted)  # type: ignore[arg-type]


@pytest.mark.parametrize("use_kernels", [False, True])
def test_values_and_gradients_are_those_of_two_networks(use_kernels: bool, data: Data) -> None:
    critic = twins(use_kernels)
    networks = separate(critic)
    x = torch.cat([data["obs"], data["action"]], 1)
    expected = torch.stack([network(x).squeeze(1) for network in networks])
    torch.testing.assert_close(critic({"": data["obs"]}, data["action"]), expected)
    own = learner(critic)
    own.follow()
    metrics = own.step({"": data["obs"]}, data["action"], data["target"], data["weight"], 0)
    loss = sum(
        0.5 * (data["weight"] * (value - data["target"]).square()).sum() for value in expected
    )
    assert isinstance(loss, torch.Tensor)
    torch.testing.assert_close(metrics["critic_loss"], loss.detach())
    loss.backward()
    wanted = [[p.grad for p in network.parameters()] for network in networks]
    for number, gradients in enumerate(wanted):
        found = [
            p.grad
            for p in (*critic.towers[number].parameters(), *critic.heads[number].parameters())
        ]
        for one, other in zip(found, gradients, strict=True):
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize("use_kernels", [False, True])
@pytest.mark.parametrize("num_critics", [1, 2])
def test_action_gradient_is_that_of_the_least_value(
    use_kernels: bool, num_critics: int, data: Data
) -> None:
    critic = twins(use_kernels)
    action = data["action"].clone().requires_grad_()
    x = torch.cat([data["obs"], action], 1)
    values = torch.stack([network(x).squeeze(1) for network in separate(critic)[:num_critics]])
    least = values.min(0).values
    (expected,) = torch.autograd.grad(least.sum(), action)
    value, gradient = learner(critic).action_gradient(
        {"": data["obs"]}, data["action"], num_critics
    )
    torch.testing.assert_close(value, least.detach())
    torch.testing.assert_close(gradient, expected)
    assert not gradient.requires_grad
    if num_critics == 2:
        assert 0 < int((values[0] < values[1]).sum()) < ROWS  # Both critics are the lower one.


@pytest.mark.parametrize("use_kernels", [False, True])
def test_target_is_the_smaller_value_of_a_slow_copy(use_kernels: bool, data: Data) -> None:
    critic = twins(use_kernels)
    own, seen = learner(critic, tau=0.25), {"": data["obs"]}
    first = own.target_value(seen, data["action"])
    torch.testing.assert_close(
        first, critic({"": data["obs"]}, data["action"]).min(0).values.detach()
    )
    own.follow()
    before = own.optimizer.flat.clone()
    own.step(seen, data["action"], data["target"], data["weight"], 0)
    assert torch.equal(own.target_value(seen, data["action"]), first)
    own.follow()
    expected = 0.75 * before + 0.25 * own.optimizer.flat
    found = torch.cat([p.flatten() for p in own.target.module.parameters()])
    torch.testing.assert_close(found, expected)


def test_state_and_rollback_are_exact(data: Data) -> None:
    def steps(own: TwinCriticLearner, count: int) -> None:
        for _ in range(count):
            own.follow()
            own.step({"": data["obs"]}, data["action"], data["target"], data["weight"], 0)

    def weights(own: TwinCriticLearner) -> list[torch.Tensor]:
        both = (own.critic, own.target.module)
        return [parameter.clone() for module in both for parameter in module.parameters()]

    own = learner(twins(True))
    steps(own, 3)
    state = own.state()
    own.backup()
    steps(own, 3)
    expected = weights(own)
    own.rollback()
    steps(own, 3)
    torch.manual_seed(5)
    other = learner(TwinCritic(AGENT, NUM_ACTIONS, (WIDTH, WIDTH), BoundedActorConfig()))
    other.restore(state)
    steps(other, 3)
    for found in (weights(own), weights(other)):
        for one, two in zip(found, expected, strict=True):
            assert torch.equal(one, two)
