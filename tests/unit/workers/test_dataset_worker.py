"""The dataset worker: each window once in an epoch, and the same order wherever it goes on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from srl.arena.arena import HeapArena
from srl.data.spec import AgentSpec, ArraySpec, Discrete
from srl.data.trajectory import TrajectorySpec
from srl.datasets.episode import Episode
from srl.datasets.steps import RecordedSteps
from srl.datasets.writer import DatasetWriter
from srl.services.worker_stats import StatsTable
from srl.streams.sample import SampleSink, SampleSource, SampleSpec
from srl.workers.dataset import DatasetWorker, WindowOrder
from srl.workers.worker import DONE, PROGRESS, Wait

pytest.importorskip("h5py", reason="needs the extra `datasets`")
ROWS, LENGTH = 3, 4


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> RecordedSteps:
    """Five episodes of 1 to 5 steps: each observation is the number of its tick."""
    from gymnasium import spaces

    folder, tick = tmp_path_factory.mktemp("data") / "a", 0
    given = {"observation_space": spaces.Box(0, 99, ()), "action_space": spaces.Discrete(2)}
    with DatasetWriter(folder, **given) as writer:
        for count in range(1, 6):
            writer.add(
                Episode(
                    observations=np.arange(tick, tick + count + 1, dtype=np.float32),
                    actions=np.zeros(count, np.int64),
                    rewards=np.zeros(count),
                    terminations=np.arange(count) == count - 1,
                    truncations=np.zeros(count, bool),
                )
            )
            tick += count + 1
        writer.finish()
    return RecordedSteps(Path(folder), AgentSpec(obs=ArraySpec(), action=Discrete(2)))


class Setup:
    """A dataset worker, and trainers that a test plays."""

    def __init__(self, steps: RecordedSteps, trainers: int = 1, seed: int = 1) -> None:
        self.arena = HeapArena()
        record = TrajectorySpec(length=LENGTH, rows=ROWS, envs=ROWS, agent=steps.agent)
        specs = [
            SampleSpec(name=f"s{i}", record=record, slots=2, writers=("w",), readers=("r",))
            for i in range(trainers)
        ]
        self._steps, self._seed, self._specs = steps, seed, specs
        self.sources = [SampleSource(spec, self.arena, 0) for spec in specs]
        self.stats = StatsTable(self.arena, ("dataset/0",)).rows["dataset/0"]
        self.worker = self.start()

    def start(self) -> DatasetWorker:
        """The worker as a new process has it."""
        sinks = [SampleSink(spec, self.arena, 0) for spec in self._specs]
        worker = DatasetWorker("dataset/0", sinks, self._steps, seed=self._seed)
        worker.stats = self.stats
        return worker

    def take(self, count: int) -> list[list[float]]:
        """What the next fragments hold, the used ticks of each."""
        found = []
        for number in range(count):
            source = self.sources[number % len(self.sources)]
            while (item := source.take()) is None:
                assert self.worker.step() is PROGRESS
            data = item.trajectory
            assert item.info.length == LENGTH + 1
            assert item.info.env_steps == data.acted[:-1].sum()
            found.append(data.obs[:-1].ravel().tolist())
            item.release()
            source.acknowledge(1)
        return found


@pytest.mark.parametrize(("ticks", "length"), [(20, 4), (21, 4), (3, 8), (7, 1)])
def test_an_epoch_has_each_tick_at_least_once_and_no_more_than_it_must(
    ticks: int, length: int
) -> None:
    order = WindowOrder(ticks, length, seed=3)
    orders = []
    for epoch in range(3):
        starts = order.starts(epoch * order.per_epoch, order.per_epoch)
        covered = (starts[:, None] + np.arange(length)) % ticks
        counts = np.bincount(covered.ravel(), minlength=ticks)
        assert counts.min() >= 1
        assert counts.sum() - ticks < length
        orders.append(starts)
    assert ticks <= length or (orders[0] != orders[1]).any()
    other = WindowOrder(ticks, length, seed=4).starts(0, 3 * order.per_epoch)
    assert ticks <= length or (other != np.concatenate(orders)).any()


def test_windows_do_not_depend_on_how_many_are_asked_for_at_once() -> None:
    whole = WindowOrder(23, 2, seed=1).starts(0, 60)
    order = WindowOrder(23, 2, seed=1)
    parts = [order.starts(first, 5) for first in range(0, 60, 5)]
    np.testing.assert_array_equal(whole, np.concatenate(parts))


def test_it_waits_for_slots_and_ends_when_the_trainers_do(steps: RecordedSteps) -> None:
    play = Setup(steps)
    assert [play.worker.step() for _ in range(2)] == [PROGRESS, PROGRESS]
    waits = play.worker.step()
    assert isinstance(waits, Wait)
    assert waits.name == "slots"
    play.sources[0].close()
    assert play.worker.step() is DONE


def test_a_restored_worker_goes_on_exactly(steps: RecordedSteps) -> None:
    whole = Setup(steps).take(20)
    first = Setup(steps)
    assert first.take(7) == whole[:7]
    state = first.worker.state(exact=False)
    # (A checkpoint counts what was written, and here all of it was taken.)
    second = Setup(steps)
    second.worker.restore(state, exact=False)
    assert second.take(13) == whole[7:]
    assert Setup(steps, seed=2).take(20) != whole


def test_a_killed_worker_goes_on_where_it_was(steps: RecordedSteps) -> None:
    whole = Setup(steps).take(12)
    play = Setup(steps)
    found = play.take(3)
    state = play.worker.state(exact=False)
    found += play.take(4)
    # The next incarnation has the last checkpoint, and the stats of the one that died.
    play.worker = play.start()
    play.worker.restore(state, exact=False)
    assert found + play.take(5) == whole


def test_trainers_share_an_epoch(steps: RecordedSteps) -> None:
    assert Setup(steps, trainers=2).take(12) == Setup(steps).take(12)
