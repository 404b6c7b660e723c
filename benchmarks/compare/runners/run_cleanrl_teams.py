"""The CleanRL-style PPO with two policies that learn from each other, one after the other.

Called by `run_cleanrl.py` for simple_tag. `vec=sync` steps all games here, `vec=async` in two
processes.
"""

from __future__ import annotations

import numpy as np
import torch
from measuring import Meter, Options
from run_cleanrl import Agent, Storage, update
from teams import SIDES, Games, GamesElsewhere


def train_teams(options: Options, meter: Meter) -> None:
    """Trains until the meter has seen enough."""
    s = options.settings
    if options.layout["vec"] == "async":
        games = GamesElsewhere(s.num_envs, options.seed, workers=2)
    else:
        games = Games(s.num_envs, options.seed)
    obs = {side: torch.as_tensor(seen) for side, seen in games.reset().items()}
    agents = {side: Agent(seen.shape[1:], 5, False, s) for side, seen in obs.items()}
    optimizers = {
        side: torch.optim.Adam(agent.parameters(), lr=s.learning_rate, eps=s.adam_eps)
        for side, agent in agents.items()
    }
    meter.num_parameters = sum(p.numel() for a in agents.values() for p in a.parameters())
    storages = {k: Storage(s.horizon, len(v), v.shape[1:], ()) for k, v in obs.items()}
    end = {side: torch.zeros(len(seen)) for side, seen in obs.items()}
    env_steps = 0
    while True:
        for t in range(s.horizon):
            actions = {}
            for side, agent in agents.items():
                storage = storages[side]
                storage.obs[t], storage.ends[t] = obs[side], end[side]
                with torch.no_grad():
                    action, log_prob, _, value = agent(obs[side])
                storage.actions[t], storage.log_probs[t] = action, log_prob
                storage.values[t] = value.flatten()
                actions[side] = action.numpy()
            seen, rewards, ends = games.step(actions)
            for side, names in SIDES.items():
                storages[side].rewards[t] = torch.as_tensor(rewards[side])
                obs[side] = torch.as_tensor(seen[side])
                ended = np.repeat(ends, len(names))
                end[side] = torch.as_tensor(ended, dtype=torch.float32)
            meter.returns.add(rewards["runner"], ends)
        for side, agent in agents.items():
            with torch.no_grad():
                next_value = agent.value(obs[side]).flatten()
                found = storages[side].advantages(next_value, end[side], s)
            update(agent, optimizers[side], storages[side], *found, s)
        env_steps += s.batch
        if meter.update(env_steps):
            return
