"""An algorithm says how it treats samples of an older policy, or learns from none."""

from __future__ import annotations

from typing import Any

import pytest
from checking import Checking

from srl.algorithms.config import Sampling
from srl.algorithms.ppo.learner import PPO
from srl.envs.protocol import EnvConfig
from srl.envs.registry import probe
from srl.errors import ConfigError
from srl.experiment import Experiment
from srl.launch.plan.build import make_plan, resolve_settings
from srl.workers.actor import ActorConfig


class OwnLoss(PPO):
    def loss(self, minibatch: Any) -> Any:
        return super().loss(minibatch)


class Declared(OwnLoss):
    handles_stale_samples = True


class AnotherLoss(Declared):
    def loss(self, minibatch: Any) -> Any:
        return super().loss(minibatch)


class LossOfMixin:
    def loss(self, minibatch: Any) -> Any:
        raise NotImplementedError


class Mixed(LossOfMixin, PPO):  # type: ignore[misc]
    pass


class OwnTargets(PPO):
    def targets(self, rollout: Any) -> Any:
        return super().targets(rollout)


def plan_ages(kind: type[PPO], **settings: Any) -> list[int | None]:
    experiment = Experiment(
        env=EnvConfig(id="CartPole-v1"),
        actor=ActorConfig(envs=4),
        algorithm={"name": f"{kind.__module__}:{kind.__name__}", **settings},
        layout="serial",
    )
    settled = resolve_settings(experiment, 2, "cpu")
    plan = make_plan(settled, probe(settled.env), "cpu")[0]
    assert plan.policies["default"].handles_stale_samples is kind.handles_stale_samples
    return [stream.spec.max_policy_age for stream in plan.samples.values()]


@pytest.mark.parametrize("kind", [OwnLoss, AnotherLoss, Mixed])
@pytest.mark.parametrize("age", [1, None])
def test_a_loss_that_says_nothing_gets_no_stale_samples(kind: type, age: int | None) -> None:
    message = (
        rf"max_policy_age: expected 0, because {kind.__name__} does not declare .* got \w+.*Set"
    )
    with pytest.raises(ConfigError, match=message):
        plan_ages(kind, max_policy_age=age)
    assert plan_ages(kind, max_policy_age=0) == [0]


@pytest.mark.parametrize("kind", [PPO, Declared, OwnTargets])
def test_an_algorithm_that_handles_stale_samples_gets_them(kind: type) -> None:
    assert plan_ages(kind) == [1]
    assert plan_ages(kind, max_policy_age=None) == [None]


def test_an_algorithm_from_scratch_is_synchronous_unless_it_says_otherwise() -> None:
    assert Sampling(length=4).max_policy_age == 0
    assert Checking.handles_stale_samples, "so this one learns from samples of any age"
