"""RLlib's PPO and IMPALA on its new API stack.

Layouts: `algo=ppo|impala`, `runners` (processes with environments; 0: in this one), `threads` of
this process's torch. Environments are Gymnasium's: RLlib steps single ones.
"""

from __future__ import annotations

import logging
import os
import warnings

os.environ.setdefault("RAY_AUTH_MODE", "token")
warnings.filterwarnings("ignore")

import gymnasium  # noqa: E402
import numpy as np  # noqa: E402
import ray  # noqa: E402
import torch  # noqa: E402
from environments import make_gym  # noqa: E402
from measuring import Meter, Options, leave, parse  # noqa: E402
from ray.rllib.algorithms.impala import IMPALAConfig  # noqa: E402
from ray.rllib.algorithms.ppo import PPOConfig  # noqa: E402
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig  # noqa: E402
from ray.tune.registry import register_env  # noqa: E402

logging.disable(logging.WARNING)
HERE = os.path.dirname(os.path.abspath(__file__))


def make(config):
    """An environment, in whatever process."""
    env = config["name"]
    if env == "simple_tag":
        from mpe2 import simple_tag_v3
        from ray.rllib.env.wrappers.pettingzoo_env import ParallelPettingZooEnv

        return ParallelPettingZooEnv(simple_tag_v3.parallel_env())
    if env == "pong":
        import ale_py
        from ray.rllib.env.wrappers.atari_wrappers import wrap_atari_for_new_api_stack

        gymnasium.register_envs(ale_py)
        raw = gymnasium.make("ALE/Pong-v5", frameskip=1, repeat_action_probability=0.0)
        return wrap_atari_for_new_api_stack(raw, dim=84, framestack=4)
    return make_gym(env)


def model_of(options: Options) -> DefaultModelConfig:
    s = options.settings
    if s.env == "pong":
        # As the others have it. RLlib would pad by itself, and layers after the convolutions belong
        # to one head: its shared linear layer is a convolution over all that is left of the image.
        sizes = (*s.convolutions, (s.image_features, s.image_side, 1))
        return DefaultModelConfig(
            conv_filters=[[*size, "valid"] for size in sizes],
            conv_activation="relu",
            head_fcnet_hiddens=[],
            vf_share_layers=True,
        )
    memory = (
        {"use_lstm": True, "lstm_cell_size": s.lstm, "max_seq_len": s.sequence} if s.lstm else {}
    )
    return DefaultModelConfig(
        fcnet_hiddens=[64, 64], fcnet_activation="tanh", vf_share_layers=bool(s.lstm), **memory
    )


def configuration(options: Options):
    s, layout = options.settings, options.layout
    runners, ppo = layout["runners"], layout["algo"] == "ppo"
    # IMPALA has no minibatches: its batch is one of the others', so that updates are as many.
    batch, horizon = (s.batch, s.horizon) if ppo else (s.minibatch, s.minibatch // s.num_envs)
    config = (PPOConfig if ppo else IMPALAConfig)()
    config = config.environment("compare", env_config={"name": s.env})
    config = config.env_runners(
        num_env_runners=runners,
        num_envs_per_env_runner=s.num_envs // max(1, runners),
        rollout_fragment_length=horizon,
        num_cpus_per_env_runner=1,
    )
    config = config.learners(num_learners=0).rl_module(model_config=model_of(options))
    config = config.debugging(seed=options.seed, log_level="ERROR")
    shared = {
        "train_batch_size_per_learner": batch,
        "lr": [[0, s.learning_rate], [s.anneal_steps, 0.0]] if s.anneal_steps else s.learning_rate,
        "gamma": s.gamma,
        "grad_clip": s.max_grad_norm,
        "entropy_coeff": s.entropy_coefficient,
        "vf_loss_coeff": s.value_coefficient,
    }
    if ppo:
        shared |= {
            # PPO's value loss is the whole squared error; IMPALA's, ours and CleanRL's is half.
            "vf_loss_coeff": s.value_coefficient / 2,
            "minibatch_size": s.minibatch,
            "num_epochs": s.epochs,
            "lambda_": s.gae_lambda,
            "clip_param": s.clip,
            "vf_clip_param": 1e9,
            "use_kl_loss": False,
        }
    config = config.training(**shared)
    if s.env == "simple_tag":
        config = config.multi_agent(
            policies={"chaser", "runner"},
            policy_mapping_fn=lambda agent, *_, **__: (
                "chaser" if agent.startswith("adversary") else "runner"
            ),
        )
    least = None if ppo else 1
    return config.reporting(min_time_s_per_iteration=least, metrics_num_episodes_for_smoothing=100)


def trained(result: dict, options: Options) -> float:
    """Environment steps that went through the learner, so far."""
    if options.layout["algo"] == "ppo":
        return result["env_runners"]["num_env_steps_sampled_lifetime"]
    learners = result.get("learners", {})
    found = [
        part[key]
        for part in learners.values()
        for key in ("num_env_steps_trained_lifetime", "num_module_steps_trained_lifetime")
        if key in part
    ]
    return max(found, default=0)


def count(weights) -> int:
    """Numbers in all arrays of a nested dictionary."""
    if isinstance(weights, dict):
        return sum(count(part) for part in weights.values())
    return int(np.size(weights))


def main() -> None:
    options = parse(algo="ppo", runners=2, threads=1)
    torch.set_num_threads(options.layout["threads"])
    path = os.pathsep.join([HERE, os.path.dirname(HERE)])
    ray.init(
        num_cpus=8,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        object_store_memory=10**9,
        runtime_env={"env_vars": {"PYTHONPATH": path}},
    )
    register_env("compare", make)
    algorithm = configuration(options).build_algo()
    meter = Meter(
        f"rllib_{options.layout['algo']}", options, ["ray", "torch", "gymnasium", "numpy"]
    )
    meter.num_parameters = count(algorithm.learner_group.get_weights())
    last = 0
    while True:
        result = algorithm.train()
        found = result.get("env_runners", {})
        # Its mean is of the episodes that ended in this iteration, however wide it is to be.
        mean = found.get("episode_return_mean", np.nan)
        ended = int(found.get("num_episodes_lifetime", 0)) - meter.returns.episodes
        for _ in range(ended if np.isfinite(mean) else 0):
            meter.returns.append(mean)
        env_steps = trained(result, options)
        if env_steps > last and meter.update(env_steps):
            leave()
        last = env_steps


if __name__ == "__main__":
    main()
