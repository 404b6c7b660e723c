"""Plans with several trainers of one policy."""

from __future__ import annotations

from typing import Any

import pytest

from srl.algorithms.ppo.learner import PPO
from srl.envs.protocol import EnvConfig
from srl.envs.registry import probe
from srl.errors import ConfigError
from srl.experiment import Experiment
from srl.launch.plan import make_plan, settle
from srl.workers.actor import ActorConfig
from srl.workers.configs import TrainerConfig
from srl.workers.wiring import Plan


class Private(PPO):
    """An algorithm that has not heard of other trainers."""

    data_parallel = False


def plan(layout: str = "shared", trainers: int = 2, **changes: Any) -> Plan:
    experiment = Experiment(
        env=EnvConfig(id="CartPole-v1"),
        actor=ActorConfig(envs=8, count=2, groups=2),
        trainer=TrainerConfig(count=trainers),
        layout=layout,  # type: ignore[arg-type]
        **changes,
    )
    settled = settle(experiment, 4, "cpu")
    return make_plan(settled, probe(settled.env), "cpu")[0]


def test_trainers_take_turns_and_the_first_one_writes() -> None:
    made = plan()
    trainers = [worker for worker in made.workers if worker.trains]
    assert [worker.process for worker in trainers] == ["trainer-0", "trainer-1"]
    assert [worker.in_every_checkpoint for worker in trainers] == [True, False]
    assert all(worker.restarts for worker in trainers)
    spec = made.samples["default"].spec
    assert (spec.delivery, spec.items_per_batch, spec.items_per_reader) == ("turn", 4, 2)


def test_one_trainer_takes_everything() -> None:
    spec = plan(trainers=1).samples["default"].spec
    assert (spec.delivery, spec.items_per_reader) == ("any", 4)


def test_a_serial_run_has_one_trainer() -> None:
    assert len([worker for worker in plan("serial").workers if worker.trains]) == 1


def test_unequal_parts_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"a divisor of the 4 fragments .* got 3"):
        plan(trainers=3)


def test_an_algorithm_that_does_not_know_of_it_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"expected 1, because Private does not say .* got 2"):
        plan(algorithm={"name": f"{__name__}:Private"})


def test_less_than_one_trainer_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"trainer\.count: expected at least 1, got 0"):
        TrainerConfig(count=0)
