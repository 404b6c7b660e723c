"""A single-file PPO in the style of CleanRL (its ppo, ppo_atari_envpool, ppo_continuous_action).

Own code after CleanRL's pages: one process, storage as tensors, a Python loop over time steps.
Value clipping is off, as in every contender.
"""

from __future__ import annotations

import random

import numpy as np
import torch
from measuring import Meter, Options, leave, parse
from torch import nn
from torch.distributions import Categorical, Normal
from vectors import Normalized, Vector
from workloads import Settings


def layer(module: nn.Module, gain: float = 2**0.5) -> nn.Module:
    nn.init.orthogonal_(module.weight, gain)
    nn.init.zeros_(module.bias)
    return module


def tower(inputs: int, outputs: int, gain: float) -> nn.Sequential:
    return nn.Sequential(
        layer(nn.Linear(inputs, 64)),
        nn.Tanh(),
        layer(nn.Linear(64, 64)),
        nn.Tanh(),
        layer(nn.Linear(64, outputs), gain),
    )


def image_network(s: Settings) -> nn.Sequential:
    layers, channels = [], 4
    for size, kernel, stride in s.convolutions:
        layers += [layer(nn.Conv2d(channels, size, kernel, stride)), nn.ReLU()]
        channels = size
    flat = channels * s.image_side**2
    return nn.Sequential(*layers, nn.Flatten(), layer(nn.Linear(flat, s.image_features)), nn.ReLU())


class Agent(nn.Module):
    def __init__(
        self, obs_shape: tuple[int, ...], num_actions: int, continuous: bool, s: Settings
    ) -> None:
        super().__init__()
        self.continuous, self.pixels = continuous, len(obs_shape) == 3
        if self.pixels:
            self.body = image_network(s)
            self.actor = layer(nn.Linear(s.image_features, num_actions), 0.01)
            self.critic = layer(nn.Linear(s.image_features, 1), 1.0)
        else:
            self.actor = tower(obs_shape[0], num_actions, 0.01)
            self.critic = tower(obs_shape[0], 1, 1.0)
        if continuous:
            self.log_std = nn.Parameter(torch.full((1, num_actions), s.log_std))

    def features(self, obs: torch.Tensor) -> torch.Tensor:
        return self.body(obs / 255.0) if self.pixels else obs

    def value(self, obs: torch.Tensor) -> torch.Tensor:
        return self.critic(self.features(obs))

    def forward(self, obs: torch.Tensor, action: torch.Tensor | None = None):
        hidden = self.features(obs)
        out = self.actor(hidden)
        if self.continuous:
            dist = Normal(out, self.log_std.expand_as(out).exp())
            action = dist.sample() if action is None else action
            return action, dist.log_prob(action).sum(1), dist.entropy().sum(1), self.critic(hidden)
        dist = Categorical(logits=out)
        action = dist.sample() if action is None else action
        return action, dist.log_prob(action), dist.entropy(), self.critic(hidden)


class Storage:
    """One batch, [horizon, rows]."""

    def __init__(self, horizon: int, rows: int, obs_shape: tuple, action_shape: tuple) -> None:
        self.obs = torch.zeros((horizon, rows, *obs_shape))
        self.actions = torch.zeros((horizon, rows, *action_shape))
        self.log_probs, self.rewards, self.ends, self.values = torch.zeros(4, horizon, rows)

    def advantages(self, next_value: torch.Tensor, next_end: torch.Tensor, s: Settings):
        """Generalised advantages, and the returns they add up to."""
        advantages, last = torch.zeros_like(self.rewards), 0.0
        for t in reversed(range(len(self.rewards))):
            if t == len(self.rewards) - 1:
                alive, value = 1.0 - next_end, next_value
            else:
                alive, value = 1.0 - self.ends[t + 1], self.values[t + 1]
            delta = self.rewards[t] + s.gamma * value * alive - self.values[t]
            advantages[t] = last = delta + s.gamma * s.gae_lambda * alive * last
        return advantages, advantages + self.values


def loss_of(log_prob, entropy, value, old_log_prob, advantage, target, s: Settings):
    """PPO's loss over one minibatch."""
    ratio = (log_prob - old_log_prob).exp()
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    clipped = torch.clamp(ratio, 1 - s.clip, 1 + s.clip)
    policy_loss = torch.max(-advantage * ratio, -advantage * clipped).mean()
    value_loss = 0.5 * ((value.view(-1) - target) ** 2).mean()
    return policy_loss - s.entropy_coefficient * entropy.mean() + s.value_coefficient * value_loss


def update(agent: Agent, optimizer, storage: Storage, advantages, targets, s: Settings) -> None:
    """All epochs over one batch."""
    obs = storage.obs.flatten(0, 1)
    actions = storage.actions.flatten(0, 1)
    log_probs, advantages, targets = (
        storage.log_probs.view(-1),
        advantages.view(-1),
        targets.view(-1),
    )
    order = np.arange(len(obs))
    size = len(obs) // s.minibatches
    for _ in range(s.epochs):
        np.random.shuffle(order)
        for start in range(0, len(obs), size):
            rows = order[start : start + size]
            action = actions[rows] if agent.continuous else actions.long()[rows]
            _, log_prob, entropy, value = agent(obs[rows], action)
            loss = loss_of(
                log_prob, entropy, value, log_probs[rows], advantages[rows], targets[rows], s
            )
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), s.max_grad_norm)
            optimizer.step()


def anneal(optimizer, s: Settings, env_steps: int) -> None:
    if s.anneal_steps:
        left = max(0.0, 1.0 - env_steps / s.anneal_steps)
        optimizer.param_groups[0]["lr"] = left * s.learning_rate


def seed_all(options: Options) -> None:
    torch.set_num_threads(options.layout["threads"])
    random.seed(options.seed)
    np.random.seed(options.seed)
    torch.manual_seed(options.seed)


def train(options: Options, meter: Meter) -> None:
    s, layout = options.settings, options.layout
    envs = Vector(s.env, s.num_envs, options.seed, layout["vec"], layout["env_threads"])
    space = envs.action_space
    if s.normalize:
        envs = Normalized(envs, s.num_envs, s.gamma)
    obs = torch.as_tensor(envs.reset(), dtype=torch.float32)
    continuous = bool(space.shape)
    num_actions = space.shape[0] if continuous else int(space.n)
    agent = Agent(obs.shape[1:], num_actions, continuous, s)
    meter.num_parameters = sum(p.numel() for p in agent.parameters())
    optimizer = torch.optim.Adam(agent.parameters(), lr=s.learning_rate, eps=s.adam_eps)
    storage = Storage(s.horizon, s.num_envs, obs.shape[1:], space.shape)
    end, env_steps = torch.zeros(s.num_envs), 0
    while True:
        anneal(optimizer, s, env_steps)
        for t in range(s.horizon):
            storage.obs[t], storage.ends[t] = obs, end
            with torch.no_grad():
                action, log_prob, _, value = agent(obs)
            storage.actions[t], storage.log_probs[t] = action, log_prob
            storage.values[t] = value.flatten()
            seen, rewards, ends = envs.step(action.numpy())
            storage.rewards[t] = torch.as_tensor(rewards, dtype=torch.float32)
            obs = torch.as_tensor(seen, dtype=torch.float32)
            end = torch.as_tensor(ends, dtype=torch.float32)
            meter.returns.add(envs.raw_rewards if s.normalize else rewards, ends)
        with torch.no_grad():
            advantages, targets = storage.advantages(agent.value(obs).flatten(), end, s)
        update(agent, optimizer, storage, advantages, targets, s)
        env_steps += s.batch
        if meter.update(env_steps):
            return


def main() -> None:
    options = parse(vec="envpool", threads=1, env_threads=2)
    seed_all(options)
    peer = "cleanrl_envpool" if options.layout["vec"] == "envpool" else "cleanrl"
    meter = Meter(peer, options, ["torch", "gymnasium", "envpool", "numpy"])
    if options.settings.lstm:
        from run_cleanrl_lstm import train_recurrent

        train_recurrent(options, meter)
    elif options.settings.env == "simple_tag":
        from run_cleanrl_teams import train_teams

        train_teams(options, meter)
    else:
        train(options, meter)
    leave()


if __name__ == "__main__":
    main()
