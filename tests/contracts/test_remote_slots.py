"""A stream whose owner is gone: the host that its readers move to takes it over."""

from __future__ import annotations

from carriers import ShmCarrier, sample_spec, tag_of, write

from srl.streams.remote_slots import RemoteWritersEnd
from srl.streams.sample import SampleSink, SampleSource, create_sample
from srl.streams.sample_accounting import account


def test_a_writers_host_that_becomes_the_owner_numbers_what_is_being_written_anew(
    shm: ShmCarrier,
) -> None:
    """One slot is being written, one committed for the old owner, one granted and not begun."""
    spec = sample_spec(slots=4, writers=("w0", "w1", "w2"), max_policy_age=9)
    create_sample(spec, shm.open("agent"), owned_elsewhere=True)
    writers_end = RemoteWritersEnd(spec, shm.open("bridge"))
    sinks = [SampleSink(spec, shm.open(f"w{i}"), i) for i in range(3)]
    wake_pipe = shm.wake_pipe("w2")
    assert [sink.claim(0) for sink in sinks] == [None] * 3
    for writer, ticket in ((0, 57), (1, 58), (2, 59)):
        assert writers_end.accept(writer, ticket) is not None
    writing, committed = sinks[0].claim(99), sinks[1].claim(99)
    assert writing is not None
    assert committed is not None
    write(committed, 58.0)
    wake_pipe.clear()

    writers_end.take_over(newest_version=5)

    assert writers_end._admission.base_version[0] == 5, "next come newer weights"
    assert wake_pipe.wait(0.0), "who waited for the old owner looks anew"
    source = SampleSource(spec, shm.open("r0"), 0)
    assert source.take() is None, "what was for the old owner is gone with its numbers"
    write(writing, 1.0)
    for tag in (2.0, 3.0, 4.0):
        slot = sinks[2].claim(0)
        assert slot is not None, "every other slot is free, without anybody's grant"
        write(slot, tag)
    assert sinks[1].claim(0) is None
    items = [source.take() for _ in range(4)]
    found = [(item.ticket, tag_of(item.trajectory)) for item in items if item is not None]
    assert found == [(0, 1.0), (1, 2.0), (2, 3.0), (3, 4.0)], "numbered from 0, none missing"
    for item in items:
        assert item is not None
        item.release()
    source.acknowledge(4)
    accounts = account(spec, shm.open("controller"))
    assert (accounts.produced, accounts.consumed, accounts.in_flight) == (5, 4, 0)
    assert accounts.dropped["host lost"] == sum(accounts.dropped.values()) == 1
    wake_pipe.close()


def test_an_owner_takes_nothing_over_from_itself(shm: ShmCarrier) -> None:
    spec = sample_spec(slots=2)
    create_sample(spec, shm.open("agent"))
    sink, source = SampleSink(spec, shm.open("w0"), 0), SampleSource(spec, shm.open("r0"), 0)
    for tag in (1.0, 2.0):
        slot = sink.claim(0)
        assert slot is not None
        write(slot, tag)

    RemoteWritersEnd(spec, shm.open("bridge")).take_over(newest_version=5)

    items = [source.take(), source.take()]
    assert [tag_of(item.trajectory) for item in items if item is not None] == [1.0, 2.0]
