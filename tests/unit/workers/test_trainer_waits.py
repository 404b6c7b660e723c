"""When a trainer waits for its fellows, leaves, and says why no group of theirs holds."""

from __future__ import annotations

from typing import Any

from test_trainer_numbers import SAMPLES, TRAJECTORY, Bench

from srl.algorithms.collective import Collective, CollectiveBroken
from srl.streams.sample import SampleSink
from srl.streams.sample_queue import FragmentInfo
from srl.workers.trainer import TrainerWorker
from srl.workers.worker import DONE, PROGRESS, Wait


class Group:
    """Of two ranks, the other of which does what the test says."""

    rank, count = 0, 2
    pause_seconds = 0.0
    broken = False

    def __init__(self, *, formed: bool) -> None:
        self.formed = formed
        self.over = False
        self.failures = 0
        self.left: list[bool] = []
        self.collective = Collective()

    def meet(self, _: object) -> bool:
        return True

    def connect(self, *_: object) -> None:
        raise CollectiveBroken("nobody answers")

    def give_up(self) -> None:
        self.failures += 1

    def ready(self, *_: object) -> None:
        """The other one has no batch yet."""

    def leave(self, left: bool) -> None:
        self.left.append(left)


def trainer_with(bench: Bench, group: Any) -> TrainerWorker:
    trainer = bench.trainer()
    trainer._group = group
    return trainer


def write(bench: Bench, items: int) -> None:
    """All that is ever written."""
    sink = SampleSink(SAMPLES, bench.arena, 0)
    for _ in range(items):
        slot = sink.claim(0)
        assert slot is not None
        slot.trajectory.policy_version.fill(0)
        slot.commit(FragmentInfo(TRAJECTORY.capacity, 2))
    sink.close()


def test_one_with_a_batch_waits_for_the_other_even_if_it_gets_no_further_one() -> None:
    bench, group = Bench(), Group(formed=True)
    trainer = trainer_with(bench, group)
    write(bench, SAMPLES.fragments_per_batch)
    assert trainer.step() is PROGRESS
    waits = trainer.step()
    assert isinstance(waits, Wait)
    assert waits.name == "workers"
    assert group.left == [False]
    group.over = True
    assert trainer.step() is DONE, "the other one gets none"
    assert group.left == [False, False]


def test_one_that_gets_no_whole_batch_leaves() -> None:
    bench, group = Bench(), Group(formed=True)
    trainer = trainer_with(bench, group)
    write(bench, SAMPLES.fragments_per_batch - 1)
    assert trainer.step() is PROGRESS
    assert trainer.step() is DONE
    assert group.left == [True]
    # On another host somebody writes again.
    SampleSink(SAMPLES, bench.arena, 0)
    assert isinstance(trainer.step(), Wait)
    assert group.left == [True, False]


def test_why_no_group_holds_is_said_now_and_then_and_is_no_work() -> None:
    bench, group = Bench(), Group(formed=False)
    trainer = trainer_with(bench, group)
    for _ in range(9):
        assert isinstance(trainer.step(), Wait)
    assert [note.text for note in bench.notes] == [
        f"{failures} groups of trainers have ended without an update: nobody answers"
        for failures in (2, 4, 8)
    ]
