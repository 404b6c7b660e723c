"""The plain loop over a workload's parts makes the batches that the whole system makes."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from srl.bench import copies
from srl.bench.discard import without_training
from srl.bench.parts import Parts
from srl.bench.workloads import experiment_of
from srl.envs.protocol import EnvConfig
from srl.experiment import build_graph
from srl.workers.actor import ActorConfig
from srl.workers.configs import InferenceConfig


def parts_of(name: str, envs: int, **algorithm: object) -> Parts:
    experiment = experiment_of(name)
    if name.startswith("W1"):
        experiment = dataclasses.replace(experiment, env=EnvConfig(id="CartPole-v1"))
    settings = {**experiment.algorithm, **algorithm}
    return Parts(dataclasses.replace(experiment, algorithm=settings), envs)


@pytest.mark.parametrize("name", ["W1a", "W4", "W5"])
def test_batches_keep_the_rules_of_episodes_and_can_be_learned_from(name: str) -> None:
    parts = parts_of(name, 4, rollout_length=32)
    before = {n: policy.policy.value_head.weight.clone() for n, policy in parts.policies.items()}
    try:
        for _ in range(3):
            parts.collect()
            for policy in parts.policies.values():
                data = policy.batch.data
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
        assert not (parts.policies[policy].policy.value_head.weight == weight).all()


def test_stepping_at_random_goes_on_without_end() -> None:
    parts = parts_of("W1a", 4)
    step = parts.random_stepper()
    try:
        for _ in range(100):
            step()
    finally:
        parts.close()


class Clock:
    """Time that goes on only in calls: one takes 2 ms, a quarter of it on a core."""

    def __init__(self) -> None:
        self.calls, self.stalled = 0, 0.0

    def call(self) -> None:
        self.calls += 1
        if self.calls == 210:
            # Something else had the core.
            self.stalled = 0.05

    def perf_counter(self) -> float:
        return 0.002 * self.calls + self.stalled

    def process_time(self) -> float:
        return 0.0005 * self.calls


def test_the_time_of_a_call_is_what_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(copies, "time", clock)
    taken = copies.timed(clock.call, 0.4)
    assert taken.wall == pytest.approx(0.002)
    assert taken.cpu == pytest.approx(0.0005)
    assert 0.4 <= taken.seconds < 0.5
    assert taken.calls * 0.002 + clock.stalled == pytest.approx(taken.seconds)
    assert clock.stalled, "while it was timed"


def test_one_learns_in_the_parts_and_nobody_where_fragments_are_thrown_away() -> None:
    experiment = experiment_of("W1a")
    several = dataclasses.replace(
        experiment,
        env=EnvConfig(id="CartPole-v1"),
        layout="shared",
        actor=ActorConfig(envs=4, count=2, groups=1),
        inference=InferenceConfig(count=1),
        trainer=dataclasses.replace(experiment.trainer, count=2, threads=1),
    )
    Parts(several, 4).close()
    graph = without_training(build_graph(several))
    assert graph.workers["trainer"].count == 1
    assert build_graph(several).workers["trainer"].count == 2
