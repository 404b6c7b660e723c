"""The CleanRL-style PPO with a memory (after ppo_atari_lstm.py), trained through short sequences.

Called by `run_cleanrl.py` for workloads with an LSTM.
"""

from __future__ import annotations

import torch
from measuring import Meter, Options
from run_cleanrl import Storage, anneal, layer, loss_of
from torch import nn
from torch.distributions import Categorical
from vectors import Vector

State = tuple[torch.Tensor, torch.Tensor]


class RecurrentAgent(nn.Module):
    def __init__(self, inputs: int, num_actions: int, size: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            layer(nn.Linear(inputs, 64)), nn.Tanh(), layer(nn.Linear(64, 64)), nn.Tanh()
        )
        self.lstm = nn.LSTM(64, size)
        for name, weight in self.lstm.named_parameters():
            nn.init.zeros_(weight) if "bias" in name else nn.init.orthogonal_(weight, 1.0)
        self.actor = layer(nn.Linear(size, num_actions), 0.01)
        self.critic = layer(nn.Linear(size, 1), 1.0)

    def states(self, obs: torch.Tensor, state: State, ends: torch.Tensor):
        """Through [T, rows, ...], zeroed where an episode ended before a step."""
        hidden, outputs = self.body(obs), []
        for features, end in zip(hidden, ends, strict=True):
            keep = (1.0 - end).view(1, -1, 1)
            out, state = self.lstm(features.unsqueeze(0), (keep * state[0], keep * state[1]))
            outputs.append(out)
        return torch.cat(outputs), state

    def forward(self, obs, state: State, ends, action: torch.Tensor | None = None):
        hidden, state = self.states(obs, state, ends)
        dist = Categorical(logits=self.actor(hidden))
        action = dist.sample() if action is None else action
        return action, dist.log_prob(action), dist.entropy(), self.critic(hidden).squeeze(-1), state


def sequences(tensor: torch.Tensor, length: int) -> torch.Tensor:
    """[T, rows, ...] to [length, rows * T / length, ...]: pieces side by side."""
    return torch.cat(tensor.split(length), dim=1)


def update(agent: RecurrentAgent, optimizer, storage: Storage, starts, advantages, targets, s):
    """All epochs; a minibatch is whole sequences, each from the state that was stored for it."""
    n = s.sequence
    parts = [storage.obs, storage.ends, storage.actions.long(), storage.log_probs]
    obs, ends, actions, log_probs = (sequences(part, n) for part in parts)
    advantages, targets = sequences(advantages, n), sequences(targets, n)
    h, c = (torch.cat([start[i] for start in starts], dim=1) for i in (0, 1))
    for _ in range(s.epochs):
        for rows in torch.randperm(obs.shape[1]).chunk(s.minibatches):
            state = (h[:, rows], c[:, rows])
            _, log_prob, entropy, value, _ = agent(
                obs[:, rows], state, ends[:, rows], actions[:, rows]
            )
            loss = loss_of(
                log_prob.view(-1),
                entropy,
                value.reshape(-1),
                log_probs[:, rows].reshape(-1),
                advantages[:, rows].reshape(-1),
                targets[:, rows].reshape(-1),
                s,
            )
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), s.max_grad_norm)
            optimizer.step()


def train_recurrent(options: Options, meter: Meter) -> None:
    """Trains until the meter has seen enough."""
    s, layout = options.settings, options.layout
    envs = Vector(s.env, s.num_envs, options.seed, layout["vec"], layout["env_threads"])
    obs = torch.as_tensor(envs.reset(), dtype=torch.float32)
    agent = RecurrentAgent(obs.shape[1], int(envs.action_space.n), s.lstm)
    meter.num_parameters = sum(p.numel() for p in agent.parameters())
    optimizer = torch.optim.Adam(agent.parameters(), lr=s.learning_rate, eps=s.adam_eps)
    storage = Storage(s.horizon, s.num_envs, obs.shape[1:], ())
    state = (torch.zeros(1, s.num_envs, s.lstm), torch.zeros(1, s.num_envs, s.lstm))
    end, env_steps = torch.zeros(s.num_envs), 0
    while True:
        anneal(optimizer, s, env_steps)
        starts = []
        for t in range(s.horizon):
            if t % s.sequence == 0:
                starts.append(state)
            storage.obs[t], storage.ends[t] = obs, end
            with torch.no_grad():
                action, log_prob, _, value, state = agent(obs[None], state, end[None])
            storage.actions[t], storage.log_probs[t] = action[0], log_prob[0]
            storage.values[t] = value[0]
            seen, rewards, ends = envs.step(action[0].numpy())
            storage.rewards[t] = torch.as_tensor(rewards, dtype=torch.float32)
            obs = torch.as_tensor(seen, dtype=torch.float32)
            end = torch.as_tensor(ends, dtype=torch.float32)
            meter.returns.add(rewards, ends)
        with torch.no_grad():
            next_value = agent(obs[None], state, end[None])[3][0]
            advantages, targets = storage.advantages(next_value, end, s)
        update(agent, optimizer, storage, starts, advantages, targets, s)
        env_steps += s.batch
        if meter.update(env_steps):
            return
