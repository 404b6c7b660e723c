"""Where a trainer goes on counting: above everything that was published, on whatever host."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from srl.arena.arena import HeapArena
from srl.data.spec import AgentSpec, ArraySpec, Discrete
from srl.data.trajectory import TrajectorySpec
from srl.services.messages import Note
from srl.services.parameters import ParameterReader, ParameterSpec, ParameterWriter
from srl.services.trainer_table import RankProgress
from srl.services.worker_stats import StatsTable
from srl.streams.admission import open_queue
from srl.streams.sample import SampleSink, SampleSource, SampleSpec, create_sample
from srl.streams.sample_accounting import account
from srl.streams.sample_queue import FragmentInfo
from srl.workers.age_check import AgeCheck
from srl.workers.feedback import Feedback
from srl.workers.trainer import TrainerWorker
from srl.workers.trainer_group import TrainerGroup
from srl.workers.worker import PROGRESS, Wait

AGENT = AgentSpec(obs={"a": ArraySpec(shape=(2,))}, action=Discrete(2))
TRAJECTORY = TrajectorySpec(length=2, rows=1, envs=1, agent=AGENT)
SAMPLES = SampleSpec(
    name="s",
    record=TRAJECTORY,
    slots=2,
    writers=("actor-0",),
    readers=("trainer-0",),
    fragments_per_batch=2,
    max_policy_age=1,
)
WEIGHTS = ParameterSpec(policy="p", shapes={"weight": ((1, 2), "float32")})


class Nothing:
    """An algorithm that has weights and never learns."""

    def __init__(self) -> None:
        self.policy = torch.nn.Linear(2, 1, bias=False)

    def join(self, collective: object) -> None:
        pass

    def state(self) -> None:
        return None

    def restore(self, state: None) -> None:
        pass


class Bench:
    """One trainer alone, in plain memory."""

    def __init__(self) -> None:
        self.arena = HeapArena()
        create_sample(SAMPLES, self.arena)
        self.stats = StatsTable(self.arena, ("trainer/0",)).rows["trainer/0"]
        self.newest = ParameterReader(WEIGHTS, self.arena)
        self.notes: list[Note] = []
        self.upstream: list[int] = []

    def trainer(self) -> TrainerWorker:
        worker = SimpleNamespace(trains=("p",), group="trainer", index=0, process="trainer-0")
        plan = SimpleNamespace(workers=[worker], device="cpu")
        context: Any = SimpleNamespace(worker=worker, plan=plan, shared=self.arena)
        algorithm: Any = Nothing()
        metrics: Any = SimpleNamespace(send=self.notes.append)
        made = TrainerWorker(
            "trainer/0",
            policy_name="p",
            algorithm=algorithm,
            source=SampleSource(SAMPLES, self.arena, 0),
            parameters=ParameterWriter(WEIGHTS, self.arena),
            newest=self.newest,
            metrics=metrics,
            total_steps=0,
            group=TrainerGroup(context),
            upstream=self.upstream.append,
            age=AgeCheck(None, 0),
            feedback=Feedback({}),
        )
        made.stats = self.stats
        return made


def test_a_trainer_publishes_what_it_begins_with() -> None:
    bench = Bench()
    trainer = bench.trainer()
    assert trainer.step() is PROGRESS
    assert (trainer.version, bench.newest.version) == (0, 0)
    assert bench.upstream == [], "nothing was lost"
    assert isinstance(trainer.step(), Wait)


def test_what_another_host_has_seen_is_gone_above_at_once_and_once() -> None:
    bench = Bench()
    trainer = bench.trainer()
    trainer.step()
    ParameterWriter(WEIGHTS, bench.arena).note_remote_version(7)
    assert trainer.step() is PROGRESS
    assert trainer.step() is PROGRESS
    assert (trainer.version, bench.newest.version) == (8, 8)
    assert bench.stats.get("count_lost_updates") == 7
    assert "continuing as version 8" in bench.notes[0].text
    assert isinstance(trainer.step(), Wait)
    # Older news change nothing.
    ParameterWriter(WEIGHTS, bench.arena).note_remote_version(5)
    assert bench.newest.newest_remote_version == 7
    assert isinstance(trainer.step(), Wait)


def test_on_another_host_it_counts_on_even_without_a_checkpoint() -> None:
    bench = Bench()
    for name, number in (("env_steps", 500), ("agent_steps", 600), ("policy_version", 9)):
        bench.stats.set(f"count_{name}", number)
    trainer = bench.trainer()
    assert trainer.step() is PROGRESS
    assert (trainer.version, trainer.env_steps, trainer.agent_steps) == (10, 500, 600)
    assert bench.newest.version == 10
    assert bench.upstream == [10]


def test_a_checkpoint_as_new_as_what_was_published_is_published_where_it_is_not() -> None:
    bench = Bench()
    bench.stats.set("count_policy_version", 9)
    trainer = bench.trainer()
    weights = {"weight": np.ones((1, 2), np.float32)}
    learner = {"weights": weights, "algorithm": None}
    trainer.restore(
        {"version": 9, "env_steps": 100, "agent_steps": 100, "learner": learner}, exact=False
    )
    trainer.step()
    assert (trainer.version, bench.newest.version) == (9, 9)
    assert (bench.newest.snapshot().weights["weight"] == 1).all()
    assert bench.stats.get("count_lost_updates") == 0


def test_its_part_of_a_batch_that_the_others_are_done_with_is_given_up() -> None:
    bench = Bench()
    trainer = bench.trainer()
    trainer.step()
    slot = SampleSink(SAMPLES, bench.arena, 0).claim(0)
    assert slot is not None
    slot.trajectory.policy_version.fill(0)
    slot.commit(FragmentInfo(TRAJECTORY.capacity, 2))
    assert trainer.step() is PROGRESS
    assert account(SAMPLES, bench.arena).in_flight == 1
    trainer._group.give_up()
    ahead = RankProgress(holds=1, due=1, published=0, env_steps=0, agent_steps=0)
    trainer._group.furthest = lambda: ahead  # type: ignore[method-assign]
    assert trainer.step() is PROGRESS
    accounts = account(SAMPLES, bench.arena)
    assert (accounts.dropped["out of turn"], accounts.in_flight) == (1, 0)
    source = SampleSource(SAMPLES, bench.arena, 0)
    assert source.due == trainer.version, "the next batch is for what comes now"


def test_it_takes_nothing_up_before_its_host_has_the_samples() -> None:
    bench = Bench()
    queue = open_queue(SAMPLES, bench.arena).queue
    queue.owned_elsewhere[0] = 1
    trainer = bench.trainer()
    assert isinstance(trainer.step(), Wait)
    assert bench.newest.version == -1
    assert not trainer.settled
    queue.owned_elsewhere[0] = 0
    assert trainer.step() is PROGRESS
    assert trainer.settled


def test_it_meets_nobody_while_it_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    trainer = bench.trainer()
    monkeypatch.setattr(TrainerGroup, "pause_seconds", 0.5)
    wait = trainer.step()
    assert isinstance(wait, Wait)
    assert wait.timeout_seconds == 0.5
    assert bench.newest.version == -1
    monkeypatch.setattr(TrainerGroup, "pause_seconds", 0.0)
    assert trainer.step() is PROGRESS
