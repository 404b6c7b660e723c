"""Train DQN with a replay, written from scratch.

    python examples/09_dqn_with_replay.py [FOLDER]

A policy that acts by its action values (Q), an algorithm that learns them (double DQN, van Hasselt
et al. 2016), and between actors and trainer a replay: a worker that keeps what actors write and
draws batches from it. `srl.OffPolicyConfig` puts it there. All of it runs in one thread, in
processes and over several machines.
"""

import copy
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import srl
from srl.algorithms.learning.adam import Adam
from srl.algorithms.protocol import Algorithm
from srl.data.records import SampleBatch, TrainResult
from srl.data.spec import AgentSpec
from srl.policies.protocol import Policy, PolicyOutput


@dataclass(frozen=True, kw_only=True)
class QConfig:
    """Settings of QPolicy."""

    width: int = 128
    """Units of each hidden layer."""


class QPolicy(Policy):
    """Takes the action with the highest value, and sometimes any other."""

    Config = QConfig
    extras_spec: dict[str, Any] = {}  # noqa: RUF012

    def __init__(self, agent: AgentSpec, config: QConfig) -> None:
        super().__init__(agent, config)
        n, w, m = agent.obs.shape[0], config.width, agent.action.n
        layers = (nn.Linear(n, w), nn.ReLU(), nn.Linear(w, w), nn.ReLU(), nn.Linear(w, m))
        self.q = nn.Sequential(*layers)
        # A buffer is published with the weights.
        self.register_buffer("epsilon", torch.ones(()))

    def act(self, obs, policy_state, is_first, explore, action_mask, generator) -> PolicyOutput:
        q = self.q(obs)
        chance = torch.rand(len(q), generator=generator)
        anything = torch.randint(q.shape[1], (len(q),), generator=generator)
        # `explore` is 0 in an evaluation.
        action = torch.where(chance < self.epsilon * explore, anything, q.argmax(1))
        return PolicyOutput(action, policy_state, {})


@dataclass(frozen=True, kw_only=True)
class DQNConfig(srl.OffPolicyConfig):
    """Settings of DQN; those of the replay come from the base class."""

    updates_per_step: float = 0.5
    """Gradient steps for each environment step."""
    gradient_steps: int = 16
    """Gradient steps of a learner step. Then the weights are published, once."""
    learning_rate: float = 1e-3
    """Adam's step size at the start; it falls to 0."""
    gamma: float = 0.99
    """Discount per action."""
    target_steps: int = 250
    """Gradient steps between two copies of the network into the target network."""
    epsilon_steps: int = 2500
    """Gradient steps in which the share of random actions falls from 1 to 0.05."""

    def windows(self) -> srl.FragmentShape:
        """Two ticks: an action, and what it led to."""
        return srl.FragmentShape(length=1, bootstrap=1)


class DQN(Algorithm):
    """Learns action values from transitions of any age."""

    Config = DQNConfig
    handles_stale_samples = True  # It does not matter who took an action.

    def __init__(self, policy: QPolicy, config: DQNConfig, *, device: str = "cpu", seed: int = 0):
        self.policy, self.config, self.device = policy.to(device), config, device
        self.target = copy.deepcopy(policy.q).requires_grad_(False)
        self.optimizer = Adam(policy.q.parameters(), lr=config.learning_rate)
        self.num_steps = 0

    def update(self, batch: SampleBatch, progress: float) -> Iterator[TrainResult | None]:
        config, data, losses = self.config, batch.data, []
        self.optimizer.lr = config.learning_rate * (1.0 - progress)
        arrays = (data.obs, data.action, data.reward, data.acted, data.terminated)
        obs, action, reward, acted, terminated = (
            torch.from_numpy(array).to(self.device) for array in arrays
        )
        for rows in torch.arange(acted.shape[1]).split(config.batch_size):
            if self.num_steps % config.target_steps == 0:
                self.target.load_state_dict(self.policy.q.state_dict())
            rows = rows[acted[0, rows]]  # No action is taken in an episode's last tick.
            with torch.no_grad():
                best = self.policy.q(obs[1, rows]).argmax(1, keepdim=True)
                future = self.target(obs[1, rows]).gather(1, best)[:, 0]
                goal = reward[0, rows] + config.gamma * future * ~terminated[1, rows]
            q = self.policy.q(obs[0, rows]).gather(1, action[0, rows, None])[:, 0]
            loss = nn.functional.smooth_l1_loss(q, goal)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.num_steps += 1
            losses.append(loss.detach())
            yield None
        self.policy.epsilon.fill_(max(0.05, 1.0 - self.num_steps / config.epsilon_steps))
        yield TrainResult({"loss": torch.stack(losses).mean().item(), "q": q.mean().item()})

    def state(self) -> Any:
        target = {name: tensor.numpy().copy() for name, tensor in self.target.state_dict().items()}
        optimizer = self.optimizer.state(self.policy.q)
        return {"target": target, "optimizer": optimizer, "num_steps": self.num_steps}

    def restore(self, state: Any) -> None:
        target = {name: torch.tensor(array) for name, array in state["target"].items()}
        self.target.load_state_dict(target)
        self.optimizer.restore(self.policy.q, state["optimizer"])
        self.num_steps = state["num_steps"]


if __name__ == "__main__":
    run = srl.train(
        "CartPole-v1",
        algorithm=DQNConfig(),
        network=QConfig(),
        steps=40_000,
        run_dir=sys.argv[1] if len(sys.argv) > 1 else "runs/example_09",
        set={"actor.envs": 8},
    )
    print(f"return: {run.evaluate(episodes=20).mean:.0f}, of at most 500; at random: about 22")
