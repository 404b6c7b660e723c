"""Sums, exchanges and broadcasts of ranks on one host, each rank in a thread of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from srl.algorithms.collective import CollectiveBroken
from srl.arena.shm import RunFolder, ShmArena
from srl.distributed.shared_memory import SLOT_BYTES, SharedMemoryCollective

Do = Callable[[SharedMemoryCollective], Any]


class Group:
    """Ranks that meet in one folder."""

    def __init__(self, folder: RunFolder, count: int) -> None:
        processes = [f"trainer-{rank}" for rank in range(count)]
        self.stopping = [False] * count
        self.arenas = [ShmArena(folder.path, process) for process in processes]
        self.ranks = [
            SharedMemoryCollective(
                arena, "sums", processes, rank, self.look, lambda r=rank: self.stopping[r]
            )
            for rank, arena in enumerate(self.arenas)
        ]
        self.ended = False

    def look(self, waited: float) -> None:
        if self.ended or waited > 30:
            raise CollectiveBroken("the test has ended it")

    def all(self, do: Do) -> list[Any]:
        """What each rank gets, all at once."""
        with ThreadPoolExecutor(len(self.ranks)) as pool:
            return list(pool.map(do, self.ranks))

    def close(self) -> None:
        for ranks, arena in zip(self.ranks, self.arenas, strict=True):
            ranks.close()
            arena.close()


Make = Callable[[int], Group]


@pytest.fixture
def make() -> Iterator[Make]:
    folder, groups = RunFolder(), []

    def made(count: int) -> Group:
        groups.append(Group(folder, count))
        return groups[-1]

    yield made
    for group in groups:
        group.close()
    folder.remove()


SLOT = SLOT_BYTES // 4


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("size", [0, 1, 1000, SLOT - 1, SLOT, 2 * SLOT + 5])
def test_all_ranks_get_the_same_sum(make: Make, count: int, size: int) -> None:
    group = make(count)
    own = [torch.randn(size, generator=torch.Generator().manual_seed(r)) for r in range(count)]
    found = group.all(lambda ranks: ranks.sum(own[ranks.rank]))
    expected = own[0] + own[1]
    for further in own[2:]:
        expected = expected + further
    for total in found:
        assert torch.equal(total, expected)


def test_many_turns_in_a_row_are_kept_apart(make: Make) -> None:
    group = make(2)

    def run(ranks: SharedMemoryCollective) -> list[float]:
        # Sizes differ, so that numbers of an earlier turn are still in the slot.
        return [
            float(ranks.sum(torch.full((1 + 7 * (turn % 5),), float(turn + ranks.rank))).sum())
            for turn in range(2000)
        ]

    expected = [float((2 * turn + 1) * (1 + 7 * (turn % 5))) for turn in range(2000)]
    assert group.all(run) == [expected, expected]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bool, torch.bfloat16])
@pytest.mark.parametrize("shape", [(), (0,), (3, 4)])
def test_every_rank_gets_what_each_has(
    make: Make, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    group = make(2)
    found = group.all(lambda ranks: ranks.gather(torch.full(shape, ranks.rank).to(dtype)))
    expected = torch.stack([torch.full(shape, rank).to(dtype) for rank in range(2)])
    for every in found:
        assert every.dtype == dtype
        assert torch.equal(every, expected)


def test_what_is_not_in_one_piece_is_gathered_in_its_order(make: Make) -> None:
    group = make(2)
    x = torch.arange(12.0).view(3, 4).t()
    for every in group.all(lambda ranks: ranks.gather(x)):
        assert torch.equal(every, torch.stack([x, x]))


@pytest.mark.parametrize("size", [0, 10, 3 * SLOT_BYTES + 1])
@pytest.mark.parametrize("source", [0, 1])
def test_bytes_of_one_rank_reach_all(make: Make, size: int, source: int) -> None:
    group = make(2)
    data = os.urandom(size)
    found = group.all(
        lambda ranks: ranks.broadcast(data if ranks.rank == source else b"other", source)
    )
    assert found == [data, data]


@pytest.mark.parametrize("who", [0, 1])
def test_all_give_up_where_one_is_to_stop(make: Make, who: int) -> None:
    group = make(2)
    group.all(lambda ranks: ranks.sum(torch.ones(3)))
    assert [ranks.giving_up for ranks in group.ranks] == [False, False]
    group.stopping[who] = True
    totals = group.all(lambda ranks: ranks.sum(torch.ones(3)))
    assert [ranks.giving_up for ranks in group.ranks] == [True, True]
    assert all(total.tolist() == [2.0] * 3 for total in totals)


def test_its_memory_is_there_before_it_is_used() -> None:
    folder = RunFolder()
    arena = ShmArena(folder.path, "trainer-0", lazy=True)
    try:
        SharedMemoryCollective(
            arena, "sums", ["trainer-0", "b"], 0, lambda _: None, lambda: False
        ).close()
        taken = arena.path("sums").stat()
    finally:
        arena.close()
        folder.remove()
    assert taken.st_blocks * 512 >= taken.st_size > 4 * SLOT_BYTES


def test_a_rank_leaves_a_sum_whose_group_has_ended(make: Make) -> None:
    group = make(2)
    group.ended = True
    with pytest.raises(CollectiveBroken, match="has ended it"):
        group.ranks[0].sum(torch.ones(2))
