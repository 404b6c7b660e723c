"""Bells between real processes: no ring is lost, and waiting costs nothing."""

from __future__ import annotations

import pytest
from carriers import ShmCarrier

from srl.arena.arena import HeapArena
from srl.arena.shm import NoBell


def test_a_ring_before_the_wait_is_not_lost(shm: ShmCarrier) -> None:
    puppet = shm.puppet("sleeper")
    puppet("hello")
    arena = shm.open("ringer")
    arena.ring("sleeper")
    assert puppet("wait", seconds=20)["rung"]
    assert not puppet("wait", seconds=0)["rung"], "one wait answers all rings before it"


def test_a_ring_before_the_other_process_exists_is_not_lost(shm: ShmCarrier) -> None:
    shm.open("ringer").ring("later")
    assert shm.puppet("later")("wait", seconds=20)["rung"]


def test_a_ring_wakes_a_waiting_process_at_once(shm: ShmCarrier) -> None:
    puppet = shm.puppet("sleeper")
    puppet("hello")
    puppet.start("wait", seconds=20)
    shm.open("ringer").ring("sleeper")
    result = puppet.result()
    assert result["rung"]
    assert result["seconds"] < 5


def test_waiting_does_not_spin(shm: ShmCarrier) -> None:
    result = shm.puppet("sleeper")("wait", seconds=1.0)
    assert not result["rung"]
    assert result["seconds"] >= 0.99
    assert result["cpu_seconds"] < 0.02


def test_ringing_never_blocks_even_if_nobody_listens(shm: ShmCarrier) -> None:
    arena = shm.open("ringer")
    for _ in range(70_000):  # More than a pipe holds.
        arena.ring("deaf")
    bell = shm.bell("deaf")
    assert bell.wait(1)
    assert not bell.wait(0), "one wait drains them all"
    bell.close()


def test_a_process_does_not_ring_itself(shm: ShmCarrier) -> None:
    """Its workers are stepped again anyway; a ring would only cost a turn."""
    bell = shm.bell("self")
    shm.open("self").ring("self")
    assert not bell.wait(0)
    bell.close()


def test_without_shared_memory_a_wait_is_over_after_its_time() -> None:
    HeapArena().ring("anyone")
    bell = NoBell()
    assert bell.wait(0.001) is False
    bell.close()


def test_every_name_gets_its_own_bell(shm: ShmCarrier) -> None:
    first, second = shm.bell("actor/0"), shm.bell("actor/1")
    shm.open("ringer").ring("actor/1")
    assert not first.wait(0)
    assert second.wait(0)
    for bell in (first, second):
        bell.close()


@pytest.mark.parametrize("name", ["sample/x", "inference/a@b"])
def test_a_lock_excludes_other_processes(shm: ShmCarrier, name: str) -> None:
    holder, other = shm.puppet("holder"), shm.puppet("other")
    assert other("hello") == "hello"
    assert holder("hold_lock", name=name) == "held"
    other.start("hold_lock", name=name)
    # While it is held the other one cannot answer; freeing it is what makes it answer.
    holder.kill()
    assert other.result() == "held"
