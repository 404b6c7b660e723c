"""The actor-critic over all spaces: what it answers, and that training sees what acting saw."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from srl.algorithms.learning.adam import Adam
from srl.data.spec import (
    ActionSpec,
    AgentSpec,
    ArraySpec,
    Box,
    Discrete,
    MultiBinary,
    MultiDiscrete,
    action_array,
    mask_size,
)
from srl.data.tree import tree_map
from srl.errors import CheckpointError, ConfigError
from srl.policies.actor_critic import ActorCritic, ActorCriticConfig
from srl.policies.nets.cnn import CNN, image_layout
from srl.policies.nets.encoder import Encoder, ObsNorm
from srl.policies.nets.norm import RunningNorm
from srl.policies.random import RandomPolicy
from srl.policies.registry import find_policy
from srl.workers.wiring import load_weights

torch.set_num_threads(1)

VECTOR = ArraySpec(shape=(3,))
BOX = Box(shape=(2,), low=(-1.0, -math.inf), high=(1.0, math.inf))
ACTIONS: list[ActionSpec] = [
    Discrete(3),
    MultiDiscrete((2, 3)),
    MultiBinary(2),
    BOX,
    Box(shape=(), low=(0.0,), high=(1.0,)),
    Box(shape=(2, 2), low=(-1.0,) * 4, high=(1.0,) * 4),
]
OBSERVATIONS: dict[str, Any] = {
    "vector": VECTOR,
    "scalar": ArraySpec(dtype="float64"),
    "stacked vector": ArraySpec(shape=(3,), stack=4),
    "bytes": ArraySpec(shape=(128,), dtype="uint8"),
    "atari": ArraySpec(shape=(84, 84), dtype="uint8", stack=4),
    "rgb last": ArraySpec(shape=(64, 48, 3), dtype="uint8"),
    "rgb first": ArraySpec(shape=(3, 40, 48), dtype="uint8"),
    "stacked rgb": ArraySpec(shape=(20, 20, 3), dtype="uint8", stack=2),
    "small image": ArraySpec(shape=(7, 7, 3), dtype="uint8"),
    "board": ArraySpec(shape=(6, 7, 2), dtype="int8"),
    "tiny board": ArraySpec(shape=(3, 3, 2), dtype="int8"),
    "category": ArraySpec(dtype="int64", categories=(5,)),
    "categories": ArraySpec(shape=(2,), dtype="int64", categories=(2, 3)),
    "nested": {"camera": {"left": ArraySpec(shape=(8, 8, 3), dtype="uint8")}, "pose": VECTOR},
}


def fake_obs(spec: Any, *leading: int) -> Any:
    def leaf(spec: ArraySpec) -> torch.Tensor:
        dtype = getattr(torch, spec.dtype)
        if spec.categories:
            most = torch.tensor(spec.categories * spec.stack).reshape(spec.seen_shape)
            return (torch.rand(*leading, *spec.seen_shape) * most).to(dtype)
        return (torch.rand(*leading, *spec.seen_shape) * 100).to(dtype)

    return tree_map(leaf, spec)


def act(policy: Any, obs: Any, rows: int, **given: Any) -> Any:
    state = tree_map(lambda spec: torch.zeros(rows, *spec.shape), policy.state_spec)
    wanted = {
        "policy_state": state,
        "is_first": torch.zeros(rows, dtype=torch.bool),
        "explore": torch.ones(rows),
        "action_mask": None,
        "generator": torch.Generator().manual_seed(0),
        **given,
    }
    with torch.inference_mode():
        return policy.act(obs, **wanted)


@pytest.mark.parametrize("action", ACTIONS, ids=str)
@pytest.mark.parametrize("kind", [ActorCritic, RandomPolicy])
def test_actions_are_as_the_spec_stores_them(kind: Any, action: ActionSpec) -> None:
    policy = kind(AgentSpec(obs=VECTOR, action=action), kind.Config())
    found = act(policy, fake_obs(VECTOR, 5), 5)
    stored = action_array(action)
    assert found.action.shape == (5, *stored.shape)
    assert found.action.dtype == getattr(torch, stored.dtype)
    for name, spec in policy.extras_spec.items():
        assert found.extras[name].shape == (5, *spec.shape)
        assert found.extras[name].dtype == torch.float32


@pytest.mark.parametrize("name", OBSERVATIONS)
@pytest.mark.parametrize("normalize", [False, True])
def test_every_observation_is_understood(name: str, normalize: bool) -> None:
    spec = OBSERVATIONS[name]
    config = ActorCriticConfig(normalize_obs=normalize, image_features=16)
    policy = ActorCritic(AgentSpec(obs=spec, action=Discrete(3)), config)
    obs = fake_obs(spec, 2)
    found = act(policy, obs, 2)
    assert torch.isfinite(found.extras["value"]).all()
    flags = torch.zeros(1, 2, dtype=torch.bool)
    unrolled = policy.unroll(tree_map(lambda x: x[None], obs), None, flags, ~flags)
    torch.testing.assert_close(unrolled.value[0], found.extras["value"], atol=1e-4, rtol=1e-4)


def test_channel_axis_is_guessed() -> None:
    def layout(*shape: int, stack: int = 1) -> Any:
        return image_layout(ArraySpec(shape=shape, dtype="uint8", stack=stack))

    assert layout(84, 80, 3) == (3, 84, 80, True)
    assert layout(3, 84, 80) == (3, 84, 80, False)
    assert layout(84, 80, stack=4) == (4, 84, 80, False)
    assert layout(84, 80, 3, stack=4) == (12, 84, 80, True)
    assert layout(84, 80) is None
    assert layout(3, 3, 2) is None


def test_convolutions_can_be_chosen() -> None:
    spec = ArraySpec(shape=(84, 84), dtype="uint8", stack=4)
    config = ActorCriticConfig(convolutions=((16, 8, 4), (32, 4, 2)), image_features=256)
    policy = ActorCritic(AgentSpec(obs=spec, action=Discrete(3)), config)
    weights = [tuple(p.shape) for name, p in policy.named_parameters() if name.endswith("weight")]
    # The network of Mnih et al. 2013.
    assert weights[:3] == [(16, 4, 8, 8), (32, 16, 4, 4), (256, 9 * 9 * 32)]
    assert torch.isfinite(act(policy, fake_obs(spec, 2), 2).extras["value"]).all()
    with pytest.raises(ConfigError, match=r"convolutions: layer 2 .* 4x4, got one .* side is 3"):
        CNN(ArraySpec(shape=(16, 20), stack=2), 16, ((16, 8, 4), (32, 4, 2)))
    with pytest.raises(ConfigError, match=r"convolutions: expected .* got \(\(16, 0, 4\),\)"):
        ActorCriticConfig(convolutions=((16, 0, 4),))


def test_stacked_rgb_keeps_pixels_in_place() -> None:
    spec = ArraySpec(shape=(20, 20, 3), dtype="uint8", stack=2)
    policy = ActorCritic(AgentSpec(obs=spec, action=Discrete(2)), ActorCriticConfig())
    cnn = policy.encoder.leaves[0]
    seen = []
    cnn._convolve = lambda image: seen.append(image) or torch.zeros(1, cnn.linear.in_features)  # type: ignore
    obs = fake_obs(spec, 1)
    cnn(obs)
    torch.testing.assert_close(seen[0][0, 4], obs[0, 1, :, :, 1].float())


def test_bytes_are_seen_as_numbers_up_to_one() -> None:
    torch.manual_seed(0)
    bytes_cnn = CNN(ArraySpec(shape=(40, 40), dtype="uint8", stack=2), 16)
    float_cnn = CNN(ArraySpec(shape=(40, 40), stack=2), 16)
    float_cnn.load_state_dict(bytes_cnn.state_dict())
    image = torch.randint(0, 256, (3, 2, 40, 40), dtype=torch.uint8)
    torch.testing.assert_close(
        bytes_cnn(image), float_cnn(image.float() / 255), rtol=1e-4, atol=1e-5
    )


def test_bytes_that_are_normalised_are_not_made_small_again() -> None:
    spec = ArraySpec(shape=(16,), dtype="uint8")
    encoder, norm = Encoder(spec, (), "tanh", 16), ObsNorm(spec)
    frames = {"": torch.randint(0, 256, (50, 4, 16), dtype=torch.uint8)}
    norm.track(frames, torch.ones(50, 4, dtype=torch.bool))
    rows = {"": frames[""].flatten(0, 1)}
    assert encoder.side_by_side(rows).max() <= 1.0
    assert 0.9 < encoder.side_by_side(norm(rows)).std() < 1.1


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_recurrent_unroll_repeats_what_acting_saw(kind: Any) -> None:
    agent = AgentSpec(obs=VECTOR, action=Discrete(4))
    policy = ActorCritic(agent, ActorCriticConfig(recurrent=kind, recurrent_size=8))
    ticks, rows = 7, 3
    obs = torch.randn(ticks, rows, 3)
    is_first = torch.rand(ticks, rows) < 0.3
    active = torch.rand(ticks, rows) < 0.7
    start = tree_map(lambda spec: torch.randn(rows, *spec.shape), policy.state_spec)
    state, values = start, torch.zeros(ticks, rows)
    for t in range(ticks):
        # Rows that do not act are not sent; a reset counts all the same.
        found = act(policy, obs[t], rows, policy_state=state, is_first=is_first[t])
        for key, old in state.items():
            old = old * ~is_first[t][:, None]
            state = {**state, key: torch.where(active[t][:, None], found.policy_state[key], old)}
        values[t] = found.extras["value"]
    unrolled = policy.unroll(obs, start, is_first, active)
    torch.testing.assert_close(unrolled.value[active], values[active])
    torch.testing.assert_close(unrolled.policy_state, state)


def test_whole_sequences_equal_tick_by_tick() -> None:
    for kind in ("lstm", "gru"):
        agent = AgentSpec(obs=VECTOR, action=Discrete(4))
        policy = ActorCritic(agent, ActorCriticConfig(recurrent=kind, recurrent_size=8))
        obs, flags = torch.randn(5, 2, 3), torch.zeros(5, 2, dtype=torch.bool)
        start = tree_map(lambda spec: torch.randn(2, *spec.shape), policy.state_spec)
        fast = policy.unroll(obs, start, flags, ~flags)
        # A third row that is held somewhere forces the slow path.
        wide = tree_map(lambda x: torch.cat([x, x[:1]]), start)
        active = torch.ones(5, 3, dtype=torch.bool)
        active[2, 2] = False
        slow = policy.unroll(torch.cat([obs, obs[:, :1]], 1), wide, torch.zeros(5, 3) > 0, active)
        torch.testing.assert_close(fast.value, slow.value[:, :2])


def test_masks_are_obeyed_by_all_rows() -> None:
    for action in (Discrete(3), MultiDiscrete((2, 3)), MultiBinary(2)):
        agent = AgentSpec(obs=VECTOR, action=action, has_action_mask=True)
        mask = torch.zeros(50, mask_size(action), dtype=torch.bool)
        mask[:, -1] = True
        for kind in (ActorCritic, RandomPolicy):
            found = act(kind(agent, kind.Config()), torch.randn(50, 3), 50, action_mask=mask)
            last = found.action.reshape(50, -1)[:, -1]
            assert last.unique().numel() == 1
            assert int(last[0]) == {Discrete: 2, MultiDiscrete: 2, MultiBinary: 1}[type(action)]


def test_explore_is_per_row() -> None:
    policy = ActorCritic(AgentSpec(obs=VECTOR, action=BOX), ActorCriticConfig())
    explore = torch.tensor([0.0, 1.0])
    found = act(policy, torch.ones(2, 3), 2, explore=explore)
    greedy = act(policy, torch.ones(2, 3), 2, explore=torch.zeros(2))
    assert torch.equal(found.action[0], greedy.action[0])
    assert not torch.equal(found.action[1], greedy.action[1])


def test_initial_policy_is_almost_uniform() -> None:
    policy = ActorCritic(AgentSpec(obs=VECTOR, action=Discrete(3)), ActorCriticConfig())
    log_prob = act(policy, torch.randn(100, 3), 100).extras["log_prob"]
    torch.testing.assert_close(log_prob, torch.full((100,), -math.log(3)), atol=0.1, rtol=0)


def test_running_norm_equals_one_pass_over_all() -> None:
    norm, data = RunningNorm((2,)), torch.randn(100, 2) * 5 + 1000
    for part in data.split((1, 29, 70)):
        norm.track(part)
    torch.testing.assert_close(norm.mean, data.mean(0))
    torch.testing.assert_close(norm.var, data.var(0, correction=0), rtol=1e-3, atol=1e-3)
    assert float(norm.count) == 100
    assert float(norm(torch.tensor([1e9, 0.0])).abs().max()) == 10.0


def test_return_statistics_leave_values_as_they_were() -> None:
    agent = AgentSpec(obs=VECTOR, action=Discrete(2))
    policy = ActorCritic(agent, ActorCriticConfig(normalize_returns=True))
    obs = torch.randn(5, 3)
    policy.track_returns(torch.randn(50))
    for scale in (1.0, 100.0):
        before = act(policy, obs, 5).extras["value"]
        policy.track_returns(torch.randn(50) * scale + scale)
        torch.testing.assert_close(
            act(policy, obs, 5).extras["value"], before, rtol=1e-4, atol=1e-4
        )
    assert float(policy.value_scale) > 1


def test_the_first_returns_set_the_unit_of_a_fresh_critic() -> None:
    agent = AgentSpec(obs=VECTOR, action=Discrete(2))
    policy = ActorCritic(agent, ActorCriticConfig(normalize_returns=True))
    obs, returns = torch.randn(5, 3), torch.tensor([-300.0, -100.0, -200.0])
    before = act(policy, obs, 5).extras["value"]
    policy.track_returns(returns)
    # A multiple of what it was: their mean is not added, so an unknown state is worth about 0.
    expected = before * returns.std(correction=0)
    torch.testing.assert_close(act(policy, obs, 5).extras["value"], expected)


def test_weights_of_a_critic_that_predicted_around_a_mean_are_refused() -> None:
    """Their statistics were called `return_norm`, and without the mean their values are wrong."""
    agent = AgentSpec(obs=VECTOR, action=Discrete(2))
    policy = ActorCritic(agent, ActorCriticConfig(normalize_returns=True))
    now = {key: tensor.numpy() for key, tensor in policy.state_dict().items()}
    load_weights(policy, now, "main")
    old = {key.replace("return_scale.", "return_norm."): array for key, array in now.items()}
    with pytest.raises(CheckpointError, match=r"return_norm\.\w+: .*belong to another network"):
        load_weights(policy, old, "main")


def test_statistics_travel_with_the_weights() -> None:
    agent = AgentSpec(obs=VECTOR, action=Discrete(2))
    config = ActorCriticConfig(normalize_obs=True, normalize_returns=True)
    one, two = ActorCritic(agent, config), ActorCritic(agent, config)
    one.track_obs(torch.randn(4, 5, 3) + 3, torch.ones(4, 5, dtype=torch.bool))
    one.track_returns(torch.randn(9) * 7)
    two.load_state_dict(one.state_dict())
    obs = torch.randn(5, 3)
    assert torch.equal(act(one, obs, 5).extras["value"], act(two, obs, 5).extras["value"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hidden_sizes": (0,)}, r"got \(0,\)"),
        ({"activation": "sine"}, "got 'sine'"),
        ({"recurrent": "rnn"}, "got 'rnn'"),
        ({"recurrent_size": 0}, "got 0"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ActorCriticConfig(**settings)


def test_random_policy_stays_within_finite_bounds() -> None:
    policy = RandomPolicy(AgentSpec(obs=VECTOR, action=BOX), RandomPolicy.Config())
    found = act(policy, torch.zeros(2000, 3), 2000).action
    assert -1 <= float(found[:, 0].min()) < -0.9
    assert 0.9 < float(found[:, 0].max()) <= 1
    assert float(found[:, 1].abs().max()) > 2
    assert policy.extras_spec == {}
    assert not list(policy.parameters())


def test_random_policy_with_bounds_that_are_none() -> None:
    huge = torch.finfo(torch.float32).max
    action = Box((1,), (-huge,), (huge,))
    policy = RandomPolicy(AgentSpec(obs=VECTOR, action=action), RandomPolicy.Config())
    found = act(policy, torch.zeros(100, 3), 100).action
    assert found.isfinite().all()
    assert float(found.min()) < 0 < float(found.max())


def test_a_deviation_that_is_fixed_stays() -> None:
    policy = ActorCritic(
        AgentSpec(obs=VECTOR, action=Box((2,), (-1,) * 2, (1,) * 2)), ActorCriticConfig()
    )
    policy.action_head.log_std.requires_grad_(False)
    Adam(policy.parameters(), lr=1e-3)
    gradients = policy.manual_gradients
    assert gradients is not None
    with torch.no_grad():
        forward = gradients.forward_pass(torch.randn(4, 3), None)
        gradients.backward_pass(forward, torch.zeros(4, 2), torch.ones(4), 0.1, torch.ones(4))
    assert policy.action_head.log_std.grad is None
    assert float(policy.action_head.linear.weight.grad.abs().sum()) > 0


class Doubled(Encoder):
    """Sees twice of everything."""

    def forward(self, flat_obs: dict[str, torch.Tensor]) -> torch.Tensor:
        return super().forward({path: 2 * leaf for path, leaf in flat_obs.items()})


class SeesTwice(ActorCritic):
    def make_encoder(self) -> Doubled:
        config = self.config
        return Doubled(self.agent.obs, config.hidden_sizes, config.activation, 8)


def test_an_encoder_that_derives_from_ours_is_asked() -> None:
    agent = AgentSpec(obs=VECTOR, action=Discrete(3))
    torch.manual_seed(0)
    plain = ActorCritic(agent, ActorCriticConfig())
    twice = SeesTwice(agent, ActorCriticConfig())
    twice.load_state_dict(plain.state_dict())
    plain.pack()
    twice.pack()
    obs = torch.randn(5, 3)
    assert twice.manual_gradients is None
    wanted = act(plain, 2 * obs, 5).extras["value"].clone()
    torch.testing.assert_close(act(twice, obs, 5).extras["value"], wanted)


def test_policies_are_found_by_name_and_path() -> None:
    assert find_policy("actor_critic") is ActorCritic
    assert find_policy("srl.policies.random:RandomPolicy") is RandomPolicy
    with pytest.raises(ConfigError, match="did you mean 'actor_critic'"):
        find_policy("actor_critc")
    with pytest.raises(ConfigError, match="expected a subclass"):
        find_policy("srl.policies.registry:POLICIES")
