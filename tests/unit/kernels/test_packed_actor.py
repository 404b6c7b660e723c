"""A policy of two towers after `pack`: it acts as before, in memory that is kept."""

from __future__ import annotations

import math

import pytest
import torch

from srl.data.spec import ActionSpec, AgentSpec, ArraySpec, Box, Discrete, MultiDiscrete
from srl.policies.actor_critic import ActorCritic, ActorCriticConfig

VECTOR = ArraySpec(shape=(3,))
BOX = Box(shape=(2,), low=(-1.0, -math.inf), high=(1.0, math.inf))


@pytest.mark.parametrize("action", [Discrete(3), MultiDiscrete((2, 3)), BOX])
@pytest.mark.parametrize("normalize", [False, True])
def test_a_packed_policy_acts_as_before(action: ActionSpec, normalize: bool) -> None:
    masked = not isinstance(action, Box)
    agent = AgentSpec(obs=VECTOR, action=action, has_action_mask=masked)
    config = ActorCriticConfig(
        normalize_obs=normalize,
        normalize_returns=normalize,
        policy_gain=1.0,
        initial_log_std=-0.3,
        hidden_sizes=(32, 16),
    )
    policy, copy = ActorCritic(agent, config), ActorCritic(agent, config)
    generators = [torch.Generator().manual_seed(3) for _ in range(2)]
    for number, rows in enumerate((64, 5, 64)):
        # Newer weights, other rows, and temperatures from greedy to sampling.
        policy.track_returns(torch.tensor([3.0, 8.0, -1.0]) * (number + 1))
        policy.track_obs(2.0 + 5.0 * torch.randn(4, 8, 3), torch.ones(4, 8, dtype=torch.bool))
        torch.nn.init.normal_(policy.action_head.linear.bias)
        copy.load_state_dict(policy.state_dict())
        mask = None
        if agent.action_mask is not None and number:
            mask = torch.ones(rows, *agent.action_mask.shape, dtype=torch.bool)
            mask[::2, 0] = False
        first, explore = torch.zeros(rows, dtype=torch.bool), torch.linspace(0, 1, rows)
        obs = torch.randn(rows, 3)
        obs[0] = torch.tensor([1e4, -1e4, 1.0])  # Beyond what normalised numbers are clipped at.
        obs = obs if normalize else obs.clamp(-3.0, 3.0)
        inputs = (obs, None, first, explore, mask)
        with torch.inference_mode():
            copy.pack()
            plain = policy.act(*inputs, generators[0])
            packed = copy.act(*inputs, generators[1])
        torch.testing.assert_close(packed.action, plain.action, rtol=1e-5, atol=1e-5)
        for name in ("log_prob", "value"):
            torch.testing.assert_close(
                packed.extras[name], plain.extras[name], rtol=1e-5, atol=1e-5
            )
    assert copy._towers is not None
    assert copy._towers.packed is not None


def test_a_packed_policy_sees_what_is_written_into_the_tensors_it_was_shown() -> None:
    policy = ActorCritic(AgentSpec(obs=VECTOR, action=Discrete(2)), ActorCriticConfig())
    obs, explore = torch.zeros(4, 3), torch.zeros(4)
    values = []
    with torch.inference_mode():
        policy.pack()
        for number in (0.0, 1.0):
            obs.fill_(number)
            act = policy.act(obs, None, explore > 1, explore, None, torch.Generator())
            values.append(act.extras["value"].clone())
            other = policy.act(obs.clone(), None, explore > 1, explore, None, torch.Generator())
            torch.testing.assert_close(other.extras["value"], values[-1])
    assert (values[0] != values[1]).all()


def test_a_packed_policy_keeps_memory_for_a_few_numbers_of_rows_only() -> None:
    policy = ActorCritic(AgentSpec(obs=VECTOR, action=Discrete(2)), ActorCriticConfig())
    with torch.inference_mode():
        policy.pack()
        for rows in (*range(1, 40), 1):
            first, explore = torch.zeros(rows, dtype=torch.bool), torch.ones(rows)
            policy.act(torch.zeros(rows, 3), None, first, explore, None, torch.Generator())
    assert policy._towers is not None
    assert policy._towers.packed is not None
    assert len(policy._towers.packed._row_buffers) == 16
