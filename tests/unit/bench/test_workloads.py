"""The workloads are what the table of them says, and anything else can be measured too."""

from __future__ import annotations

import pytest

from srl.algorithms.ppo.config import PPOConfig
from srl.bench.bench import settled
from srl.bench.report import list_workloads
from srl.bench.workloads import WORKLOADS, experiment_of, find_target
from srl.errors import ConfigError
from srl.launch.plan.build import network_settings

BATCHES = {
    "W1a": (64, 32, 1, 1),
    "W1b": (64, 16, 4, 4),
    "W2a": (8, 128, 1, 4),
    "W2b": (8, 128, 4, 4),
    "W3a": (64, 32, 1, 1),
    "W3b": (64, 32, 4, 4),
    "W4": (64, 32, 1, 1),
    "W5": (16, 64, 4, 4),
}


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_workload_is_an_experiment_with_equal_settings(name: str) -> None:
    experiment = experiment_of(name)
    plain = {key: value for key, value in experiment.algorithm.items() if key != "name"}
    ppo = PPOConfig(**plain)
    size = (experiment.actor.envs, ppo.rollout_length, ppo.epochs, ppo.minibatches)
    assert size == BATCHES[name]
    assert (ppo.gamma, ppo.gae_lambda, ppo.clip) == (0.99, 0.95, 0.2)
    assert (ppo.value_coefficient, ppo.max_grad_norm, ppo.value_clip) == (0.5, 0.5, None)
    cheetah = name.startswith("W3")
    assert ppo.entropy_coefficient == (0.0 if cheetah else 0.01)
    assert ppo.learning_rate == (3e-4 if cheetah else 2.5e-4)
    network = network_settings(experiment)
    assert not network["normalize_obs"]
    assert not network["normalize_returns"]
    assert experiment.evaluator.count == 0
    assert name in list_workloads()


def test_workloads_that_need_more_say_so() -> None:
    recurrent = experiment_of("W4")
    assert recurrent.algorithm["chunk_length"] == 16
    assert recurrent.network["recurrent_size"] == 128
    assert set(experiment_of("W5").policies) == {"chaser", "runner"}


def test_a_recipe_is_measured_without_its_end() -> None:
    experiment = find_target("cartpole", "serial", {"actor.envs": 8})
    assert (experiment.until, experiment.steps) == ("", 0)
    assert experiment.seconds > 0
    ready, _ = settled(experiment)
    assert (ready.layout, ready.actor.count, ready.actor.envs) == ("serial", 1, 8)


@pytest.mark.parametrize("name", ["W9", "w1a", "cartpoole"])
def test_an_unknown_name_is_answered_with_those_that_exist(name: str) -> None:
    with pytest.raises(ConfigError, match=r"W1a, W1b") as raised:
        find_target(name, None, {})
    assert name in str(raised.value)


def test_settings_are_checked_before_anything_runs() -> None:
    with pytest.raises(ConfigError, match="epoch"):
        find_target("W1a", None, {"algorithm.epoch": 3})
