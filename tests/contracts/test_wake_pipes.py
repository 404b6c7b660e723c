"""Wake pipes between real processes: no wake is lost, and waiting costs nothing."""

from __future__ import annotations

import pytest
from carriers import ShmCarrier

from srl.arena.arena import HeapArena
from srl.arena.shm import NoWakePipe


def test_a_wake_before_the_wait_is_not_lost(shm: ShmCarrier) -> None:
    puppet = shm.puppet("sleeper")
    puppet("hello")
    arena = shm.open("waker")
    arena.wake("sleeper")
    assert puppet("wait", seconds=120)["woken"]
    assert not puppet("wait", seconds=0)["woken"], "one wait answers all wakes before it"


def test_a_wake_before_the_other_process_exists_is_not_lost(shm: ShmCarrier) -> None:
    shm.open("waker").wake("later")
    assert shm.puppet("later")("wait", seconds=120)["woken"]


def test_a_wake_wakes_a_waiting_process(shm: ShmCarrier) -> None:
    puppet = shm.puppet("sleeper")
    puppet("hello")
    # Longer than a test may take: only the wake ends it.
    puppet.start("wait", seconds=3600)
    shm.open("waker").wake("sleeper")
    assert puppet.result()["woken"]


def test_waiting_does_not_spin(shm: ShmCarrier) -> None:
    result = shm.puppet("sleeper")("wait", seconds=1.0)
    assert not result["woken"]
    assert result["seconds"] >= 0.99
    # It takes a thousandth. What spins gets a part of a core even where others want it too.
    assert result["cpu_seconds"] < 0.1


def test_waking_never_blocks_even_if_nobody_listens(shm: ShmCarrier) -> None:
    arena = shm.open("waker")
    for _ in range(70_000):  # More than a pipe holds.
        arena.wake("deaf")
    wake_pipe = shm.wake_pipe("deaf")
    assert wake_pipe.wait(1)
    assert not wake_pipe.wait(0), "one wait drains them all"
    wake_pipe.close()


def test_a_process_does_not_wake_itself(shm: ShmCarrier) -> None:
    """Its workers are stepped again anyway; a wake would only cost a turn."""
    wake_pipe = shm.wake_pipe("self")
    shm.open("self").wake("self")
    assert not wake_pipe.wait(0)
    wake_pipe.close()


def test_without_shared_memory_a_wait_is_over_after_its_time() -> None:
    HeapArena().wake("anyone")
    wake_pipe = NoWakePipe()
    assert wake_pipe.wait(0.001) is False
    wake_pipe.close()


def test_every_name_gets_its_own_wake_pipe(shm: ShmCarrier) -> None:
    first, second = shm.wake_pipe("actor/0"), shm.wake_pipe("actor/1")
    shm.open("waker").wake("actor/1")
    assert not first.wait(0)
    assert second.wait(0)
    for wake_pipe in (first, second):
        wake_pipe.close()


@pytest.mark.parametrize("name", ["sample/x", "inference/a@b"])
def test_a_lock_excludes_other_processes(shm: ShmCarrier, name: str) -> None:
    holder, other = shm.puppet("holder"), shm.puppet("other")
    assert other("hello") == "hello"
    assert holder("hold_lock", name=name) == "held"
    other.start("hold_lock", name=name)
    # While it is held the other one cannot answer; freeing it is what makes it answer.
    holder.kill()
    assert other.result() == "held"
