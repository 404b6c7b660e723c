"""The numbers by which trainers of one policy agree before they do anything together."""

from __future__ import annotations

from srl.arena.arena import HeapArena
from srl.services.trainer_table import BatchNumbers, RankProgress, TrainerTable, global_numbers

NEW = RankProgress(holds=-1, due=5, published=6, env_steps=5, agent_steps=4)
OLD = RankProgress(holds=7, due=7, published=-1, env_steps=3, agent_steps=6)


def test_a_group_is_complete_when_all_have_joined_the_same_epoch() -> None:
    trainers = TrainerTable(HeapArena(), "p", 2)
    epoch = trainers.epoch
    trainers.join(0, epoch, NEW, 8)
    assert not trainers.all_joined(epoch)
    trainers.join(1, epoch, OLD, 9)
    assert trainers.all_joined(epoch)
    assert trainers.progress_of_ranks() == [NEW, OLD]
    assert trainers.token == 8
    trainers.regroup(epoch)
    trainers.regroup(epoch)
    assert trainers.epoch == epoch + 1, "whoever comes second finds it done"
    trainers.join(0, epoch + 1, NEW, 8)
    assert not trainers.all_joined(epoch + 1)


def test_a_dead_member_ends_the_group_and_says_nothing_any_more() -> None:
    trainers = TrainerTable(HeapArena(), "p", 2)
    for rank in range(2):
        trainers.join(rank, trainers.epoch, OLD, rank)
        trainers.announce(rank, trainers.epoch, 3, BatchNumbers(1, 1, 1, 1, 1))
    assert trainers.all_ready(trainers.epoch, 3)
    epoch = trainers.epoch
    trainers.remove(0)
    assert trainers.epoch == epoch + 1
    assert not trainers.all_joined(epoch + 1)
    assert not trainers.all_ready(epoch + 1, 3)


def test_a_batch_is_ready_when_every_part_of_it_is() -> None:
    trainers = TrainerTable(HeapArena(), "p", 2)
    trainers.announce(0, 0, 5, BatchNumbers(10, 8, 8, 8, 1))
    trainers.announce(1, 0, 4, BatchNumbers(0, 0, 0, 0, 0))
    assert not trainers.all_ready(0, 5), "the other one's is of an earlier batch"
    trainers.announce(1, 0, 5, BatchNumbers(20, 16, 32, 16, 3))
    assert trainers.all_ready(0, 5)
    assert not trainers.all_ready(1, 5), "and of another group"
    assert global_numbers(trainers.batches()) == BatchNumbers(30, 24, 40, 24, 3)


def test_there_is_no_further_batch_for_anybody_when_one_has_left() -> None:
    trainers = TrainerTable(HeapArena(), "p", 3)
    assert not trainers.someone_left
    assert trainers.leave(2, True)
    assert not trainers.leave(2, True), "it has said so"
    assert trainers.someone_left
    assert trainers.leave(2, False)
    assert not trainers.someone_left


def test_hosts_know_the_same_of_every_rank_once_they_have_told_each_other() -> None:
    here, there = TrainerTable(HeapArena(), "p", 2), TrainerTable(HeapArena(), "p", 2)
    there.regroup(0)
    assert here.merge(there.epoch, {1: there.row(1)})
    assert here.epoch == 1
    here.join(0, 1, OLD, 8)
    there.join(1, 1, NEW, 9)
    assert here.merge(1, {1: there.row(1)})
    assert there.merge(1, {0: here.row(0)})
    assert here.all_joined(1)
    assert there.all_joined(1)
    assert here.progress_of_ranks() == there.progress_of_ranks() == [OLD, NEW]
    assert here.fingerprint() == there.fingerprint()
    assert not here.merge(1, {1: there.row(1)}), "nothing is new"
    # What is late changes no epoch back.
    here.regroup(1)
    assert not here.merge(1, {1: there.row(1)})
    assert here.epoch == 2
    assert not here.all_joined(2)
