"""The encoder of entities: masks, order, statistics and sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from srl.data.spec import AgentSpec, ArraySpec, MultiDiscrete
from srl.data.tree import flatten
from srl.errors import ConfigError
from srl.policies.actor_critic import ActorCritic, ActorCriticConfig
from srl.policies.nets.entities import EntityEncoder, EntityNorm, attend_few, attend_many

torch.set_num_threads(1)

ROWS = 5
KINDS = {"agents": (3, 4), "boxes": (2, 6)}


def spec(kinds: dict[str, tuple[int, int]] = KINDS, rays: int = 8) -> dict[str, ArraySpec]:
    found = {"self": ArraySpec(shape=(7,)), "lidar": ArraySpec(shape=(rays, 1))}
    for name, shape in kinds.items():
        found[name] = ArraySpec(shape=shape)
        for end in ("_visible", "_exist"):
            found[name + end] = ArraySpec(shape=shape[:1], dtype="int8")
    return found


def observed(seed: int = 0) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    return {
        name: torch.randint(0, 2, (ROWS, *leaf.shape), dtype=torch.int8, generator=random)
        if leaf.dtype == "int8"
        else torch.randn(ROWS, *leaf.shape, generator=random)
        for name, leaf in spec().items()
    }


def encoder(**args: Any) -> EntityEncoder:
    torch.manual_seed(0)
    return EntityEncoder(spec(), **{"embedding": 16, "filters": 2, "features": 12, **args})


@pytest.mark.parametrize(("omniscient", "mask"), [(False, "_visible"), (True, "_exist")])
def test_masked_entities_change_no_output_and_shown_ones_do(omniscient: bool, mask: str) -> None:
    net, obs = encoder(omniscient=omniscient), observed()
    before = net(obs)
    assert before.shape == (ROWS, 12)
    for kind in KINDS:
        for shown in (False, True):
            which = (obs[kind + mask] != 0) == shown
            assert which.any()
            other = {**obs, kind: torch.where(which[..., None], 3 - obs[kind], obs[kind])}
            same = torch.equal(net(other), before)
            assert same != shown, kind
    # Nor does the mask of the other network.
    unused = "_exist" if mask == "_visible" else "_visible"
    turned = {name: 1 - leaf if name.endswith(unused) else leaf for name, leaf in obs.items()}
    assert torch.equal(net(turned), before)


def test_padding_changes_no_output() -> None:
    """More places for entities that nobody sees: the same numbers, but for rounding."""
    net, obs = encoder(), observed()
    wider = EntityEncoder(
        spec({"agents": (6, 4), "boxes": (4, 6)}), embedding=16, filters=2, features=12
    )
    wider.load_state_dict(net.state_dict())
    padded = dict(obs)
    for kind, more in (("agents", 3), ("boxes", 2)):
        rows = torch.full((ROWS, more, KINDS[kind][1]), 9.0)
        padded[kind] = torch.cat([obs[kind], rows], 1)
        for end in ("_visible", "_exist"):
            none = torch.zeros(ROWS, more, dtype=torch.int8)
            padded[kind + end] = torch.cat([obs[kind + end], none], 1)
    assert torch.allclose(wider(padded), net(obs), atol=1e-6)


@pytest.mark.parametrize("count", [1, 3, 6])
def test_both_ways_to_attend_are_the_same(count: int) -> None:
    inputs = torch.randn(ROWS, count, 3, 4, 5, requires_grad=True)
    mask = torch.rand(ROWS, count) < 0.5
    mask[:, 0] = True
    found, gradients = [], []
    for attend in (attend_few, attend_many):
        out = attend(inputs, mask)
        (gradient,) = torch.autograd.grad((out * torch.arange(20)).sum(), inputs)
        found.append(out)
        gradients.append(gradient)
    assert found[0].shape == (ROWS, count, 20)
    assert torch.allclose(*found, atol=1e-5)
    assert torch.allclose(*gradients, atol=1e-4)


def test_the_order_of_entities_of_a_kind_does_not_matter() -> None:
    net, obs = encoder(), observed()
    obs["agents_visible"][:] = 1
    order = torch.tensor([2, 0, 1])
    turned = dict(obs)
    for name in ("agents", "agents_visible", "agents_exist"):
        turned[name] = obs[name][:, order]
    assert torch.allclose(net(turned), net(obs), atol=1e-6)
    swapped = {**obs, "agents": obs["agents"][:, order]}
    swapped["agents_visible"] = torch.tensor([[1, 0, 1]] * ROWS, dtype=torch.int8)
    assert not torch.allclose(net(swapped), net(obs), atol=1e-3)


def test_the_lidar_has_no_seam() -> None:
    """A shift of all rays shifts the convolution's output, also from the last ray to the first."""
    (rays,) = encoder().rays
    x = torch.randn(2, 1, 8)
    assert torch.allclose(rays(x.roll(3, -1)), rays(x).roll(3, -1), atol=1e-6)


def test_statistics_are_those_of_entities_that_exist() -> None:
    norm, obs = EntityNorm(spec()), observed()
    mask = torch.tensor([[True, True, False, True, False]])
    norm.track({name: leaf[None] for name, leaf in obs.items()}, mask)
    used = {name: leaf[mask[0]] for name, leaf in obs.items()}
    there = used["boxes"][used["boxes_exist"] != 0]
    after = norm(obs)
    index = norm.paths.index("boxes")
    assert torch.allclose(norm.norms[index].mean, there.mean(0), atol=1e-6)
    assert torch.allclose(norm.norms[index].var, there.var(0, correction=0), atol=1e-6)
    assert norm.norms[norm.paths.index("lidar")].mean.shape == (1,)
    for name, leaf in after.items():
        assert torch.equal(leaf, obs[name]) == name.endswith(("_visible", "_exist"))


def test_policy_unrolls_to_what_it_did() -> None:
    action = MultiDiscrete((11, 11, 11, 2, 2))
    settings = ActorCriticConfig(
        encoder="entities",
        encoder_args={"embedding": 16, "features": 12},
        critic_encoder_args={"omniscient": True},
        recurrent="lstm",
        recurrent_size=8,
        normalize_obs=True,
    )
    policy = ActorCritic(AgentSpec(obs=spec(), action=action), settings)
    assert isinstance(policy.obs_norm, EntityNorm)
    ticks = [observed(seed) for seed in range(4)]
    is_first = torch.zeros(4, ROWS, dtype=torch.bool)
    is_first[2, 1] = True
    state = {who: {k: torch.zeros(ROWS, 8) for k in "hc"} for who in ("actor", "critic")}
    start, values, log_probs, actions = state, [], [], []
    generator = torch.Generator().manual_seed(0)
    for obs, first in zip(ticks, is_first, strict=True):
        with torch.inference_mode():
            act = policy.act(obs, state, first, torch.ones(ROWS), None, generator)
        state = act.policy_state
        actions.append(act.action)
        values.append(act.extras["value"])
        log_probs.append(act.extras["log_prob"])
    stacked = {name: torch.stack([obs[name] for obs in ticks]) for name in ticks[0]}
    found = policy.unroll(stacked, start, is_first, torch.ones(4, ROWS, dtype=torch.bool))
    assert torch.stack(actions).shape == (4, ROWS, 5)
    assert torch.allclose(found.value, torch.stack(values), atol=1e-5)
    again = found.distribution.log_prob(torch.stack(actions))
    assert torch.allclose(again, torch.stack(log_probs), atol=1e-5)


def test_observations_without_entities_and_widths_without_heads_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"expected parts KIND .* got lidar, self"):
        EntityEncoder({name: leaf for name, leaf in spec().items() if name in ("self", "lidar")})
    with pytest.raises(ConfigError, match="expected a multiple of the 4 heads, got 30"):
        encoder(embedding=30)


def test_recipes_have_the_published_size_and_a_small_one() -> None:
    pytest.importorskip("mujoco")
    from srl.envs.registry import probe
    from srl.recipes import find_recipe
    from srl.settings import convert

    for name, low, high in (
        ("hide_and_seek", 1_600_000, 1_650_000),
        ("hide_and_seek_quadrant", 1_600_000, 1_650_000),
        ("hide_and_seek_fort", 34_000, 46_000),
    ):
        experiment = find_recipe(name)()
        network = {k: v for k, v in experiment.network.items() if k != "name"}
        agent = next(iter(probe(experiment.env).agents.values()))
        policy = ActorCritic(agent, convert(network, ActorCriticConfig, "network"))
        count = sum(p.numel() for p in policy.parameters())
        assert low <= count <= high, name
        assert set(flatten(agent.obs)) > {"self", "agents_exist"}
