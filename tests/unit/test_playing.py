"""A loaded policy acts as it did in training."""

from __future__ import annotations

import numpy as np
import torch

from srl.data.spec import AgentSpec, ArraySpec, Box, Discrete
from srl.playing import ActingPolicy
from srl.policies.actor_critic import ActorCritic, ActorCriticConfig

VECTOR = ArraySpec(shape=(3,))


def test_real_numbers_are_clipped_to_the_bounds() -> None:
    action = Box((2,), (-1.0, -0.5), (1.0, float("inf")))
    policy = ActorCritic(AgentSpec(obs=VECTOR, action=action), ActorCriticConfig())
    with torch.no_grad():
        policy.action_head.linear.bias.copy_(torch.tensor([4.0, 7.0]))
    acting = ActingPolicy(policy, "default")
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
    asked, changed = ActingPolicy(policy, "a"), ActingPolicy(policy, "b")
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
