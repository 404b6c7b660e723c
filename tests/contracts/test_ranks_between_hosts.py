"""Trainers of one policy on several hosts: each knows what the others say, and who is gone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from bridged import Hosts

from srl.arena.shm import WakePipe, bump_placement, make_wake_pipe
from srl.bridge.messenger import BridgePlan, WeightsRoute
from srl.services.parameters import ParameterSpec
from srl.services.trainer_table import BatchNumbers, RankProgress, TrainerTable

WAIT_SECONDS = 120.0
SPEC = ParameterSpec(policy="p", shapes={"w": ((8,), "float32")})
PLAN = BridgePlan(weights=(WeightsRoute(spec=SPEC, trainers=("t0", "t1", "t2")),))
BATCH = BatchNumbers(10, 8, 8, 8, 1)


class Rank:
    """A trainer on a host."""

    def __init__(self, hosts: Hosts, host: str, rank: int) -> None:
        self.rank = rank
        self.arena = hosts[host].arena
        self.trainers = TrainerTable(self.arena, "p", 3)
        self._wake_pipe = WakePipe(hosts[host].folder, f"t{rank}")

    def join(self, epoch: int) -> None:
        self.trainers.join(self.rank, epoch, RankProgress(self.rank, 3, 2, 1, 0), 70 + self.rank)
        self.wake()

    def wake(self) -> None:
        self.arena.wake(*(f"t{rank}" for rank in range(3) if rank != self.rank))

    def wait(self, *, joined: int = -1, ready: int = -1, epoch: int = -1) -> None:
        trainers = self.trainers
        while not (
            (joined < 0 or trainers.all_joined(joined))
            and (ready < 0 or trainers.all_ready(trainers.epoch, ready))
            and trainers.epoch >= epoch
        ):
            assert self._wake_pipe.wait(WAIT_SECONDS), "never woken"

    def close(self) -> None:
        self._wake_pipe.close()


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    with closing(Hosts(PLAN, a=("t0", "t1"), b=("t2",), home=())) as made:
        yield made


@pytest.fixture
def ranks(hosts: Hosts) -> Iterator[list[Rank]]:
    made = [Rank(hosts, "a", 0), Rank(hosts, "a", 1), Rank(hosts, "b", 2)]
    for rank in made:
        rank.join(0)
    yield made
    for rank in made:
        rank.close()


def test_what_each_says_is_known_everywhere(ranks: list[Rank]) -> None:
    for rank in ranks:
        rank.wait(joined=0)
        assert [known.holds for known in rank.trainers.progress_of_ranks()] == [0, 1, 2]
        assert rank.trainers.token == 70
    for rank in ranks:
        rank.trainers.announce(rank.rank, 0, 5, BATCH)
        rank.wake()
    for rank in ranks:
        rank.wait(ready=5)
        assert rank.trainers.batches() == [BATCH] * 3


def test_whoever_ends_the_group_ends_it_for_all(ranks: list[Rank]) -> None:
    ranks[2].trainers.regroup(0)
    ranks[2].wake()
    for rank in ranks:
        rank.wait(epoch=1)
        rank.join(1)
    for rank in ranks:
        rank.wait(joined=1)
        assert rank.trainers.epoch == 1


def test_ranks_of_a_host_that_is_gone_are_forgotten_and_the_group_ends(
    hosts: Hosts, ranks: list[Rank]
) -> None:
    for rank in ranks:
        rank.wait(joined=0)
    hosts["b"].process.kill()
    hosts["b"].process.wait()
    make_wake_pipe(hosts["home"].folder, "t2")
    bump_placement(hosts["home"].folder)
    hosts["home"].processes = ("t2",)
    hosts.tell("b")
    for rank in ranks[:2]:
        rank.wait(epoch=1)
    heir = Rank(hosts, "home", 2)
    # It may begin with an epoch that is long over.
    heir.join(heir.trainers.epoch)
    heir.wait(epoch=1)
    for rank in (*ranks[:2], heir):
        rank.join(1)
    for rank in (*ranks[:2], heir):
        rank.wait(joined=1)
    heir.close()


def test_nobody_speaks_for_a_trainer_of_another_host(hosts: Hosts, ranks: list[Rank]) -> None:
    """What a host has written into its own memory for others' ranks stays there."""
    for rank in ranks:
        rank.wait(joined=0)
    ranks[2].trainers.announce(0, 0, 9, BATCH)
    ranks[2].trainers.announce(2, 0, 9, BATCH)
    ranks[2].wake()
    while ranks[0].trainers.row(2) != ranks[2].trainers.row(2):
        assert ranks[0]._wake_pipe.wait(WAIT_SECONDS), "never woken"
    assert not ranks[0].trainers.all_ready(0, 9)
    assert ranks[0].trainers.row(0)[1] == 0
