"""Stable-Baselines3's PPO, and sb3-contrib's RecurrentPPO for workloads with a memory.

Layouts: `vec=dummy` (all environments in this process), `vec=subproc` (a process each) and
`vec=envpool` (EnvPool behind SB3's interface, as EnvPool's own example does it).
"""

from __future__ import annotations

import numpy as np
import torch
from environments import (
    make_envpool,
    make_gym,
    pool_actions,
    pool_observations,
    pool_spaces,
)
from gymnasium import spaces
from measuring import Meter, Options, leave, parse
from run_cleanrl import image_network
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecNormalize
from torch import nn
from workloads import Settings


class PoolVecEnv(VecEnv):
    """A pool of EnvPool as SB3 steps it: ended environments are reset in the same step."""

    def __init__(self, env: str, num_envs: int, seed: int, num_threads: int) -> None:
        self._env, self._pool = env, make_envpool(env, num_envs, seed, num_threads)
        super().__init__(num_envs, *pool_spaces(env, self._pool))

    def reset(self):
        return pool_observations(self._env, self._pool.reset()[0])

    def step_async(self, actions) -> None:
        self._actions = pool_actions(self._pool, actions)

    def step_wait(self):
        obs, rewards, terminated, truncated, _ = self._pool.step(self._actions)
        obs = pool_observations(self._env, obs)
        ends = terminated | truncated
        infos: list[dict] = [{} for _ in range(self.num_envs)]
        if ends.any():
            rows = ends.nonzero()[0]
            for row in rows:
                infos[row]["terminal_observation"] = obs[row].copy()
                infos[row]["TimeLimit.truncated"] = bool(truncated[row] and not terminated[row])
            obs[rows] = pool_observations(self._env, self._pool.reset(rows.astype(np.int32))[0])
        return obs, rewards, ends, infos

    def close(self) -> None:
        self._pool.close()

    def get_attr(self, attr_name, indices=None):
        return [None] * self.num_envs

    def set_attr(self, attr_name, value, indices=None) -> None:
        raise NotImplementedError

    def env_method(self, method_name, *args, indices=None, **kwargs):
        raise NotImplementedError

    def env_is_wrapped(self, wrapper_class, indices=None):
        return [False] * self.num_envs


class Watch(BaseCallback):
    """Shows the meter every step's rewards, and every update when the next rollout starts."""

    def __init__(self, meter: Meter) -> None:
        super().__init__()
        self.meter, self._over = meter, False

    def _on_step(self) -> bool:
        rewards = self.locals["rewards"]
        if isinstance(self.training_env, VecNormalize):
            rewards = self.training_env.get_original_reward()
        self.meter.returns.add(rewards, self.locals["dones"])
        return not self._over

    def _on_rollout_start(self) -> None:
        if self.num_timesteps:
            self._over = self.meter.update(self.num_timesteps)


class Body(BaseFeaturesExtractor):
    """The 64x64 layers before the memory."""

    def __init__(self, observation_space: spaces.Box) -> None:
        super().__init__(observation_space, 64)
        inputs = observation_space.shape[0]
        self.layers = nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return self.layers(observations)


class Images(BaseFeaturesExtractor):
    """Convolutions and a layer, as in its own NatureCNN."""

    def __init__(self, observation_space: spaces.Box, s: Settings) -> None:
        super().__init__(observation_space, s.image_features)
        self.layers = image_network(s)

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return self.layers(observations)


def make_envs(options: Options) -> VecEnv:
    s, layout = options.settings, options.layout
    if layout["vec"] == "envpool":
        envs: VecEnv = PoolVecEnv(s.env, s.num_envs, options.seed, layout["env_threads"])
    else:
        makers = [lambda: make_gym(s.env)] * s.num_envs
        if layout["vec"] == "subproc":
            envs = SubprocVecEnv(makers, start_method="fork")
        else:
            envs = DummyVecEnv(makers)
    if s.normalize:
        envs = VecNormalize(envs, gamma=s.gamma)
    return envs


def make_model(options: Options, envs: VecEnv):
    s = options.settings
    rate = s.learning_rate
    shared = {
        "n_steps": s.horizon,
        "batch_size": s.minibatch,
        "n_epochs": s.epochs,
        "learning_rate": (lambda left: rate * left) if s.anneal_steps else rate,
        "gamma": s.gamma,
        "gae_lambda": s.gae_lambda,
        "clip_range": s.clip,
        "ent_coef": s.entropy_coefficient,
        # Its value loss is the whole squared error; ours and CleanRL's is half of it.
        "vf_coef": s.value_coefficient / 2,
        "max_grad_norm": s.max_grad_norm,
        "seed": options.seed,
        "device": "cpu",
    }
    if not s.lstm:
        if s.env == "pong":
            images = {"features_extractor_class": Images, "features_extractor_kwargs": {"s": s}}
            # Heads alone, as after its own NatureCNN; after any other it adds layers of 64x64.
            return PPO("CnnPolicy", envs, policy_kwargs={**images, "net_arch": []}, **shared)
        return PPO("MlpPolicy", envs, policy_kwargs={"log_std_init": s.log_std}, **shared)
    from sb3_contrib import RecurrentPPO

    network = {
        "features_extractor_class": Body,
        "net_arch": [],
        "lstm_hidden_size": s.lstm,
        "shared_lstm": True,
        "enable_critic_lstm": False,
    }
    return RecurrentPPO("MlpLstmPolicy", envs, policy_kwargs=network, **shared)


def main() -> None:
    options = parse(vec="dummy", threads=1, env_threads=2)
    torch.set_num_threads(options.layout["threads"])
    model = make_model(options, make_envs(options))
    packages = ["stable-baselines3", "sb3-contrib", "torch", "gymnasium", "envpool", "numpy"]
    meter = Meter("sb3", options, packages)
    meter.num_parameters = sum(p.numel() for p in model.policy.parameters())
    total = options.settings.anneal_steps or options.learn or 10**9
    model.learn(total, callback=Watch(meter))
    if options.learn:
        meter.report(model.num_timesteps)
    leave()


if __name__ == "__main__":
    main()
