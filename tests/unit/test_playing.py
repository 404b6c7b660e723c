"""A loaded policy acts as it did in training."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces

from srl.data.spec import AgentSpec, ArraySpec, Box, Discrete
from srl.envs.spaces import AgentSpaces, agent_spec
from srl.errors import ConfigError
from srl.experiment import PolicyConfig, assign_agents
from srl.playing import ActingPolicy
from srl.policies.actor_critic import ActorCritic, ActorCriticConfig

VECTOR = ArraySpec(shape=(3,))
SEEN = spaces.Box(-np.inf, np.inf, (3,))


def test_real_numbers_are_clipped_to_the_bounds() -> None:
    action = Box((2,), (-1.0, -0.5), (1.0, float("inf")))
    policy = ActorCritic(AgentSpec(obs=VECTOR, action=action), ActorCriticConfig())
    with torch.no_grad():
        policy.action_head.linear.bias.copy_(torch.tensor([4.0, 7.0]))
    bounds = spaces.Box(np.array([-1.0, -0.5], np.float32), np.array([1.0, np.inf], np.float32))
    acting = ActingPolicy(policy, "default", AgentSpaces(SEEN, bounds))
    one = acting.act(np.zeros(3))
    assert one[0] == 1.0
    assert one[1] > 5.0
    with torch.no_grad():
        policy.action_head.linear.bias.copy_(torch.tensor([-4.0, -7.0]))
    assert acting.act(np.zeros((4, 3))).tolist() == [[-1.0, -0.5]] * 4


def test_another_way_to_explore_forgets_nothing() -> None:
    agent = AgentSpec(obs=VECTOR, action=Discrete(4))
    torch.manual_seed(0)
    policy = ActorCritic(agent, ActorCriticConfig(recurrent="lstm", recurrent_size=8))
    own = AgentSpaces(SEEN, spaces.Discrete(4))
    asked, changed = ActingPolicy(policy, "a", own), ActingPolicy(policy, "b", own)
    shown = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    for number, obs in enumerate(shown):
        asked.act(obs)
        changed.act(obs, explore=number % 2 == 1)
    assert asked._runner is not None
    assert changed._runner is not None
    for key in ("h", "c"):
        kept = asked._runner._state[key]
        assert np.abs(kept).max() > 0
        np.testing.assert_array_equal(kept, changed._runner._state[key])


def acting(observation: spaces.Space, action: spaces.Space) -> ActingPolicy:
    torch.manual_seed(0)
    policy = ActorCritic(agent_spec(observation, action), ActorCriticConfig())
    return ActingPolicy(policy, "default", AgentSpaces(observation, action))


def test_it_takes_and_returns_what_the_spaces_contain() -> None:
    shifted = acting(spaces.Discrete(3, start=1), spaces.Discrete(2, start=5))
    plain = acting(spaces.Discrete(3), spaces.Discrete(2))
    for obs in range(3):
        assert shifted.act(obs + 1) == plain.act(obs) + 5
    assert shifted.act(np.array([1, 2, 3])).tolist() == (plain.act(np.arange(3)) + 5).tolist()
    several = spaces.MultiDiscrete([[2, 3], [4, 2]], start=[[1, 1], [0, 7]])
    both = acting(spaces.Dict(a=spaces.Discrete(2, start=-1), b=SEEN), several)
    assert several.contains(both.act({"a": -1, "b": np.zeros(3)}))
    whole = spaces.Box(0, 9, (2,), dtype=np.int32)
    assert whole.contains(acting(SEEN, whole).act(np.ones(3)))


def test_policies_whose_agents_all_have_others_do_not_play() -> None:
    roles = {
        "player_2": PolicyConfig(agents=("player_2",)),
        "player_1": PolicyConfig(agents=("player_1",)),
        "first": PolicyConfig(agents=("player_1",)),
        "second": PolicyConfig(agents=("player_2",)),
    }
    agents = ["player_1", "player_2"]
    assert assign_agents(roles, agents, idle=True) == {
        "player_2": ("player_2",),
        "player_1": ("player_1",),
    }
    with pytest.raises(ConfigError, match=r"policies\.first: expected at least one agent"):
        assign_agents(roles, agents)
