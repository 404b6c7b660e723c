"""An actor and a critic that share nothing: own memories, own observations, own encoders."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from srl.data.spec import AgentSpec, ArraySpec, Discrete
from srl.data.tree import Tree, leaves, tree_map
from srl.errors import ConfigError
from srl.policies.actor_critic import ActorCritic, ActorCriticConfig
from srl.policies.protocol import PolicyOutput

torch.set_num_threads(1)

TWO_PARTS = {"own": ArraySpec(shape=(3,)), "hidden": {"a": ArraySpec(shape=(2,))}}
TICKS, ROWS = 7, 3


def make(obs: Any = None, **settings: Any) -> ActorCritic:
    torch.manual_seed(0)
    agent = AgentSpec(obs=ArraySpec(shape=(3,)) if obs is None else obs, action=Discrete(4))
    policy = ActorCritic(agent, ActorCriticConfig(**settings))
    # So that what a head reads can be seen in what it says.
    nn.init.orthogonal_(policy.action_head.linear.weight)
    return policy


def observed(spec: Tree, *shape: int) -> Tree:
    return tree_map(lambda leaf: torch.randn(*shape, *leaf.shape), spec)


def act(policy: ActorCritic, obs: Tree, state: Tree, is_first: torch.Tensor) -> PolicyOutput:
    rows = len(is_first)
    with torch.inference_mode():
        generator = torch.Generator().manual_seed(0)
        return policy.act(obs, state, is_first, torch.ones(rows), None, generator)


def unroll(policy: ActorCritic, obs: Tree) -> tuple[torch.Tensor, torch.Tensor]:
    """Log probabilities of action 0, and values, [ticks, rows]."""
    ticks, rows = leaves(obs)[0].shape[:2]
    state = tree_map(lambda spec: torch.zeros(rows, *spec.shape), policy.state_spec)
    none = torch.zeros(ticks, rows, dtype=torch.bool)
    found = policy.unroll(obs, state, none, ~none)
    return found.distribution.log_prob(none.long()), found.value


@pytest.mark.parametrize("kernels", ["auto", "reference"])
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_unroll_repeats_what_acting_saw(kind: Any, kernels: Any) -> None:
    policy = make(recurrent=kind, recurrent_size=8, shared=False, kernels=kernels)
    assert set(policy.state_spec) == {"actor", "critic"}
    obs = torch.randn(TICKS, ROWS, 3)
    is_first = torch.rand(TICKS, ROWS) < 0.3
    active = torch.rand(TICKS, ROWS) < 0.7
    start = tree_map(lambda spec: torch.randn(ROWS, *spec.shape), policy.state_spec)
    state, values, log_probs, actions = start, [], [], []
    for t in range(TICKS):
        found = act(policy, obs[t], state, is_first[t])

        def kept(old: torch.Tensor, new: torch.Tensor, tick: int = t) -> torch.Tensor:
            return torch.where(active[tick, :, None], new, old * ~is_first[tick, :, None])

        state = tree_map(kept, state, found.policy_state)
        values.append(found.extras["value"])
        log_probs.append(found.extras["log_prob"])
        actions.append(found.action)
    unrolled = policy.unroll(obs, start, is_first, active)
    torch.testing.assert_close(unrolled.value[active], torch.stack(values)[active])
    log_prob = unrolled.distribution.log_prob(torch.stack(actions))
    torch.testing.assert_close(log_prob[active], torch.stack(log_probs)[active])
    torch.testing.assert_close(unrolled.policy_state, state)


@pytest.mark.parametrize("recurrent", ["none", "lstm"])
def test_neither_changes_the_other(recurrent: Any) -> None:
    policy = make(recurrent=recurrent, shared=False)
    obs = torch.randn(TICKS, ROWS, 3)
    log_prob, value = unroll(policy, obs)
    memory = {"core"} if recurrent != "none" else set()
    log_prob.sum().backward(retain_graph=True)  # type: ignore[no-untyped-call]
    assert with_gradient(policy) == {"encoder", "action_head"} | memory
    policy.zero_grad()
    value.sum().backward()  # type: ignore[no-untyped-call]
    memory = {f"value_{name}" for name in memory}
    assert with_gradient(policy) == {"value_encoder", "value_head"} | memory


def with_gradient(policy: ActorCritic) -> set[str]:
    """The parts with a gradient that is not zero."""
    return {
        name.split(".")[0]
        for name, parameter in policy.named_parameters()
        if parameter.grad is not None and parameter.grad.abs().sum() > 0
    }


@pytest.mark.parametrize("recurrent", ["none", "gru"])
def test_actor_and_critic_may_see_different_parts(recurrent: Any) -> None:
    policy = make(TWO_PARTS, recurrent=recurrent, actor_obs=("own",), normalize_obs=True)
    obs = observed(TWO_PARTS, TICKS, ROWS)
    log_prob, value = unroll(policy, obs)
    for part, for_actor, for_critic in (("own", True, True), ("hidden", False, True)):
        other = {**obs, part: observed(TWO_PARTS[part], TICKS, ROWS)}
        new_log_prob, new_value = unroll(policy, other)
        assert torch.equal(new_log_prob, log_prob) is not for_actor
        assert torch.equal(new_value, value) is not for_critic


def test_a_critic_may_be_kept_from_a_part() -> None:
    policy = make(TWO_PARTS, critic_obs=("hidden.a",))
    obs = observed(TWO_PARTS, TICKS, ROWS)
    before = unroll(policy, obs)
    after = unroll(policy, {**obs, "own": torch.randn(TICKS, ROWS, 3)})
    assert torch.equal(after[1], before[1])
    assert not torch.equal(after[0], before[0])
    assert policy.manual_gradients is None


def test_unknown_parts_are_named() -> None:
    with pytest.raises(ConfigError, match=r"network\.actor_obs: .*\(hidden\.a, own\), got 'owm'"):
        make(TWO_PARTS, actor_obs=("owm",))
    with pytest.raises(ConfigError, match=r"network\.critic_obs: .*single array\), got 'own'"):
        make(critic_obs=("own",))


class Scaled(nn.Module):
    """An encoder of a user: the observation times a factor, then a layer."""

    def __init__(self, obs: Tree, factor: float = 1.0, width: int = 5) -> None:
        super().__init__()
        self.factor = factor
        self.layer = nn.Linear(obs.shape[0], width)
        self.num_outputs = width

    def forward(self, flat_obs: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.layer(flat_obs[""] * self.factor)  # type: ignore[no-any-return]


class Widthless(nn.Module):
    """It does not say how wide its features are."""

    def __init__(self, obs: Tree) -> None:
        super().__init__()


HERE = f"{__file__}:"


def test_an_encoder_is_found_by_its_path() -> None:
    policy = make(encoder=f"{HERE}Scaled", encoder_args={"factor": 2.0})
    assert (policy.encoder.factor, policy.encoder.num_outputs) == (2.0, 5)
    assert policy.value_encoder is not None
    assert policy.value_encoder.factor == 2.0
    shared = make(encoder=f"{HERE}Scaled", recurrent="lstm")
    assert shared.value_encoder is None


@pytest.mark.parametrize("recurrent", ["none", "lstm"])
def test_a_critic_has_an_encoder_of_its_own(recurrent: Any) -> None:
    policy = make(
        encoder=f"{HERE}Scaled",
        encoder_args={"width": 6},
        critic_encoder_args={"factor": 3.0},
        recurrent=recurrent,
    )
    assert policy.value_encoder is not None
    assert (policy.encoder.factor, policy.value_encoder.factor) == (1.0, 3.0)
    assert policy.value_encoder.num_outputs == 6
    other = make(critic_encoder=f"{HERE}Scaled", recurrent=recurrent)
    assert isinstance(other.value_encoder, nn.Module)
    assert other.value_encoder.num_outputs == 5
    for one in (policy, other):
        log_prob, value = unroll(one, torch.randn(TICKS, ROWS, 3))
        assert log_prob.shape == value.shape == (TICKS, ROWS)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"encoder": "atention"}, r"network\.encoder: expected auto, .*or an import path"),
        ({"encoder_args": {"width": 3}}, r"network\.encoder_args: expected none for .* auto"),
        ({"critic_encoder_args": {"width": 3}}, r"network\.critic_encoder_args: expected none"),
        ({"encoder": f"{HERE}HERE"}, r"network\.encoder: expected a subclass of torch\.nn\.Module"),
        ({"encoder": f"{HERE}Widthless"}, r"Widthless with an attribute `num_outputs`"),
        ({"encoder": f"{HERE}Scaled", "encoder_args": {"depth": 1}}, r"raised TypeError: .*depth"),
        ({"shared": True, "critic_obs": ("own",)}, r"network\.shared: expected false or unset"),
    ],
)
def test_wrong_encoders_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(**settings)
