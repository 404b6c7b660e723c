"""An expert that is a rule: datasets of what it does, and a run whose policy it is."""

from __future__ import annotations

from pathlib import Path

import gymnasium
import numpy as np

from srl.datasets.episode import Episode
from srl.datasets.writer import DatasetWriter
from srl.envs.registry import probe
from srl.launch.directory.run_dir import RunDir
from srl.launch.plan.build import filled_in, plan_policies
from srl.overrides import override
from srl.recipes.target import find_experiment
from srl.services.checkpoints import Manifest, weights_part, write_part
from srl.workers.wiring import build_policy

RULE = np.array([0.1, 0.3, 1.0, 1.0])
"""CartPole: the sign of this weighted sum of the observation says where to push. It never falls."""


def record_rule(folder: Path, episodes: int, steps: int = 500) -> Path:
    """Writes episodes of CartPole in which the rule acts, each cut after some steps."""
    env = gymnasium.make("CartPole-v1")
    with DatasetWriter(
        folder, observation_space=env.observation_space, action_space=env.action_space
    ) as writer:
        for seed in range(episodes):
            seen, actions = [env.reset(seed=seed)[0]], []
            for _ in range(steps):
                actions.append(int(seen[-1] @ RULE > 0))
                obs, _, terminated, truncated, _ = env.step(actions[-1])
                seen.append(obs)
                assert not terminated
                if truncated:
                    break
            ends = np.arange(len(actions)) == len(actions) - 1
            writer.add(
                Episode(
                    observations=np.stack(seen),
                    actions=np.array(actions),
                    rewards=np.ones(len(actions)),
                    terminations=np.zeros(len(actions), bool),
                    truncations=ends,
                    seed=seed,
                )
            )
        return writer.finish()


def rule_run(folder: Path) -> Path:
    """A run whose policy is the rule, as if it had been trained."""
    settings = {"network.hidden_sizes": [], "network.normalize_obs": False}
    experiment = filled_in(override(find_experiment("CartPole-v1"), settings))
    plan = plan_policies(experiment, probe(experiment.env))["default"]
    weights = {name: t.numpy() for name, t in build_policy(plan, 1).state_dict().items()}
    weights["action_head.linear.weight"][...] = np.stack([-RULE, RULE])
    weights["action_head.linear.bias"][...] = 0.0
    directory = RunDir(folder)
    with directory.locked():
        directory.write_config(experiment)
    store = directory.store()
    checkpoint = store.begin(1)
    write_part(checkpoint, weights_part("default"), weights)
    store.commit(checkpoint, Manifest(number=1, policy_versions={}, env_steps=0, episodes=0))
    return folder
