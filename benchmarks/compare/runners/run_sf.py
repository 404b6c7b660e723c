"""Sample Factory's APPO, with its own learner, sampler and networks.

Layouts: `envs=gym` (single environments, `workers` x `envs_per_worker` by the settings, `splits`
for double buffering) or `envs=envpool` (a pool for each worker, batched sampling); `mode=async`,
`sync` (parallel processes that wait for each other) or `serial` (one process).
"""

from __future__ import annotations

import math
import tempfile

import gymnasium
import numpy as np
import torch
from environments import (
    make_envpool,
    make_gym,
    pool_actions,
    pool_observations,
    pool_spaces,
)
from measuring import Meter, Options, leave, parse
from sample_factory.algo.runners.runner import AlgoObserver
from sample_factory.algo.utils.misc import ExperimentStatus
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.model.actor_critic import create_actor_critic
from sample_factory.train import make_runner

CONVOLUTIONS = {
    ((32, 8, 4), (64, 4, 2), (64, 3, 1)): "convnet_atari",
    ((16, 8, 4), (32, 4, 2)): "convnet_impala",
}
"""Its names of networks for images."""


class Pool(gymnasium.Env):
    """A pool as Sample Factory's batched sampling wants it: ended environments start anew."""

    def __init__(self, env: str, num_agents: int, seed: int, num_threads: int) -> None:
        self._env, self.num_agents = env, num_agents
        self._pool = make_envpool(env, num_agents, seed, num_threads)
        self.observation_space, self.action_space = pool_spaces(env, self._pool)
        self.render_mode = None

    def reset(self, **_):
        return pool_observations(self._env, self._pool.reset()[0]), {}

    def step(self, actions):
        actions = pool_actions(self._pool, np.asarray(actions))
        obs, rewards, terminated, truncated, _ = self._pool.step(actions)
        obs = pool_observations(self._env, obs)
        rows = np.nonzero(terminated | truncated)[0]
        if len(rows):
            obs[rows] = pool_observations(self._env, self._pool.reset(rows.astype(np.int32))[0])
        return obs, rewards, terminated, truncated, {}


def make_env(name, cfg=None, env_config=None, render_mode=None):
    if cfg.batched_sampling:
        seed = cfg.seed + (env_config.env_id if env_config else 0)
        return Pool(name, cfg.env_agents, seed, 2)
    return gymnasium.make("HalfCheetah-v4") if name == "cheetah" else make_gym(name)


class Watch(AlgoObserver):
    """Shows the meter every training step."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter

    def on_training_step(self, runner, training_iteration_since_resume: int) -> None:
        env_steps = runner.env_steps.get(0, 0)
        if not env_steps:
            return
        stats = runner.policy_avg_stats.get("reward")
        self.meter.returns.last = list(stats[0]) if stats else []
        self.meter.returns.episodes = len(self.meter.returns.last)
        if self.meter.update(env_steps):
            leave()


def network_arguments(options: Options) -> list[str]:
    s = options.settings
    arguments = [
        f"--use_rnn={bool(s.lstm)}",
        f"--actor_critic_share_weights={s.env in ('pong', 'cartpole_masked')}",
        f"--nonlinearity={'relu' if s.env == 'pong' else 'tanh'}",
        "--encoder_mlp_layers",
        "64",
        "64",
        f"--encoder_conv_architecture={CONVOLUTIONS[s.convolutions]}",
        "--encoder_conv_mlp_layers",
        f"{s.image_features}",
        f"--obs_scale={255.0 if s.env == 'pong' else 1.0}",
        "--adaptive_stddev=False",
        f"--initial_stddev={math.exp(s.log_std)}",
        f"--normalize_input={s.normalize}",
        f"--normalize_returns={s.normalize}",
    ]
    if s.lstm:
        arguments += ["--rnn_type=lstm", f"--rnn_size={s.lstm}", "--rnn_num_layers=1"]
    return arguments


def layout_arguments(options: Options) -> list[str]:
    s, layout = options.settings, options.layout
    workers, pool = layout["workers"], layout["envs"] == "envpool"
    per_worker = s.num_envs // workers
    arguments = [
        f"--num_workers={workers}",
        f"--worker_num_splits={layout['splits']}",
        f"--async_rl={layout['mode'] == 'async'}",
        f"--serial_mode={layout['mode'] == 'serial'}",
        f"--batched_sampling={pool}",
        f"--num_envs_per_worker={layout['splits'] if pool else per_worker}",
    ]
    return [*arguments, f"--env_agents={per_worker // layout['splits']}"] if pool else arguments


def configuration(options: Options, folder: str):
    s = options.settings
    arguments = [
        f"--env={s.env}",
        "--experiment=compare",
        f"--train_dir={folder}",
        "--device=cpu",
        f"--seed={options.seed}",
        # It decays the learning rate over all that it trains for.
        f"--train_for_env_steps={s.anneal_steps or 10**10}",
        "--summaries_use_frameskip=False",
        "--save_every_sec=1000000",
        "--save_best_every_sec=1000000",
        "--experiment_summaries_interval=1000000",
        "--decorrelate_envs_on_one_worker=False",
        "--decorrelate_experience_max_seconds=0",
        f"--rollout={s.horizon}",
        f"--recurrence={s.sequence or 1}",
        f"--batch_size={s.minibatch}",
        f"--num_batches_per_epoch={s.minibatches}",
        f"--num_epochs={s.epochs}",
        f"--learning_rate={s.learning_rate}",
        "--lr_schedule=constant",
        f"--gamma={s.gamma}",
        f"--gae_lambda={s.gae_lambda}",
        f"--ppo_clip_ratio={s.clip}",
        "--ppo_clip_value=1000000",
        # Its value loss is the whole squared error; ours and CleanRL's is half of it.
        f"--value_loss_coeff={s.value_coefficient / 2}",
        f"--exploration_loss_coeff={s.entropy_coefficient}",
        "--exploration_loss=entropy",
        f"--max_grad_norm={s.max_grad_norm}",
        f"--adam_eps={s.adam_eps}",
        "--with_vtrace=False",
        "--reward_scale=1.0",
        "--reward_clip=1000000",
        "--stats_avg=100",
        *network_arguments(options),
        *layout_arguments(options),
    ]
    parser, _ = parse_sf_args(argv=arguments)
    parser.add_argument("--env_agents", default=1, type=int)
    cfg = parse_full_cfg(parser, arguments)
    if s.anneal_steps:
        # It knows this schedule, and its command line does not.
        cfg.lr_schedule = "linear_decay"
    return cfg


def parameters_of(runner) -> int:
    """Parameters of the network that its learner makes, in whatever process that is."""
    info = runner.env_info
    network = create_actor_critic(runner.cfg, info.obs_space, info.action_space)
    return sum(p.numel() for p in network.parameters())


def main() -> None:
    options = parse(envs="gym", mode="async", workers=2, splits=2, threads=0)
    if options.layout["threads"]:
        torch.set_num_threads(options.layout["threads"])
    meter = Meter("sample_factory", options, ["sample-factory", "torch", "gymnasium", "numpy"])
    register_env(options.settings.env, make_env)
    with tempfile.TemporaryDirectory() as folder:
        _, runner = make_runner(configuration(options, folder))
        runner.register_observer(Watch(meter))
        if runner.init() == ExperimentStatus.SUCCESS:
            meter.num_parameters = parameters_of(runner)
            runner.run()
    raise SystemExit("Sample Factory ended by itself.")


if __name__ == "__main__":
    main()
