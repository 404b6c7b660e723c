"""TorchRL's PPO in the style of its sota-implementations: collector, GAE, ClipPPOLoss.

Layouts: `vec=serial` (environments in this process), `vec=parallel` (a process each) or
`vec=envpool` (TorchRL's wrapper of a pool, on `env_threads` threads).
"""

from __future__ import annotations

import logging
import warnings

warnings.filterwarnings("ignore")

import torch  # noqa: E402
from environments import make_envpool, make_gym  # noqa: E402
from measuring import Meter, Options, leave, parse  # noqa: E402
from run_cleanrl import anneal, image_network  # noqa: E402
from tensordict.nn import AddStateIndependentNormalScale, TensorDictModule  # noqa: E402
from torch import nn  # noqa: E402
from torchrl.collectors import Collector  # noqa: E402
from torchrl.envs import (  # noqa: E402
    Compose,
    DoubleToFloat,
    GymWrapper,
    MultiThreadedEnvWrapper,
    ParallelEnv,
    RewardSum,
    SerialEnv,
    TransformedEnv,
)
from torchrl.envs.libs.gym import set_gym_backend  # noqa: E402
from torchrl.modules import (  # noqa: E402
    ActorValueOperator,
    ProbabilisticActor,
    ValueOperator,
)
from torchrl.objectives import ClipPPOLoss  # noqa: E402
from torchrl.objectives.value import GAE  # noqa: E402
from workloads import Settings  # noqa: E402

logging.disable(logging.WARNING)


def tower(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs)
    )


class Images(nn.Module):
    def __init__(self, s: Settings) -> None:
        super().__init__()
        self.layers = image_network(s)

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        flat = frames.reshape(-1, 4, 84, 84).float() / 255
        return self.layers(flat).reshape(*frames.shape[:-3], -1)


class Pool(MultiThreadedEnvWrapper):
    """A pool by TorchRL's own wrapper, which looks for the spaces of old Gym; these are
    Gymnasium's."""

    def _make_specs(self, env) -> None:
        with set_gym_backend("gymnasium"):
            self.action_spec = self._get_action_spec()
            specs = self._get_output_spec()
        self.observation_spec = specs["full_observation_spec"]
        self.reward_spec = specs["full_reward_spec"]
        self.done_spec = specs["full_done_spec"]


def make_envs(options: Options):
    s, layout = options.settings, options.layout
    changes = Compose(DoubleToFloat(), RewardSum())
    if layout["vec"] == "envpool":
        pool = make_envpool(s.env, s.num_envs, options.seed, layout["env_threads"])
        return TransformedEnv(Pool(pool), changes)

    def make():
        if s.env == "cheetah":
            return GymWrapper(make_gym(s.env))
        return GymWrapper(make_gym(s.env), categorical_action_encoding=True)

    kind = SerialEnv if layout["vec"] == "serial" else ParallelEnv
    return TransformedEnv(kind(s.num_envs, make), changes)


def add_axis(step) -> None:
    """Gives what a pool says of a step the last axis that its losses expect."""
    for key in ("reward", "episode_reward", "done", "terminated", "truncated"):
        step[key] = step[key].unsqueeze(-1)


def make_modules(s: Settings, spec):
    """Actor and critic."""
    if s.env == "cheetah":
        net = nn.Sequential(tower(17, 6), AddStateIndependentNormalScale(6))
        head = TensorDictModule(net, ["observation"], ["loc", "scale"])
        actor = ProbabilisticActor(
            head,
            in_keys=["loc", "scale"],
            distribution_class=torch.distributions.Normal,
            return_log_prob=True,
            spec=spec,
        )
        return actor, ValueOperator(tower(17, 1), in_keys=["observation"])
    pixels = s.env == "pong"
    net = nn.Linear(s.image_features, 6) if pixels else tower(4, 2)
    actor = ProbabilisticActor(
        TensorDictModule(net, ["hidden" if pixels else "observation"], ["logits"]),
        in_keys=["logits"],
        distribution_class=torch.distributions.Categorical,
        return_log_prob=True,
        spec=spec,
    )
    if not pixels:
        return actor, ValueOperator(tower(4, 1), in_keys=["observation"])
    body = TensorDictModule(Images(s), ["observation"], ["hidden"])
    value = ValueOperator(nn.Linear(s.image_features, 1), in_keys=["hidden"])
    both = ActorValueOperator(body, actor, value)
    return both.get_policy_operator(), both.get_value_operator()


def train(options: Options, meter: Meter) -> None:
    s = options.settings
    envs = make_envs(options)
    actor, critic = make_modules(s, envs.action_spec)
    advantage = GAE(gamma=s.gamma, lmbda=s.gae_lambda, value_network=critic, average_gae=False)
    loss_module = ClipPPOLoss(
        actor,
        critic,
        clip_epsilon=s.clip,
        entropy_coeff=s.entropy_coefficient,
        # Its value loss is the whole squared error; ours and CleanRL's is half of it.
        critic_coeff=s.value_coefficient / 2,
        loss_critic_type="l2",
        normalize_advantage=True,
    )
    parameters = list(loss_module.parameters())
    meter.num_parameters = sum(p.numel() for p in parameters)
    optimizer = torch.optim.Adam(parameters, lr=s.learning_rate, eps=s.adam_eps)
    collector = Collector(envs, actor, frames_per_batch=s.batch, total_frames=-1)
    env_steps = 0
    for data in collector:
        anneal(optimizer, s, env_steps)
        if options.layout["vec"] == "envpool":
            add_axis(data["next"])
        for value in data["next", "episode_reward"][data["next", "done"]].tolist():
            meter.returns.append(value)
        with torch.no_grad():
            flat = advantage(data).reshape(-1)
        for _ in range(s.epochs):
            for rows in torch.randperm(len(flat)).split(s.minibatch):
                losses = loss_module(flat[rows])
                loss = losses["loss_objective"] + losses["loss_critic"]
                loss = loss + losses["loss_entropy"] if s.entropy_coefficient else loss
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(parameters, s.max_grad_norm)
                optimizer.step()
        env_steps += s.batch
        if meter.update(env_steps):
            return


def main() -> None:
    options = parse(vec="serial", threads=1, env_threads=2)
    torch.set_num_threads(options.layout["threads"])
    torch.manual_seed(options.seed)
    meter = Meter("torchrl", options, ["torchrl", "tensordict", "torch", "gymnasium", "envpool"])
    train(options, meter)
    leave()


if __name__ == "__main__":
    main()
