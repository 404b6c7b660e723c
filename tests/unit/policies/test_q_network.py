"""The Q-network: which actions it takes, and that training sees what acting saw."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_actor_critic import OBSERVATIONS, VECTOR, fake_obs

from srl.data.spec import AgentSpec, ArraySpec, Box, Discrete
from srl.data.tree import leaves, tree_map
from srl.errors import ConfigError
from srl.policies.nets.value_head import ActionValueHead
from srl.policies.protocol import ActionValues, TracksStatistics
from srl.policies.q_network import QNetwork
from srl.policies.q_network_config import QNetworkConfig
from srl.policies.registry import find_policy

torch.set_num_threads(1)

AGENT = AgentSpec(obs=VECTOR, action=Discrete(4))
HEADS: dict[str, dict[str, Any]] = {
    "plain": {},
    "dueling": {"dueling": True},
    "quantiles": {"num_quantiles": 5},
    "both": {"dueling": True, "num_quantiles": 5},
    "hidden": {"head_sizes": (6,)},
    "all": {"dueling": True, "num_quantiles": 5, "head_sizes": (6, 7)},
}


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(1)


def network(agent: AgentSpec = AGENT, **config: Any) -> QNetwork:
    given = {"hidden_sizes": (16, 8), "image_features": 16, "recurrent_size": 8}
    return QNetwork(agent, QNetworkConfig(**{**given, **config}))


def act(policy: QNetwork, obs: Any, rows: int, seed: int = 0, **given: Any) -> Any:
    inputs = {
        "policy_state": tree_map(lambda x: torch.zeros(rows, *x.shape), policy.state_spec),
        "is_first": torch.zeros(rows, dtype=torch.bool),
        "explore": torch.ones(rows),
        "action_mask": None,
    }
    with torch.inference_mode():
        generator = torch.Generator().manual_seed(seed)
        return policy.act(obs, **{**inputs, **given}, generator=generator)


def greedy(policy: QNetwork, obs: Any, rows: int) -> torch.Tensor:
    """What the values of `unroll_values` say is best."""
    state = tree_map(lambda x: torch.zeros(rows, *x.shape), policy.state_spec)
    flags = torch.zeros(1, rows, dtype=torch.bool)
    ticks = tree_map(lambda x: x.unsqueeze(0), obs)
    value = policy.unroll_values(ticks, state, flags, ~flags).value[0]
    mean = value.mean(2) if policy.num_quantiles else value
    return mean.argmax(1)


@pytest.mark.parametrize("recurrent", ["none", "lstm", "gru"])
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("packed", [False, True])
def test_acting_is_greedy_by_the_values_that_training_sees(
    head: str, recurrent: str, packed: bool
) -> None:
    policy = network(recurrent=recurrent, activation="tanh", **HEADS[head])
    policy.set_epsilon(0.0)
    if packed:
        policy.pack()
    obs = 10.0 * torch.randn(200, 3)
    chosen = act(policy, obs, 200).action
    assert torch.equal(chosen, greedy(policy, obs, 200))
    assert len(chosen.unique()) > 1


@pytest.mark.parametrize("kind", OBSERVATIONS)
def test_any_observation_has_values(kind: str) -> None:
    spec = OBSERVATIONS[kind]
    policy = network(AgentSpec(obs=spec, action=Discrete(3)), normalize_obs=True, dueling=True)
    policy.set_epsilon(0.0)
    obs = fake_obs(spec, 5)
    frames = tree_map(lambda x, s: x[:, -1] if s.stack > 1 else x, obs, spec)
    policy.track_obs(tree_map(lambda x: x.unsqueeze(0), frames), torch.ones(1, 5) > 0)
    policy.pack()
    chosen = act(policy, obs, 5).action
    assert torch.equal(chosen, greedy(policy, obs, 5))


def test_epsilon_and_explore_say_how_many_actions_are_random() -> None:
    policy = network()
    policy.set_epsilon(0.5)
    rows = 4000
    obs = torch.randn(1, 3).expand(rows, 3).contiguous()
    explore = torch.tensor([0.0, 0.4, 1.0, 1.0]).repeat(rows // 4)
    best = greedy(policy, obs[:1], 1)
    for packed in (False, True):
        if packed:
            policy.pack()
        chosen = act(policy, obs, rows, explore=explore).action
        other = (chosen != best).float().view(-1, 4).mean(0)
        # A random action is the best one in a quarter of all cases.
        expected = torch.tensor([0.0, 0.2, 0.5, 0.5]) * 0.75
        assert other[0] == 0.0
        torch.testing.assert_close(other, expected, atol=0.07, rtol=0)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("epsilon", [0.0, 1.0])
def test_actions_that_are_not_allowed_are_never_taken(packed: bool, epsilon: float) -> None:
    policy = network(AgentSpec(obs=VECTOR, action=Discrete(4), has_action_mask=True))
    policy.set_epsilon(epsilon)
    if packed:
        policy.pack()
    rows = 300
    mask = torch.rand(rows, 4) < 0.5
    mask[torch.arange(rows), torch.randint(4, (rows,))] = True
    chosen = act(policy, torch.randn(rows, 3), rows, action_mask=mask).action
    assert bool(mask.gather(1, chosen.unsqueeze(1)).all())
    assert len(chosen.unique()) == 4


@pytest.mark.parametrize("head", ["plain", "both"])
@pytest.mark.parametrize("activation", ["relu", "tanh", "elu"])
def test_a_packed_network_acts_as_before(head: str, activation: str) -> None:
    agent = AgentSpec(obs=VECTOR, action=Discrete(4), has_action_mask=True)
    config = {"activation": activation, "normalize_obs": True, **HEADS[head]}
    plain, packed = network(agent, **config), network(agent, **config)
    for number, rows in enumerate((64, 5, 64)):
        # Newer weights, other rows, and other statistics.
        plain.track_obs(2.0 + 5.0 * torch.randn(4, 8, 3), torch.ones(4, 8) > 0)
        plain.set_epsilon(0.3 * number)
        torch.nn.init.normal_(plain.head.linear[0].weight)  # type: ignore[arg-type]
        packed.load_state_dict(plain.state_dict())
        with torch.inference_mode():
            packed.pack()
        mask = torch.rand(rows, 4) < 0.8
        mask[:, 2] = True
        given: dict[str, Any] = {"explore": torch.linspace(0, 1, rows), "action_mask": mask}
        obs = 3.0 * torch.randn(rows, 3)
        one, two = (act(p, obs, rows, seed=7, **given).action for p in (plain, packed))
        assert torch.equal(one, two)
    assert packed._packed is not None


@pytest.mark.parametrize("head", HEADS)
def test_kernels_give_the_same_values_and_gradients(head: str) -> None:
    fast, plain = network(**HEADS[head]), network(kernels="reference", **HEADS[head])
    plain.load_state_dict(fast.state_dict())
    obs, flags = torch.randn(2, 6, 3), torch.zeros(2, 6, dtype=torch.bool)
    for policy in (fast, plain):
        policy.unroll_values(obs, None, flags, ~flags).value.square().sum().backward()
    one, two = (p.unroll_values(obs, None, flags, ~flags).value for p in (fast, plain))
    torch.testing.assert_close(one, two)
    for (name, a), (_, b) in zip(fast.named_parameters(), plain.named_parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, msg=name)


def test_dueling_adds_the_value_to_advantages_without_their_mean() -> None:
    head = ActionValueHead(1, 3, dueling=True)
    with torch.no_grad():
        # For the feature x = 1: the value is 10, the advantages are 1, 2 and 6, with mean 3.
        head.linear[0].weight.copy_(torch.tensor([[10.0], [1.0], [2.0], [6.0]]))
        head.linear[0].bias.zero_()
    assert head(torch.ones(1, 1)).tolist() == [[8.0, 9.0, 13.0]]


def test_the_value_of_an_action_is_the_mean_of_its_quantiles() -> None:
    head = ActionValueHead(1, 2, num_quantiles=2)
    with torch.no_grad():
        head.linear[0].weight.copy_(torch.tensor([[1.0], [5.0], [2.0], [3.0]]))
        head.linear[0].bias.zero_()
    assert head(torch.ones(1, 1)).tolist() == [[[1.0, 5.0], [2.0, 3.0]]]
    assert head.means(torch.ones(1, 1)).tolist() == [[3.0, 2.5]]


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_a_sequence_has_the_values_of_its_ticks(kind: str) -> None:
    policy = network(recurrent=kind)
    obs = torch.randn(5, 4, 3)
    is_first = torch.zeros(5, 4, dtype=torch.bool)
    is_first[2, 1] = True
    state = tree_map(lambda x: torch.randn(4, *x.shape), policy.state_spec)
    unrolled = policy.unroll_values(obs, state, is_first, ~torch.zeros_like(is_first))
    policy.set_epsilon(0.0)
    for t in range(5):
        out = act(policy, obs[t], 4, policy_state=state, is_first=is_first[t])
        assert torch.equal(out.action, unrolled.value[t].argmax(1))
        state = out.policy_state
    for one, two in zip(leaves(state), leaves(unrolled.policy_state), strict=True):
        torch.testing.assert_close(one, two)


def test_epsilon_travels_with_the_weights() -> None:
    policy, other = network(), network()
    policy.set_epsilon(0.25)
    other.load_state_dict(policy.state_dict())
    assert other.epsilon.item() == 0.25


def test_it_is_found_by_name_and_has_what_dqn_asks_for() -> None:
    policy = find_policy("q_network")(AGENT, QNetworkConfig())
    assert isinstance(policy, ActionValues)
    assert isinstance(policy, TracksStatistics)


def test_real_valued_actions_are_refused() -> None:
    box = Box(shape=(1,), low=(-1.0,), high=(1.0,))
    with pytest.raises(ConfigError, match=r"q_network expects one discrete action.*Box"):
        network(AgentSpec(obs=VECTOR, action=box))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_quantiles": -1}, "num_quantiles: expected at least 0, got -1"),
        ({"head_sizes": (0,)}, "head_sizes: expected sizes of at least 1"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        QNetworkConfig(**settings)


@pytest.mark.parametrize(
    ("config", "what"),
    [({"recurrent": "gru"}, "network.recurrent=gru"), ({"head_sizes": (4,)}, "network.head_sizes")],
)
def test_kernels_that_do_not_exist_are_refused(config: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError, match=f"got {what}"):
        network(kernels="fast", **config)


def test_images_have_no_kernels() -> None:
    image = ArraySpec(shape=(7, 7, 3), dtype="uint8")
    with pytest.raises(ConfigError, match="got images"):
        network(AgentSpec(obs=image, action=Discrete(2)), kernels="fast")
