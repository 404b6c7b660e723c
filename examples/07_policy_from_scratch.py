"""Train a policy from scratch.

    python examples/07_policy_from_scratch.py [FOLDER]

A policy is a subclass of `Policy`, which is a torch module. It says what it adds to every action
(`extras_spec`) and what it remembers (`state_spec`), and chooses actions (`act`). PPO also asks for
`unroll`, which goes over whole fragments with gradients, and for running statistics; a policy that
has none inherits `TracksStatistics`. The policy below shares nothing with `ActorCritic`.

`Positions` is CartPole that shows no speeds. So the policy remembers the last observation, and sees
the difference. What it remembers is stored with the data: the trainer, in another process, sees
what the policy saw when it acted.
"""

import sys
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import nn

import srl
from srl.data.spec import AgentSpec, ArraySpec
from srl.policies.distributions import Categorical
from srl.policies.protocol import Policy, PolicyOutput, TracksStatistics, Unroll


class Positions(gymnasium.ObservationWrapper):
    """CartPole that shows where cart and pole are, but not how fast they move."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(gymnasium.make("CartPole-v1", render_mode=render_mode))
        self.observation_space = gymnasium.spaces.Box(-5.0, 5.0, (2,), np.float32)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return observation[[0, 2]]


@dataclass(frozen=True, kw_only=True)
class DifferenceConfig:
    """Settings of DifferencePolicy."""

    width: int = 64
    """Units of the hidden layer."""
    gain: float = 20.0
    """Factor of the difference: a pole moves little between two ticks."""


class DifferencePolicy(Policy, TracksStatistics):
    """Chooses by an observation and its difference to the last one."""

    Config = DifferenceConfig

    def __init__(self, agent: AgentSpec, config: DifferenceConfig) -> None:
        super().__init__(agent, config)
        size, choices = agent.obs.shape[0], agent.action.n
        # PPO asks for these two with every action. They are stored with the data.
        self.extras_spec = {"log_prob": ArraySpec(), "value": ArraySpec()}
        # What the policy remembers of one row (one agent in one environment).
        self.state_spec = {"last": ArraySpec(shape=(size,))}
        self.actor, self.critic = (
            nn.Sequential(nn.Linear(2 * size, config.width), nn.Tanh(), nn.Linear(config.width, n))
            for n in (choices, 1)
        )

    def outputs(self, obs: torch.Tensor, last: torch.Tensor, mask: Any) -> tuple[Any, Any]:
        """The distribution over actions [...] and the value [...]."""
        x = torch.cat([obs, self.config.gain * (obs - last)], dim=-1)
        return Categorical(self.actor(x), mask), self.critic(x).squeeze(-1)

    def act(self, obs, policy_state, is_first, explore, action_mask, generator) -> PolicyOutput:
        # [rows, ...]: one tick of many environments. No gradients here.
        last = torch.where(is_first[:, None], obs, policy_state["last"])
        distribution, value = self.outputs(obs, last, action_mask)
        # `explore` is 1 to sample and 0 to be greedy. All randomness is the generator's.
        action, log_prob = distribution.draw(generator, explore)
        return PolicyOutput(action, {"last": obs.clone()}, {"log_prob": log_prob, "value": value})

    def unroll(self, obs, policy_state, is_first, active, action_mask=None) -> Unroll:
        # [T, B, ...]: fragments. `policy_state` [B, ...] is what was fed in at the first tick.
        # (Ticks that are not `active` are final observations here, and an episode follows them.)
        last = torch.cat([policy_state["last"][None], obs[:-1]])
        last = torch.where(is_first[..., None], obs, last)
        distribution, value = self.outputs(obs, last, action_mask)
        return Unroll(distribution, value, {"last": obs[-1]})


if __name__ == "__main__":
    folder = sys.argv[1] if len(sys.argv) > 1 else "runs/example_07"
    run = srl.train(
        Positions,
        # Actor and critic share no layer, so large gradients of the critic harm nobody.
        algorithm=srl.PPOConfig(
            learning_rate=1e-3, rollout_length=64, epochs=8, max_grad_norm=None, max_policy_age=0
        ),
        network=DifferenceConfig(),
        steps=80_000,
        run_dir=folder,
    )
    print(f"return: {run.evaluate(episodes=20).mean:.0f}, of at most 500; at random: about 22")
