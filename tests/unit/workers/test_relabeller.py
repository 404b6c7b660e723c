"""A relabeller between two streams: what it changes, what it waits for, and how it ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from srl.arena.arena import HeapArena
from srl.data.records import Trajectory
from srl.data.tree import Tree
from srl.envs.protocol import EnvConfig
from srl.envs.registry import probe
from srl.experiment import Experiment
from srl.graph import Graph, WorkerGroup
from srl.launch.plan.build import make_plan, resolve_settings
from srl.services.metrics_client import InlineMetrics
from srl.services.worker_stats import StatsTable
from srl.streams.sample import SampleSink, SampleSource, create_sample
from srl.streams.sample_accounting import account
from srl.streams.sample_queue import FragmentInfo
from srl.workers.actor import ActorConfig
from srl.workers.relabeller import Relabeller
from srl.workers.wiring import Context
from srl.workers.worker import DONE, PROGRESS, Wait


class Doubler(Relabeller):
    """Doubles rewards, and counts."""

    count = 0

    def relabel(self, fragment: Trajectory, length: int) -> None:
        fragment.reward[:length] *= 2.0
        self.count += 1

    def own_state(self) -> Tree:
        return {"count": self.count}

    def restore_own(self, state: Tree) -> None:
        self.count = state["count"]


def with_doubler(graph: Graph) -> Graph:
    return graph.insert("doubler", WorkerGroup(kind=f"{__file__}:Doubler"), into="default")


class Bench:
    """The relabeller with the actor's and the trainer's ends in the test's hands."""

    def __init__(self) -> None:
        env = EnvConfig(id="CartPole-v1")
        experiment = Experiment(
            env=env,
            actor=ActorConfig(envs=2),
            algorithm={"name": "ppo", "rollout_length": 4, "max_policy_age": None},
            dataflow=f"{__file__}:with_doubler",
            layout="serial",
        )
        self.plan, _ = make_plan(resolve_settings(experiment, 1, "cpu"), probe(env), "cpu")
        self.arena = HeapArena()
        for stream in self.plan.samples.values():
            create_sample(stream.spec, self.arena)
        self.stats_table = StatsTable(
            self.arena, tuple(worker.name for worker in self.plan.workers)
        )
        self.first = self.plan.samples["default"].spec
        self.second = self.plan.samples["default/doubler"].spec
        self.sink = SampleSink(self.first, self.arena, 0)
        self.source = SampleSource(self.second, self.arena, 0)
        self.relabeller = self.make()

    def make(self) -> Relabeller:
        (worker,) = [w for w in self.plan.workers if w.group == "doubler"]
        row = self.stats_table.rows[worker.name]
        context = Context(
            plan=self.plan,
            worker=worker,
            stats=row,
            metrics=InlineMetrics(lambda message: None),
            shared=self.arena,
            local=self.arena,
            run_dir=Path(),
        )
        relabeller = Doubler.build(context)
        relabeller.stats = row
        return relabeller

    def write(self, reward: float) -> None:
        slot = self.sink.claim(0)
        assert slot is not None
        for name in ("is_first", "terminated", "truncated", "action"):
            getattr(slot.trajectory, name).fill(0)
        slot.trajectory.obs.fill(0.5)
        slot.trajectory.acted.fill(True)
        slot.trajectory.alive.fill(True)
        slot.trajectory.reward.fill(reward)
        slot.trajectory.policy_version.fill(3)
        slot.commit(FragmentInfo(self.first.trajectory.capacity, 8))

    def read(self) -> float:
        item = self.source.take()
        assert item is not None
        assert item.info.env_steps == 8
        assert item.info.length == self.first.trajectory.capacity
        assert (item.trajectory.obs == 0.5).all()
        assert (item.trajectory.policy_version == 3).all()
        reward = float(item.trajectory.reward[0, 0])
        item.release()
        self.source.acknowledge(1)
        return reward


@pytest.fixture
def bench() -> Bench:
    return Bench()


def waits_for(result: Any) -> str:
    assert isinstance(result, Wait)
    return result.name


def test_fragments_arrive_changed_and_in_order(bench: Bench) -> None:
    assert waits_for(bench.relabeller.step()) == "samples"
    for reward in (1.0, 2.0):
        bench.write(reward)
    assert bench.relabeller.step() is PROGRESS
    assert bench.relabeller.step() is PROGRESS
    assert [bench.read(), bench.read()] == [2.0, 4.0]
    assert account(bench.first, bench.arena).consumed == 2
    assert account(bench.second, bench.arena).produced == 2


def test_a_full_stream_holds_it_back_and_nothing_is_lost(bench: Bench) -> None:
    for reward in range(bench.second.slots):
        bench.write(float(reward))
        assert bench.relabeller.step() is PROGRESS
    bench.write(9.0)
    assert waits_for(bench.relabeller.step()) == "slots"
    assert account(bench.first, bench.arena).in_flight == 1
    assert bench.read() == 0.0
    assert bench.relabeller.step() is PROGRESS
    assert account(bench.first, bench.arena).in_flight == 0


def test_it_ends_when_writers_have_left_and_all_is_passed_on(bench: Bench) -> None:
    bench.write(1.0)
    bench.sink.close()
    assert bench.relabeller.step() is PROGRESS
    assert bench.relabeller.step() is DONE
    bench.relabeller.close()
    assert bench.read() == 2.0
    assert bench.source.closed


def test_it_ends_when_readers_have_left(bench: Bench) -> None:
    bench.source.close()
    assert bench.relabeller.step() is DONE


def test_an_exact_state_has_the_slot_that_waits(bench: Bench) -> None:
    bench.write(1.0)
    assert bench.relabeller.step() is PROGRESS
    assert waits_for(bench.relabeller.step()) == "samples"
    memory, state = bench.arena.state(), bench.relabeller.state(exact=True)

    bench.write(2.0)
    assert bench.relabeller.step() is PROGRESS
    expected = [bench.read(), bench.read()]

    bench.arena.restore(memory)
    bench.relabeller = bench.make()
    bench.relabeller.restore(state, exact=True)
    assert bench.relabeller.own_state() == {"count": 1}
    bench.write(2.0)
    assert bench.relabeller.step() is PROGRESS
    assert [bench.read(), bench.read()] == expected


def test_another_state_has_only_what_it_learned(bench: Bench) -> None:
    assert waits_for(bench.relabeller.step()) == "samples"
    assert bench.relabeller.state(exact=False) == {"own": {"count": 0}, "slots": None, "next": 0}
