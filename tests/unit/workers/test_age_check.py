"""Which batches are older than the bound on policy age allows."""

from __future__ import annotations

from srl.workers.age_check import AgeCheck


def test_a_batch_beyond_the_bound_is_too_old() -> None:
    check = AgeCheck(1, 0)
    assert not check.exceeded(5, 1)
    assert check.exceeded(5, 2)


def test_without_a_bound_nothing_is_too_old() -> None:
    assert not AgeCheck(None, 0).exceeded(100, 100)


def test_what_was_begun_before_trainers_met_again_is_excused() -> None:
    check = AgeCheck(1, 0)
    check.start_again(20)
    assert not check.exceeded(21, 5)
    assert not check.exceeded(21, 1)
    assert check.exceeded(25, 2)


def test_with_workers_on_the_way_batches_under_way_widen_the_bound_then() -> None:
    check = AgeCheck(1, 4)
    assert check.exceeded(9, 2)
    check.start_again(20)
    assert not check.exceeded(40, 5)
    assert check.exceeded(40, 6)
