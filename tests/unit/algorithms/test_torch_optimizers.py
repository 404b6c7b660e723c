"""PPO with optimizers of torch: they learn, are saved, restored and taken back like our own."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from ppo_data import AGENT, random_batch

from srl.algorithms.learning.adam import Adam
from srl.algorithms.ppo.config import PPOConfig
from srl.algorithms.ppo.learner import PPO
from srl.data.codec import dump_state, parse_state
from srl.data.tree import flatten
from srl.errors import CheckpointError, ConfigError
from srl.policies.actor_critic import ActorCritic
from srl.policies.actor_critic_config import ActorCriticConfig

Make = Callable[[ActorCritic], Any]


def two_groups(policy: ActorCritic) -> torch.optim.Optimizer:
    *body, last = policy.parameters()
    groups = [{"params": body}, {"params": [last], "lr": 1e-4, "momentum": 0.5}]
    return torch.optim.SGD(groups, lr=1e-2, momentum=0.9)


def of_torch(name: str, policy: ActorCritic) -> torch.optim.Optimizer:
    made: torch.optim.Optimizer = getattr(torch.optim, name)(policy.parameters(), lr=1e-3)
    return made


OPTIMIZERS: dict[str, Make] = {
    name: functools.partial(of_torch, name)
    for name in (
        "ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam",
        "RMSprop", "Rprop", "SGD",
    )
}  # fmt: skip
OPTIMIZERS |= {
    "groups": two_groups,
    "centered": lambda policy: torch.optim.RMSprop(
        policy.parameters(), lr=1e-3, centered=True, momentum=0.9
    ),
    "fused": lambda policy: torch.optim.AdamW(policy.parameters(), lr=1e-3, fused=True),
    "some": lambda policy: torch.optim.Muon([p for p in policy.parameters() if p.ndim == 2]),
    "ours": lambda policy: Adam(policy.parameters(), lr=1e-3),
}


def make(optimizer: Make, **settings: Any) -> PPO:
    class Own(PPO):
        def make_optimizer(self) -> Any:
            assert isinstance(self.policy, ActorCritic)
            return optimizer(self.policy)

    torch.manual_seed(0)
    policy = ActorCritic(
        AGENT, ActorCriticConfig(hidden_sizes=(8, 8), normalize_obs=True, normalize_returns=False)
    )
    config = PPOConfig(rollout_length=16, learning_rate_schedule="linear", **settings)
    return Own(policy, config, seed=3)


def learn(algorithm: PPO, seed: int) -> dict[str, float]:
    *_, result = algorithm.update(random_batch(algorithm, seed), seed / 10)
    assert result is not None
    return result.metrics


def everything(algorithm: PPO) -> dict[str, Any]:
    state = flatten(parse_state(dump_state({"state": algorithm.state()})))
    weights = {name: t.numpy().copy() for name, t in algorithm.policy.state_dict().items()}
    return {**weights, **state}


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for key in one:
        np.testing.assert_array_equal(one[key], other[key], err_msg=key)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("updates", [0, 2])
def test_a_restored_optimizer_goes_on_bit_by_bit(name: str, updates: int) -> None:
    algorithm = make(OPTIMIZERS[name])
    start = everything(algorithm)
    for seed in range(updates):
        learn(algorithm, seed)
    saved = dump_state(algorithm.state())
    weights = copy.deepcopy(algorithm.policy.state_dict())
    again = make(OPTIMIZERS[name])
    learn(again, 9)
    again.policy.load_state_dict(weights)
    again.restore(parse_state(saved))
    for seed in (3, 4):
        assert learn(again, seed) == learn(algorithm, seed)
    assert_same(everything(algorithm), everything(again))
    changed = [key for key, value in everything(algorithm).items() if "net" in key or "head" in key]
    assert any(not np.array_equal(everything(algorithm)[key], start.get(key)) for key in changed)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("updates", [0, 2])
def test_an_update_can_be_undone(name: str, updates: int) -> None:
    algorithm = make(OPTIMIZERS[name])
    for seed in range(updates):
        learn(algorithm, seed)
    before = everything(algorithm)
    algorithm.backup()
    expected = learn(algorithm, 3)
    after = everything(algorithm)
    for _ in range(2):
        algorithm.rollback()
        assert_same({**everything(algorithm), **rates(before)}, before)
        assert learn(algorithm, 3) == expected
        assert_same(everything(algorithm), after)


def rates(state: dict[str, Any]) -> dict[str, Any]:
    """Learning rates: the schedule sets them at the start of each update."""
    return {key: value for key, value in state.items() if key.endswith(".lr")}


def test_torchs_adam_learns_as_ours() -> None:
    ours, theirs = make(OPTIMIZERS["ours"], learning_rate=1e-3), make(OPTIMIZERS["Adam"])
    for seed in range(3):
        learn(ours, seed)
        learn(theirs, seed)
    for mine, other in zip(ours.policy.parameters(), theirs.policy.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-5)


def test_the_schedule_scales_the_learning_rate_of_every_group() -> None:
    algorithm = make(two_groups, learning_rate=3e-4)
    metrics = learn(algorithm, 5)
    groups = algorithm.optimizer.optimizer.param_groups  # type: ignore[attr-defined]
    assert [group["lr"] for group in groups] == pytest.approx([5e-3, 5e-5])
    assert metrics["learning_rate"] == pytest.approx(5e-3)


def test_parameters_that_an_optimizer_leaves_out_stay() -> None:
    algorithm = make(OPTIMIZERS["some"])
    before = [p.detach().clone() for p in algorithm.policy.parameters()]
    learn(algorithm, 0)
    for was, now in zip(before, algorithm.policy.parameters(), strict=True):
        assert torch.equal(was, now) == (now.ndim != 2)


@pytest.mark.parametrize(
    ("optimizer", "words"),
    [
        (lambda policy: None, "got NoneType"),
        (lambda policy: torch.optim.LBFGS(policy.parameters()), "got LBFGS"),
        (lambda policy: torch.optim.SparseAdam(policy.parameters()), "got SparseAdam"),
        (lambda policy: torch.optim.SGD([torch.nn.Parameter(torch.ones(2))]), "with others"),
        (lambda policy: Adam([torch.nn.Parameter(torch.ones(2))], lr=0.1), "with others"),
        (lambda policy: Adam(list(policy.parameters())[1:], lr=0.1), "got it without"),
    ],
)
def test_what_cannot_work_is_refused(optimizer: Make, words: str) -> None:
    with pytest.raises(ConfigError, match=f"make_optimizer: expected .*{words}"):
        make(optimizer)


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("RMSprop", "SGD", "state of SGD, got one of RMSprop"),
        ("ours", "SGD", "state of SGD, got one of Adam"),
        ("RMSprop", "ours", "state of Adam, got one of RMSprop"),
        ("SGD", "groups", "2 groups of parameters, got one with 1"),
    ],
)
def test_a_state_of_another_optimizer_is_refused(before: str, after: str, words: str) -> None:
    algorithm = make(OPTIMIZERS[before])
    learn(algorithm, 0)
    with pytest.raises(CheckpointError, match=words):
        make(OPTIMIZERS[after]).restore(algorithm.state())
