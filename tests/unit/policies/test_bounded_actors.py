"""The policies over bounded actions: their densities, their bounds, and how they explore."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.distributions import Independent, Normal, TanhTransform, TransformedDistribution

from srl.data.spec import AgentSpec, ArraySpec, Box, Discrete
from srl.errors import ConfigError
from srl.policies.bounded_actor import BoundedActor
from srl.policies.deterministic import Deterministic
from srl.policies.protocol import BestUnitActions, SamplesUnitActions
from srl.policies.registry import find_policy, policy_config
from srl.policies.squashed_gaussian import SquashedGaussian, squashed_normal

torch.set_num_threads(1)

VECTOR = ArraySpec(shape=(3,))
BOX = Box(shape=(2,), low=(-2.0, 0.0), high=(2.0, 1.0))
NESTED = {
    "camera": ArraySpec(shape=(8, 8, 3), dtype="uint8"),
    "kind": ArraySpec(dtype="int64", categories=(5,)),
    "pose": VECTOR,
}
POLICIES = ["squashed_gaussian", "deterministic"]


def make(name: str, obs: Any = VECTOR, action: Any = BOX, **settings: Any) -> BoundedActor:
    torch.manual_seed(0)
    kind = find_policy(name)
    made = kind(AgentSpec(obs=obs, action=action), policy_config(name)(**settings))
    assert isinstance(made, BoundedActor)
    return made


def act(policy: BoundedActor, obs: Any, rows: int, explore: float, seed: int = 0) -> torch.Tensor:
    first = torch.zeros(rows, dtype=torch.bool)
    generator = torch.Generator().manual_seed(seed)
    with torch.inference_mode():
        wanted = torch.full((rows,), explore)
        return policy.act(obs, None, first, wanted, None, generator).action


@pytest.mark.parametrize("spread", [0.1, 3.0])
def test_log_density_is_that_of_torch(spread: float) -> None:
    torch.manual_seed(0)
    mean = (torch.randn(50, 3, dtype=torch.float64) * spread).requires_grad_()
    log_std = torch.randn(50, 3, dtype=torch.float64, requires_grad=True)
    noise = torch.randn(50, 3, dtype=torch.float64)
    action, log_prob = squashed_normal(mean, log_std, noise)
    transform = TanhTransform(cache_size=1)
    before = Independent(Normal(mean, log_std.exp()), 1)
    theirs = TransformedDistribution(before, [transform])
    expected = transform(mean + noise * log_std.exp())
    torch.testing.assert_close(action, expected)
    torch.testing.assert_close(log_prob, theirs.log_prob(expected))
    found = torch.autograd.grad((log_prob * 2 + action.sum(1)).sum(), (mean, log_std))
    wanted = torch.autograd.grad(
        (theirs.log_prob(expected) * 2 + expected.sum(1)).sum(), (mean, log_std)
    )
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)


def test_density_has_an_integral_of_one() -> None:
    mean, log_std = torch.tensor(0.4, dtype=torch.float64), torch.tensor(-0.3, dtype=torch.float64)
    unit = torch.linspace(-1, 1, 200_001, dtype=torch.float64)[1:-1]
    noise = ((unit.atanh() - mean) / log_std.exp()).unsqueeze(1)
    rows = len(unit)
    action, log_prob = squashed_normal(mean.expand(rows, 1), log_std.expand(rows, 1), noise)
    torch.testing.assert_close(action.squeeze(1), unit)
    assert float(torch.trapezoid(log_prob.exp(), unit)) == pytest.approx(1.0, abs=1e-4)


def test_density_is_finite_where_the_tanh_is_one() -> None:
    mean = torch.tensor([[30.0], [-30.0]], requires_grad=True)
    action, log_prob = squashed_normal(mean, torch.zeros(2, 1), torch.zeros(2, 1))
    assert action.abs().eq(1.0).all()
    log_prob.sum().backward()
    # The slope of the tanh is about 4 exp(-2 |u|), so the density is that much larger.
    expected = -0.5 * math.log(2 * math.pi) + 2 * (30.0 - math.log(2.0))
    assert log_prob.tolist() == pytest.approx([expected] * 2)
    assert mean.grad is not None
    assert mean.grad.flatten().tolist() == pytest.approx([2.0, -2.0])


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("kernels", ["auto", "reference"])
def test_acts_inside_of_the_bounds_and_the_same_without_exploration(
    name: str, kernels: str
) -> None:
    noise = {"exploration_noise": 5.0} if name == "deterministic" else {}
    policy = make(name, policy_gain=1.0, kernels=kernels, **noise)
    obs = torch.randn(500, 3)
    low, high = torch.tensor(BOX.low), torch.tensor(BOX.high)
    explored = act(policy, obs, 500, explore=1.0)
    assert ((low <= explored) & (explored <= high)).all()
    assert explored[:, 0].min() < -1.5
    assert explored[:, 0].max() > 1.5
    assert not torch.equal(explored, act(policy, obs, 500, explore=1.0, seed=1))
    best = act(policy, obs, 500, explore=0.0)
    assert torch.equal(best, act(policy, obs, 500, explore=0.0, seed=1))
    out = policy.outputs(policy.seen(obs))[:, :2].tanh()
    torch.testing.assert_close(best, out * torch.tensor([2.0, 0.5]) + torch.tensor([0.0, 0.5]))
    torch.testing.assert_close(policy.unit(best), out)


@pytest.mark.parametrize("name", POLICIES)
def test_uniform_actions_are_a_share_of_those_that_explore(name: str) -> None:
    policy = make(name)
    obs = torch.zeros(4000, 3)
    policy.uniform.fill_(1.0)
    actions = act(policy, obs, 4000, explore=1.0)
    share = (actions - torch.tensor(BOX.low)) / (torch.tensor(BOX.high) - torch.tensor(BOX.low))
    counts = torch.histc(share[:, 0], 10, 0.0, 1.0)
    assert counts.min() > 300  # Of 400 expected in each tenth.
    torch.testing.assert_close(
        act(policy, obs, 4000, explore=0.0), act(policy, obs, 4000, explore=0.0, seed=1)
    )
    assert "uniform" in policy.state_dict()  # So it is published with the weights.


def test_deviation_of_the_gaussian_has_bounds() -> None:
    policy = make("squashed_gaussian", log_std_min=-3.0, log_std_max=-2.0, policy_gain=0.0)
    assert isinstance(policy, SquashedGaussian)
    rows = torch.zeros(20_000, 3)
    deviation = float(policy.unit(act(policy, rows, 20_000, explore=1.0)).std())
    assert deviation == pytest.approx(math.exp(-2.0), rel=0.05)


def test_noise_of_the_deterministic_policy_is_its_setting() -> None:
    policy = make("deterministic", exploration_noise=0.2, policy_gain=0.0)
    assert isinstance(policy, Deterministic)
    rows = torch.zeros(20_000, 3)
    for explore in (1.0, 0.5):
        action = policy.unit(act(policy, rows, 20_000, explore=explore))
        assert float(action.std()) == pytest.approx(0.2 * explore, rel=0.05)


@pytest.mark.parametrize("name", POLICIES)
def test_sees_nested_observations_and_images(name: str) -> None:
    policy = make(name, NESTED, normalize_obs=True)
    obs = {
        "camera": torch.randint(0, 255, (4, 8, 8, 3), dtype=torch.uint8),
        "kind": torch.tensor([0, 1, 2, 4]),
        "pose": torch.randn(4, 3) * 50 + 10,
    }
    policy.track_obs({k: v.unsqueeze(0) for k, v in obs.items()}, torch.ones(1, 4).bool())
    assert policy.seen(obs)["pose"].mean(0).abs().max() < 1e-4
    assert act(policy, obs, 4, explore=1.0).shape == (4, 2)
    assert isinstance(policy, SamplesUnitActions if name == POLICIES[0] else BestUnitActions)


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("shape", [(), (2, 2), (3,)])
def test_actions_of_any_shape(name: str, shape: tuple[int, ...]) -> None:
    number = math.prod(shape)
    policy = make(name, action=Box(shape=shape, low=(-1.0,) * number, high=(1.0,) * number))
    action = act(policy, torch.randn(5, 3), 5, explore=1.0)
    assert action.shape == (5, *shape)
    assert policy.unit(action).shape == (5, number)


@pytest.mark.parametrize("name", POLICIES)
def test_refuses_what_it_cannot_do(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"{name} expects real-valued.*Discrete.*dqn"):
        make(name, action=Discrete(3))
    endless = Box(shape=(2,), low=(-1.0, -math.inf), high=(1.0, math.inf))
    with pytest.raises(ConfigError, match=r"finite bounds, got \[-inf, inf\] for number 1"):
        make(name, action=endless)
    with pytest.raises(ConfigError, match="no memory"):
        make(name, recurrent="lstm")
    with pytest.raises(ConfigError, match="got images"):
        make(name, NESTED, kernels="fast")
