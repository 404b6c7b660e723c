"""The replay worker owes the trainer what it has stored, and neither more nor less."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import srl
from srl.algorithms.off_policy_config import FEEDBACK, PRIORITIZED, ReplayConfig
from srl.arena.arena import HeapArena
from srl.data.codec import dump_state, parse_state
from srl.data.spec import AgentSpec, ArraySpec, Discrete
from srl.data.table import TableSpec
from srl.data.trajectory import TrajectorySpec
from srl.errors import ConfigError, LearnError
from srl.services.worker_stats import StatsTable
from srl.streams.sample import SampleSink, SampleSource, SampleSpec
from srl.streams.sample_accounting import account
from srl.streams.sample_queue import FragmentInfo
from srl.workers.feedback import Feedback
from srl.workers.replay import ReplayWorker
from srl.workers.worker import DONE, PROGRESS, Wait

LENGTH, ENVS = 4, 2
STEPS = LENGTH * ENVS
"""Environment steps of a fragment."""


def spec(name: str, length: int, envs: int, row: Any = None, **fields: Any) -> SampleSpec:
    agent = AgentSpec(obs=ArraySpec(), action=Discrete(2))
    trajectory = TrajectorySpec(length=length, rows=envs, envs=envs, agent=agent, row=row)
    ends = {"writers": ("w",), "readers": ("r",), **fields}
    return SampleSpec(name=name, record=trajectory, **ends)


class Setup:
    """An actor and trainers that a test plays, around a replay worker."""

    def __init__(self, trainers: int = 1, **settings: Any) -> None:
        arena = HeapArena()
        self.arena = arena
        self.before = spec("before", LENGTH, ENVS, slots=4)
        row = PRIORITIZED if settings.get("sampler") == "prioritized" else None
        after = [spec(f"after@{i}", 1, 3, row, slots=3) for i in range(trainers)]
        table = TableSpec(columns=FEEDBACK, capacity=3)
        back = SampleSpec(
            name="back", record=table, slots=2, writers=("r",) * trainers, readers=("w",)
        )
        self.back = back
        self.feedback = Feedback({0: SampleSink(back, arena, 0)})
        self.actor = SampleSink(self.before, arena, 0)
        self.trainers = [SampleSource(one, arena, 0) for one in after]
        self.worker = ReplayWorker(
            "replay/0",
            SampleSource(self.before, arena, 0),
            [SampleSink(one, arena, 0) for one in after],
            ReplayConfig(**{"capacity_steps": 10_000, **settings}),
            share=1.0,
            seed=1,
            feedback=SampleSource(back, arena, 0),
        )
        self.worker.stats = StatsTable(arena, ("replay/0",)).rows["replay/0"]
        self.sequence = 0

    def act(self) -> bool:
        """Writes a fragment, if there is a slot."""
        slot = self.actor.claim(0)
        if slot is None:
            return False
        self.sequence += 1
        data = slot.trajectory
        ticks = (self.sequence - 1) * LENGTH + np.arange(LENGTH + 1)
        data.obs[...] = ticks[:, None]
        data.acted.fill(True)
        data.alive.fill(True)
        data.policy_version.fill(0)
        slot.commit(FragmentInfo(LENGTH + 1, STEPS, origin=7, sequence=self.sequence))
        return True

    def run(self) -> Wait:
        """Steps the worker until it waits."""
        for _ in range(1000):
            result = self.worker.step()
            if result is not PROGRESS:
                assert isinstance(result, Wait), result
                return result
        raise AssertionError("it never waits")

    def learn(self, trainer: int = 0) -> list[int]:
        """Takes what is ready; returns the environment steps that each batch counts."""
        source, found = self.trainers[trainer], []
        while (item := source.take()) is not None:
            found.append(item.info.env_steps)
            obs = item.trajectory.obs
            np.testing.assert_array_equal(obs[1], obs[0] + 1, "windows are of two ticks")
            item.release()
            source.acknowledge(1)
        return found


def test_it_draws_as_many_batches_as_the_steps_are_worth() -> None:
    play = Setup(batches_per_step=0.25)
    batches, steps = 0, 0
    for number in range(1, 41):
        assert play.act()
        assert play.run().name == "samples"
        found = play.learn()
        batches, steps = batches + len(found), steps + sum(found)
        if number > 1:
            # The first fragment alone has no window whose ticks are complete: it is owed later.
            assert batches == number * STEPS * 0.25
            assert steps == number * STEPS


def test_nothing_is_drawn_before_the_warm_up_and_its_steps_are_counted_once() -> None:
    play = Setup(batches_per_step=0.25, warmup_steps=5 * STEPS)
    for _ in range(5):
        assert play.act()
        play.run()
    assert play.learn() == []
    play.act()
    play.run()
    assert play.learn() == [6 * STEPS, 0], "two batches for the steps after the warm-up"


def test_while_it_owes_too_much_it_stores_nothing_and_actors_wait() -> None:
    play = Setup(batches_per_step=1.0, max_batches_owed=10.0)
    written = 0
    while play.act():
        written += 1
        wait = play.run()
    assert wait.name == "ratio"
    stored = account(play.before, play.arena).consumed
    # Of what it has stored it owes at least 10, and 3 lie in the trainer's slots.
    assert 13 <= stored * STEPS < 13 + STEPS
    assert written == stored + play.before.slots
    for _ in range(2):
        # The first time it still owes 10.
        assert not play.act()
        assert len(play.learn()) == 3
        play.run()
    assert play.act(), "the trainer has taken enough, so there is room again"


def test_several_trainers_get_batches_in_turn() -> None:
    play = Setup(trainers=2, batches_per_step=0.25)
    counts = np.zeros(2, int)
    for _ in range(20):
        play.act()
        play.run()
        counts += [len(play.learn(0)), len(play.learn(1))]
    assert counts.tolist() == [20, 20]


def test_a_trainer_that_does_not_read_keeps_no_other_waiting() -> None:
    play = Setup(trainers=2, batches_per_step=0.25)
    count = 0
    for _ in range(20):
        play.act()
        play.run()
        count += len(play.learn(0))
    assert count == 40 - 3, "three are in the slots of the other"


def test_priorities_come_back_to_the_windows_that_they_are_of() -> None:
    play = Setup(batches_per_step=1.0, sampler="prioritized", priority_exponent=1.0)
    for _ in range(3):
        play.act()
    play.run()
    source = play.trainers[0]
    wanted = -1
    shares = []
    for _ in range(30):
        item = source.take()
        if item is None:
            play.run()
            item = source.take()
        if item is None:
            play.act()
            continue
        keys = item.trajectory.row["key"].copy()
        item.release()
        source.acknowledge(1)
        wanted = int(keys[0]) if wanted < 0 else wanted
        shares.append((keys == wanted).mean())
        # The learner says that one window is worth far more than all others.
        play.feedback.add({"key": keys}, np.where(keys == wanted, 1e6, 1e-6), 1)
        assert play.feedback.flush()
        play.run()
    assert np.mean(shares[10:]) > 0.25, "a uniform draw gives about one in twenty"
    done = account(play.back, play.arena)
    assert done.produced == done.consumed == len(shares)


def test_priorities_wait_until_the_replay_has_room_for_them() -> None:
    play = Setup(sampler="prioritized")
    for _ in range(3):
        play.feedback.add({"key": np.zeros(3, np.int64)}, np.ones(3, np.float32), 1)
    assert not play.feedback.flush(), "it has two slots"
    play.worker.step()
    assert play.feedback.flush()
    play.worker.close()
    for _ in range(3):
        play.feedback.add({"key": np.zeros(3, np.int64)}, np.ones(3, np.float32), 1)
    assert play.feedback.flush(), "nobody will read them"


def test_priorities_that_wait_are_in_an_exact_checkpoint() -> None:
    play = Setup(sampler="prioritized")
    for number in range(4):
        play.feedback.add({"key": np.full(3, number)}, np.full(3, 0.5), 1)
    assert not play.feedback.flush(), "there is room for two"
    again = Feedback({0: SampleSink(play.back, play.arena, 0)})
    again.restore(parse_state(dump_state(play.feedback.state())))
    source, found = SampleSource(play.back, play.arena, 0), []
    while True:
        again.flush()
        if (item := source.take()) is None:
            break
        found.append(int(item.table["key"][0]))
        item.release()
        source.acknowledge(1)
    assert found == [0, 1, 2, 3]


def test_the_priority_of_a_team_is_the_highest_of_its_agents() -> None:
    play = Setup(sampler="prioritized")
    keys = np.array([5, 5, 6, 6])
    play.feedback.add({"key": keys}, np.array([1.0, 3.0, 2.0, 0.0]), 2)
    assert play.feedback.flush()
    item = SampleSource(play.back, play.arena, 0).take()
    assert item is not None
    assert item.table["key"][: item.info.length].tolist() == [5, 6]
    assert item.table["priority"][: item.info.length].tolist() == [3.0, 2.0]


@pytest.mark.parametrize("priorities", [None, np.array([1.0, np.nan])])
def test_priorities_that_cannot_be_are_refused(priorities: np.ndarray | None) -> None:
    with pytest.raises(LearnError, match=r"expected .*priorities"):
        Setup().feedback.add({"key": np.zeros(2, np.int64)}, priorities, 1)


def test_it_ends_with_what_it_reads_or_with_who_reads_it() -> None:
    play = Setup()
    play.actor.close()
    assert play.worker.step() is DONE
    play = Setup(batches_per_step=1.0)
    for _ in range(2):
        play.act()
    play.run()
    for trainer in play.trainers:
        trainer.close()
    assert play.worker.step() is DONE


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"buffer_size": 0}, r"algorithm\.buffer_size: expected at least 1, got 0"),
        ({"learning_starts": -1}, r"algorithm\.learning_starts: expected 0 to buffer_size .* -1"),
        (
            {"learning_starts": 9, "buffer_size": 8},
            r"expected 0 to buffer_size \(8\), got 9",
        ),
        ({"updates_per_step": 0.0}, r"updates_per_step: expected a positive number, got 0"),
        ({"batch_size": "many"}, r"algorithm\.batch_size: expected int, got 'many'"),
        ({"replay_workers": 0}, r"algorithm\.replay_workers: expected at least 1, got 0"),
        ({"replay": "newest"}, r"algorithm\.replay: expected .*newest"),
        ({"replay": "prioritized"}, r"expected uniform or fifo, got 'prioritized'"),
        ({"priority_exponent": 2.0}, r"priority_exponent: expected a number from 0 to 1, got 2"),
        ({"max_uses": 0}, r"algorithm\.max_uses: expected at least 1, got 0"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        srl.OffPolicyConfig(**settings)


class Fifo(srl.OffPolicyConfig):
    def windows(self) -> srl.FragmentShape:
        return srl.FragmentShape(length=4)


def test_a_ratio_that_windows_cannot_give_is_refused() -> None:
    common: dict[str, Any] = {"replay": "fifo", "updates_per_step": 0.25, "batch_size": 8}
    with pytest.raises(ConfigError, match=r"max_uses: expected at least 8 .*, got 7"):
        Fifo(**common, max_uses=7)
    with pytest.raises(ConfigError, match=r"fragment_length: expected a multiple of 4 .*, got 6"):
        Fifo(**common, max_uses=8, fragment_length=6)
    Fifo(**common, max_uses=8)
