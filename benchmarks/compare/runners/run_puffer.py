"""PufferLib 3's trainer with its own vectorisation, advantage kernel and loop; Adam, float32.

Layouts: `vec=envpool` (a pool behind PufferLib's native interface) or `vec=workers` (its own worker
processes, two of them, with Gymnasium's environments), `threads` of torch.
"""

from __future__ import annotations

import contextlib
import io
import tempfile

import numpy as np
import pufferlib
import pufferlib.emulation
import pufferlib.models
import pufferlib.pytorch
import pufferlib.vector
import torch
from environments import (
    make_envpool,
    make_gym,
    pool_actions,
    pool_observations,
    pool_spaces,
)
from measuring import Meter, Options, leave, parse
from pufferlib.pufferl import PuffeRL
from run_cleanrl import anneal, image_network, layer, tower
from torch import nn
from workloads import Settings


class Pool(pufferlib.PufferEnv):
    """A pool as PufferLib steps its own environments: into buffers that it provides."""

    def __init__(self, env: str, num_envs: int, seed: int, returns, buf=None) -> None:
        self._env, self._pool = env, make_envpool(env, num_envs, seed, 2)
        spaces = pool_spaces(env, self._pool)
        self.single_observation_space, self.single_action_space = spaces
        self.num_agents = self.agents_per_batch = num_envs
        self._returns = returns
        super().__init__(buf)

    def reset(self, seed=None):
        self.observations[:] = pool_observations(self._env, self._pool.reset()[0])
        return self.observations, []

    def step(self, actions):
        actions = pool_actions(self._pool, np.asarray(actions))
        obs, rewards, terminated, truncated, _ = self._pool.step(actions)
        self.observations[:] = pool_observations(self._env, obs)
        self.rewards[:], self.terminals[:], self.truncations[:] = rewards, terminated, truncated
        self._returns.add(rewards, terminated | truncated)
        return self.observations, self.rewards, self.terminals, self.truncations, []

    def close(self) -> None:
        self._pool.close()


class Towers(nn.Module):
    """The networks of the other contenders, as a policy of PufferLib."""

    def __init__(self, envs, s: Settings) -> None:
        super().__init__()
        shape, space = envs.single_observation_space.shape, envs.single_action_space
        self.continuous, self.pixels = s.env == "cheetah", s.env == "pong"
        outputs = space.shape[0] if self.continuous else int(space.n)
        self.hidden_size = 64
        if self.pixels:
            self.body, width = image_network(s), s.image_features
            self.actor = layer(nn.Linear(width, outputs), 0.01)
            self.critic = layer(nn.Linear(width, 1))
        else:
            self.actor, self.critic = tower(shape[0], outputs, 0.01), tower(shape[0], 1, 1.0)
        if self.continuous:
            self.log_std = nn.Parameter(torch.zeros(1, outputs))

    def forward_eval(self, observations, state=None):
        hidden = observations.float()
        hidden = self.body(hidden / 255.0) if self.pixels else hidden
        out = self.actor(hidden)
        if self.continuous:
            out = torch.distributions.Normal(out, self.log_std.expand_as(out).exp())
        return out, self.critic(hidden)

    def forward(self, observations, state=None):
        return self.forward_eval(observations, state)


class Body(nn.Module):
    """The layers around PufferLib's LSTM wrapper."""

    def __init__(self, envs, size: int) -> None:
        super().__init__()
        inputs = envs.single_observation_space.shape[0]
        self.is_continuous, self.hidden_size = False, size
        self.layers = nn.Sequential(
            layer(nn.Linear(inputs, 64)), nn.Tanh(), layer(nn.Linear(64, 64)), nn.Tanh()
        )
        self.actor = layer(nn.Linear(size, int(envs.single_action_space.n)), 0.01)
        self.critic = layer(nn.Linear(size, 1), 1.0)

    def encode_observations(self, observations, state=None):
        return self.layers(observations.float())

    def decode_actions(self, hidden, state=None):
        return self.actor(hidden), self.critic(hidden)


def make_envs(options: Options, meter: Meter):
    s = options.settings
    if options.layout["vec"] == "envpool":
        kwargs = {"env": s.env, "num_envs": s.num_envs, "seed": options.seed}
        return pufferlib.vector.make(
            Pool,
            env_kwargs={**kwargs, "returns": meter.returns},
            backend=pufferlib.vector.PufferEnv,
        )

    def make(buf=None, seed=0):
        made = pufferlib.EpisodeStats(make_gym(s.env))
        return pufferlib.emulation.GymnasiumPufferEnv(env=made, buf=buf, seed=seed)

    return pufferlib.vector.make(
        make, num_envs=s.num_envs, num_workers=2, backend=pufferlib.vector.Multiprocessing
    )


def configuration(options: Options, folder: str) -> dict:
    s = options.settings
    return {
        "env": s.env,
        "name": "compare",
        "project": "compare",
        "data_dir": folder,
        "checkpoint_interval": 10**9,
        "seed": options.seed,
        "torch_deterministic": False,
        "device": "cpu",
        "cpu_offload": False,
        "compile": False,
        "compile_mode": "default",
        "compile_fullgraph": False,
        "precision": "float32",
        "optimizer": "adam",
        "adam_beta1": 0.9,
        "adam_beta2": 0.999,
        "adam_eps": s.adam_eps,
        "learning_rate": s.learning_rate,
        # Its own schedule is a cosine; the others' is set before each update.
        "anneal_lr": False,
        "total_timesteps": 10**10,
        "batch_size": s.batch,
        "bptt_horizon": s.sequence or min(s.horizon, s.minibatch),
        "minibatch_size": s.minibatch,
        "max_minibatch_size": s.minibatch,
        "update_epochs": s.epochs,
        "use_rnn": bool(s.lstm),
        "gamma": s.gamma,
        "gae_lambda": s.gae_lambda,
        "clip_coef": s.clip,
        "vf_clip_coef": 1e6,
        "vf_coef": s.value_coefficient,
        "ent_coef": s.entropy_coefficient,
        "max_grad_norm": s.max_grad_norm,
        "prio_alpha": 0.0,
        "prio_beta0": 1.0,
        "vtrace_rho_clip": 1.0,
        "vtrace_c_clip": 1.0,
    }


def main() -> None:
    options = parse(vec="envpool", threads=1)
    torch.set_num_threads(options.layout["threads"])
    torch.manual_seed(options.seed)
    s = options.settings
    meter = Meter("pufferlib", options, ["pufferlib", "torch", "gymnasium", "envpool", "numpy"])
    envs = make_envs(options, meter)
    policy: nn.Module = Towers(envs, s)
    if s.lstm:
        policy = pufferlib.models.LSTMWrapper(envs, Body(envs, s.lstm), 64, s.lstm)
    meter.num_parameters = sum(p.numel() for p in policy.parameters())
    with tempfile.TemporaryDirectory() as folder:
        # The dashboard that it prints would bury our lines; it is still drawn.
        with contextlib.redirect_stdout(io.StringIO()):
            trainer = PuffeRL(configuration(options, folder), envs, policy)
        while True:
            anneal(trainer.optimizer, s, trainer.global_step)
            with contextlib.redirect_stdout(io.StringIO()):
                trainer.evaluate()
                trainer.train()
            if meter.update(trainer.global_step):
                leave()


if __name__ == "__main__":
    main()
