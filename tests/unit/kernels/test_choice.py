"""`network.kernels`: every network computes the same with kernels as with modules of torch and
autograd, and what is saved with one continues with the other."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch

from srl.algorithms.ppo.config import PPOConfig
from srl.algorithms.ppo.fast import fast_surrogate
from srl.algorithms.ppo.learner import PPO
from srl.algorithms.ppo.rollout import Minibatch
from srl.algorithms.ppo.surrogate import surrogate
from srl.data.codec import dump_state, parse_state
from srl.data.spec import (
    ActionSpec,
    AgentSpec,
    ArraySpec,
    Box,
    Discrete,
    MultiBinary,
    MultiDiscrete,
    mask_size,
)
from srl.data.tree import Tree, flatten, tree_map
from srl.errors import ConfigError
from srl.policies.actor_critic import ActorCritic
from srl.policies.actor_critic_config import ActorCriticConfig
from srl.policies.nets.encoder import Encoder

VECTOR = ArraySpec(shape=(3,))
NESTED = {"pose": VECTOR, "kind": ArraySpec(shape=(2,), dtype="int64", categories=(2, 3))}
IMAGE = ArraySpec(shape=(7, 7, 3), dtype="uint8")
NORMALISED = {"normalize_obs": True, "normalize_returns": True}
LSTM = {"recurrent": "lstm", "recurrent_size": 5}
NETWORKS: dict[str, tuple[Any, dict[str, Any]]] = {
    "tanh": (VECTOR, {"normalize_returns": False}),
    "relu": (VECTOR, {"activation": "relu", **NORMALISED}),
    "elu": (VECTOR, {"activation": "elu", "normalize_obs": True}),
    "one layer": (VECTOR, {"hidden_sizes": (6,)}),
    "no layer": (VECTOR, {"hidden_sizes": ()}),
    "nested": (NESTED, NORMALISED),
    "lstm": (VECTOR, {**LSTM, **NORMALISED}),
    "lstm relu": (NESTED, {**LSTM, "activation": "relu"}),
    "lstm image": (IMAGE, {**LSTM, "image_features": 6}),
}
"""All networks that `fast` takes."""
ACTIONS: dict[str, ActionSpec] = {
    "choice": Discrete(4),
    "choices": MultiDiscrete((2, 3)),
    "switches": MultiBinary(2),
    "vector": Box(shape=(2,), low=(-1.0, -math.inf), high=(1.0, math.inf)),
    "scalar": Box(shape=(), low=(0.0,), high=(1.0,)),
    "matrix": Box(shape=(2, 2), low=(-1.0,) * 4, high=(1.0,) * 4),
}
TICKS, ROWS = 6, 5
KINDS = ("reference", "fast")


def policies(network: str, action: str, seed: int = 0) -> tuple[ActorCritic, ActorCritic]:
    """The same weights and statistics twice: without kernels, and with them."""
    obs, settings = NETWORKS[network]
    agent = AgentSpec(
        obs=obs, action=ACTIONS[action], has_action_mask=not isinstance(ACTIONS[action], Box)
    )
    torch.manual_seed(seed)
    given = {"hidden_sizes": (6, 4), "initial_log_std": -0.3, **settings}
    plain, fast = (ActorCritic(agent, ActorCriticConfig(kernels=k, **given)) for k in KINDS)
    for parameter in plain.parameters():
        parameter.data.add_(0.3 * torch.randn_like(parameter))
    plain.track_returns(torch.tensor([3.0, 8.0, -1.0]))
    plain.track_obs(observations(plain, TICKS, ROWS), torch.ones(TICKS, ROWS, dtype=torch.bool))
    fast.load_state_dict(plain.state_dict())
    return plain, fast


def observations(policy: ActorCritic, *shape: int) -> Tree:
    def make(spec: ArraySpec) -> torch.Tensor:
        if spec.categories:
            return torch.stack([torch.randint(0, n, shape) for n in spec.categories], -1)
        if spec.dtype == "uint8":
            return torch.randint(0, 256, (*shape, *spec.shape), dtype=torch.uint8)
        return 2.0 * torch.randn(*shape, *spec.shape)

    return tree_map(make, policy.agent.obs)


def masks(policy: ActorCritic, *shape: int) -> torch.Tensor | None:
    """Some choices are not allowed, never the first of a part."""
    action = policy.agent.action
    if policy.agent.action_mask is None:
        return None
    mask = torch.rand(*shape, mask_size(action)) < 0.7
    match action:
        case Discrete():
            mask[..., 0] = True
        case MultiDiscrete((first, _)):
            mask[..., 0] = mask[..., first] = True
        case _:
            mask[..., ::2] = True
    return mask


def states(policy: ActorCritic) -> Tree:
    return tree_map(lambda spec: torch.randn(ROWS, *spec.shape), policy.state_spec)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("network", NETWORKS)
def test_policies_act_the_same(network: str, action: str) -> None:
    plain, fast = policies(network, action)
    explore, is_first = torch.linspace(0, 1, ROWS), torch.rand(ROWS) < 0.5
    for number in range(2):
        if number:  # Newer weights.
            torch.nn.init.normal_(plain.action_head.linear.bias)
            fast.load_state_dict(plain.state_dict())
        given = (observations(plain, ROWS), states(plain), is_first, explore, masks(plain, ROWS))
        with torch.inference_mode():
            fast.pack()
            expected, found = (
                policy.act(*given, torch.Generator().manual_seed(3)) for policy in (plain, fast)
            )
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("value_clip", [None, 0.1])
def test_ppo_finds_the_same_gradients(network: str, action: str, value_clip: float | None) -> None:
    plain, fast = policies(network, action)
    config = PPOConfig(value_clip=value_clip, clip=0.1)
    expected, found = (PPO(policy, config) for policy in (plain, fast))
    assert (expected._manual, expected._surrogate) == (None, surrogate)
    assert found._surrogate is fast_surrogate
    known = network.startswith("lstm"), action not in ("choice", "vector")
    assert (found._manual is None) is any(known)
    minibatch = make_minibatch(plain)
    copies = copy.deepcopy(minibatch), minibatch
    (loss, terms), (other_loss, other_terms) = (
        ppo._find_gradients(part) for ppo, part in zip((expected, found), copies, strict=True)
    )
    assert float(expected.optimizer.grad.abs().max()) > 1e-3
    assert set(terms) == set(other_terms)
    torch.testing.assert_close(
        (other_loss, found.optimizer.grad, [other_terms[name] for name in terms]),
        (loss, expected.optimizer.grad, list(terms.values())),
        rtol=1e-5,
        atol=1e-8,
    )


def make_minibatch(policy: ActorCritic) -> Minibatch:
    """Samples of this policy and of an older one; with memory, ticks at which rows start or
    rest."""
    ticks, rows = (TICKS, ROWS) if policy.core else (1, TICKS * ROWS)
    active = torch.rand(ticks, rows) < 0.8 if policy.core else torch.ones(ticks, rows).bool()
    is_first = torch.rand(ticks, rows) < 0.3
    obs, mask = observations(policy, ticks, rows), masks(policy, ticks, rows)
    state = states(policy)
    with torch.no_grad():
        found = policy.unroll(obs, state, is_first, active, mask)
        action = found.distribution.sample(torch.Generator().manual_seed(1))
        log_prob = found.distribution.log_prob(action)[active]
    value = found.value[active]
    num = len(value)
    return Minibatch(
        obs=obs,
        policy_state=state,
        is_first=is_first,
        active=active,
        action_mask=mask,
        burn_in=0,
        all_action=action,
        valid=active if policy.core else None,
        log_prob=log_prob + 0.2 * torch.randn(num),
        value=value + 0.2 * torch.randn(num),
        advantage=torch.randn(num),
        target=value + torch.randn(num),
        samples=torch.arange(num),
        index=torch.arange(ticks * rows).view(ticks, rows),
        behaviour_log_prob=log_prob + 0.1 * torch.randn(num),
        first_use=(torch.rand(num) < 0.5).to(log_prob.dtype),
    )


@pytest.mark.parametrize("settings", [{}, {"recurrent": "lstm"}])
@pytest.mark.parametrize("order", [("fast", "reference"), ("reference", "fast")])
def test_what_is_saved_with_one_continues_with_the_other(
    settings: dict[str, Any], order: tuple[str, str]
) -> None:
    """Names, shapes, and the numbers that follow; the optimizer's state included."""

    def make(kernels: str) -> PPO:
        torch.manual_seed(0)
        agent = AgentSpec(obs=VECTOR, action=Discrete(4), has_action_mask=True)
        given: Any = {"hidden_sizes": (8,), "kernels": kernels, **settings}
        policy = ActorCritic(agent, ActorCriticConfig(**given))
        return PPO(policy, PPOConfig(rollout_length=8), seed=3)

    def step(algorithm: PPO) -> None:
        policy = algorithm.policy
        assert isinstance(policy, ActorCritic)
        torch.manual_seed(algorithm.num_updates)
        algorithm._step(make_minibatch(policy))
        algorithm.num_updates += 1

    first = make(order[0])
    for _ in range(3):
        step(first)
    second = make(order[1])
    second.policy.load_state_dict(first.policy.state_dict())
    second.restore(parse_state(dump_state({"state": first.state()}))["state"])
    for _ in range(3):
        step(first), step(second)
    assert list(first.policy.state_dict()) == list(second.policy.state_dict())
    torch.testing.assert_close(
        second.policy.state_dict(), first.policy.state_dict(), rtol=1e-3, atol=1e-5
    )
    expected, found = (flatten(algorithm.state()) for algorithm in (first, second))
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-2, atol=1e-5)


class Own(ActorCritic):
    def make_encoder(self) -> Encoder:
        class Other(Encoder):
            pass

        return Other(self.agent.obs, (4,), "tanh", 4)


@pytest.mark.parametrize(
    ("kind", "obs", "settings", "got"),
    [
        (ActorCritic, IMAGE, {"shared": False}, "got images"),
        (ActorCritic, IMAGE, {}, "got images"),
        (ActorCritic, VECTOR, {"shared": True}, r"share their layers \(network\.shared\)"),
        (ActorCritic, VECTOR, {"recurrent": "gru"}, r"got network\.recurrent=gru"),
        (Own, VECTOR, {}, "got an encoder of type Other"),
    ],
)
def test_fast_says_why_it_cannot_serve_a_network(
    kind: type[ActorCritic], obs: Any, settings: dict[str, Any], got: str
) -> None:
    agent = AgentSpec(obs=obs, action=Discrete(2))
    kind(agent, ActorCriticConfig(**settings))
    with pytest.raises(ConfigError, match=rf"^network\.kernels: .*{got}.*kernels=auto"):
        kind(agent, ActorCriticConfig(kernels="fast", **settings))


def test_an_own_unroll_is_not_bypassed() -> None:
    class Scaled(ActorCritic):
        def unroll(self, *args: Any, **kwargs: Any) -> Any:
            found = super().unroll(*args, **kwargs)
            return found._replace(value=2 * found.value)

    policy = Scaled(AgentSpec(obs=VECTOR, action=Discrete(2)), ActorCriticConfig())
    assert policy.manual_gradients is None
