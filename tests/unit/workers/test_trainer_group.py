"""What a rank makes of sums that are late, fail, or end at an awkward moment, and of groups that
keep ending."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from srl.algorithms.collective import CollectiveBroken
from srl.arena.arena import Arena, HeapArena
from srl.arena.shm import RunFolder, ShmArena, make_wake_pipe
from srl.distributed.torch_distributed import TorchCollective
from srl.services.trainer_table import BatchNumbers, RankProgress, TrainerTable
from srl.workers.trainer_group import TrainerGroup


class Sum:
    """A sum under way, as torch.distributed gives it: it ends when the test says so."""

    def __init__(self, ends_after_looks: int, failure: str = "") -> None:
        self.left = ends_after_looks
        self.failure = failure

    def wait(self, limit: timedelta | None = None) -> bool:
        """With a limit it raises in time, and then, before anyone can look, the sum may end."""
        ended = self.left <= 0
        if limit is not None:
            self.left -= 1
        if not ended:
            assert limit is not None, "a wait without a limit on what has not ended"
            raise RuntimeError("Operation timed out!")
        if self.failure:
            raise RuntimeError(self.failure)
        return True

    def is_completed(self) -> bool:
        return self.left <= 0


class Group:
    """A group whose sums leave the numbers as they are."""

    def __init__(self, work: Sum) -> None:
        self.work = work

    def allreduce(self, _: Any) -> Sum:
        return self.work


def rank(work: Sum, look: Callable[[float], None] = lambda waited: None) -> TorchCollective:
    return TorchCollective(Group(work), 0, 2, "cpu", look, lambda: False)


@pytest.mark.parametrize("looks", [0, 1, 3])
def test_a_sum_that_ends_just_after_a_wait_has_timed_out_counts(looks: int) -> None:
    assert rank(Sum(looks)).sum(torch.tensor([2.0, 3.0])).tolist() == [2.0, 3.0]


@pytest.mark.parametrize("looks", [0, 1, 3])
def test_a_sum_that_fails_breaks_the_group_with_its_reason(looks: int) -> None:
    with pytest.raises(CollectiveBroken, match="closed by peer"):
        rank(Sum(looks, "Connection closed by peer")).sum(torch.ones(2))


def test_a_rank_leaves_a_sum_that_does_not_end_when_the_group_has() -> None:
    def look(waited: float) -> None:
        raise CollectiveBroken("another group is being formed")

    with pytest.raises(CollectiveBroken, match="another group"):
        rank(Sum(1000), look).sum(torch.ones(2))


NOTHING = BatchNumbers(0, 0, 0, 0, 0)
STANDING = RankProgress(holds=0, due=0, published=0, env_steps=0, agent_steps=0)


class Pair:
    """Two trainers of one policy, whose clock the test moves."""

    def __init__(self, arenas: Sequence[Arena] = ()) -> None:
        self.now = 100.0
        arenas = arenas or [HeapArena()] * 2
        workers = [
            SimpleNamespace(trains=("p",), group="trainer", index=rank, process=f"trainer-{rank}")
            for rank in range(2)
        ]
        plan = SimpleNamespace(workers=workers, device="cpu")
        self.contexts: list[Any] = [
            SimpleNamespace(worker=worker, plan=plan, shared=arena, address="")
            for worker, arena in zip(workers, arenas, strict=True)
        ]
        self.groups = [TrainerGroup(context, lambda: self.now) for context in self.contexts]

    def meet(self) -> None:
        assert [group.meet(STANDING) for group in self.groups] == [False, True]

    def part(self) -> list[float]:
        """The group ends, as it does when a connection fails; how long each rests then."""
        for group in self.groups:
            group.give_up()
        return [group.pause_seconds for group in self.groups]


def test_ranks_whose_connections_keep_failing_rest_longer_each_time() -> None:
    pair = Pair()
    rests = []
    for _ in range(8):
        pair.meet()
        rests.append(pair.part())
        pair.now += max(rests[-1])
    assert [first for first, _ in rests] == [0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 4.0, 4.0]
    assert all(first == second for first, second in rests)
    assert pair.groups[0].pause_seconds == 0.0, "it is over by now"


def test_a_finished_update_says_that_connections_hold() -> None:
    pair = Pair()
    for _ in range(5):
        pair.meet()
        pair.part()
    pair.meet()
    for version in (7, 8):
        for group in pair.groups:
            group.ready(version, lambda: NOTHING)
    pair.now += 10.0
    assert pair.part() == [0.0, 0.0], "a member that dies is replaced at once"


def test_a_batch_without_an_update_says_nothing() -> None:
    pair = Pair()
    for _ in range(2):
        pair.meet()
        for group in pair.groups:
            group.ready(7, lambda: NOTHING)
        rests = pair.part()
    assert rests == [0.25, 0.25]


def test_whoever_gets_no_further_batch_may_get_one_after_all() -> None:
    first, second = Pair().groups
    first.leave(False)
    assert not second.over
    first.leave(True)
    assert second.over
    second.leave(False)
    assert second.over, "the other one is not there"
    first.leave(False)
    assert not second.over


def test_what_is_read_of_a_group_that_ends_meanwhile_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pair = Pair()
    first, second = pair.groups
    assert not first.meet(STANDING)
    read = TrainerTable.progress_of_ranks

    def ends(trainers: TrainerTable) -> list[RankProgress]:
        found = read(trainers)
        trainers.regroup(trainers.epoch)
        return found

    monkeypatch.setattr(TrainerTable, "progress_of_ranks", ends)
    assert not second.meet(STANDING)
    monkeypatch.undo()
    pair.meet()


def test_the_memory_of_a_group_goes_when_its_first_rank_has_died() -> None:
    folder = RunFolder()
    for rank in range(2):
        make_wake_pipe(folder.path, f"trainer-{rank}")
    arenas = [ShmArena(folder.path, f"trainer-{rank}") for rank in range(2)]
    try:
        pair = Pair(arenas)
        for _ in range(3):
            pair.meet()
            for group in pair.groups:
                assert group.meet(STANDING)
                group.connect(lambda: None, lambda: False)
            left = [file.name for file in folder.path.glob("trainers+trainer-*.region")]
            assert len(left) == 1, left
            TrainerTable(arenas[1], "p", 2).remove(0)
            for group in pair.groups:
                group.give_up()
            pair.groups[0] = TrainerGroup(pair.contexts[0], lambda: pair.now)
    finally:
        for arena in arenas:
            arena.close()
        folder.remove()
