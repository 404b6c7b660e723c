"""The plain loop over a workload's parts makes the batches that the whole system makes."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from srl.bench.copies import timed
from srl.bench.parts import Parts
from srl.bench.workloads import experiment_of
from srl.envs.protocol import EnvConfig


def parts_of(name: str, envs: int, **algorithm: object) -> Parts:
    experiment = experiment_of(name)
    if name.startswith("W1"):
        experiment = dataclasses.replace(experiment, env=EnvConfig(id="CartPole-v1"))
    settings = {**experiment.algorithm, **algorithm}
    return Parts(dataclasses.replace(experiment, algorithm=settings), envs)


@pytest.mark.parametrize("name", ["W1a", "W4", "W5"])
def test_batches_keep_the_rules_of_episodes_and_can_be_learned_from(name: str) -> None:
    parts = parts_of(name, 4, rollout_length=32)
    before = {n: lane.policy.value_head.weight.clone() for n, lane in parts.lanes.items()}
    try:
        for _ in range(3):
            parts.collect()
            for lane in parts.lanes.values():
                data = lane.batch.data
                final = data.terminated | data.truncated
                np.testing.assert_array_equal(final[:-1], data.is_first[1:])
                np.testing.assert_array_equal(data.acted, ~final)
                assert (data.policy_version >= 0).all()
                assert np.isfinite(data.extras["log_prob"]).all()
            parts.update()
    finally:
        parts.close()
    assert parts.steps_per_batch == 4 * 32
    for policy, weight in before.items():
        assert not (parts.lanes[policy].policy.value_head.weight == weight).all()


def test_stepping_at_random_goes_on_without_end() -> None:
    parts = parts_of("W1a", 4)
    step = parts.random_stepper()
    try:
        for _ in range(100):
            step()
    finally:
        parts.close()


def test_the_time_of_a_call_is_what_it_takes() -> None:
    import time

    taken = timed(lambda: time.sleep(0.002), 0.2)
    assert 0.002 <= taken.wall < 0.02
    assert taken.cpu < taken.wall
    assert taken.calls * taken.wall == pytest.approx(taken.seconds, rel=0.5)
