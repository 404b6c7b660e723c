"""A writer that is overdue, where items are taken in turn: the others go on without it."""

from __future__ import annotations

import pytest
from carriers import (
    Carrier,
    ShmCarrier,
    claim,
    make_carrier,
    sample_spec,
    tag_of,
    versions_of,
    write,
)
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from srl.streams.admission import AgeBoundAdmission
from srl.streams.sample import SampleSink, SampleSource, SampleSpec, Slot, reclaim_writer
from srl.streams.sample_accounting import StreamAccount, account
from srl.streams.sample_queue import WRITING

USUAL_SECONDS = 0.1


def timed_spec(**changes: object) -> SampleSpec:
    base = {"fragments_per_batch": 2, "slots": 6, "max_policy_age": 1, "patience_seconds": 1.0}
    return sample_spec(**{**base, "writers": ("w0", "w1"), **changes})


class Presence:
    """All ends of a stream. Time passes when the test says so."""

    def __init__(self, spec: SampleSpec, carrier: Carrier, usual: float = USUAL_SECONDS) -> None:
        carrier.create(spec)
        self.spec = spec
        self.carrier = carrier
        self.sinks = [SampleSink(spec, carrier.open(p), i) for i, p in enumerate(spec.writers)]
        self.source = SampleSource(spec, carrier.open(spec.readers[0]), 0)
        admission = self.source._admission
        assert isinstance(admission, AgeBoundAdmission)
        self.admission, self.queue = admission, admission.queue
        self.admission.usual_seconds[:] = usual

    def begin(self, writer: int, version: int = 0) -> Slot:
        slot = claim(self.sinks[writer], version)
        assert slot is not None
        return slot

    def pass_time(self, seconds: float, *writers: int) -> None:
        """Lets what writers hold grow old, and the reader look again."""
        for writer in writers:
            held = (self.queue.status == WRITING) & (self.queue.writer == writer)
            self.admission.since[held] -= int(seconds * 1e9)
        self.admission._next_poll = 0.0

    def take(self) -> tuple[int, float] | None:
        item = self.source.take()
        if item is None:
            return None
        found = item.ticket, tag_of(item.trajectory)
        item.release()
        return found

    def accounts(self) -> StreamAccount:
        """Which add up."""
        accounts = account(self.spec, self.carrier.open("controller"))
        dropped = sum(accounts.dropped.values()) - accounts.dropped["writer died"]
        assert accounts.produced == accounts.consumed + dropped + accounts.in_flight
        return accounts


def test_what_is_ready_stands_in_for_a_writer_that_is_overdue(carrier: Carrier) -> None:
    ends = Presence(timed_spec(), carrier)
    ends.begin(0)
    write(ends.begin(1), 1.0)
    assert ends.take() is None, "items are taken in turn"
    ends.pass_time(1.1, 0)
    assert ends.take() == (0, 1.0)
    write(ends.begin(1), 2.0)
    assert ends.take() == (1, 2.0), "no number is left out"


def test_order_is_kept_while_nobody_is_overdue(carrier: Carrier) -> None:
    ends = Presence(timed_spec(), carrier)
    first, second = ends.begin(0), ends.begin(1)
    write(second, 2.0)
    ends.pass_time(0.9, 0)
    assert ends.take() is None
    write(first, 1.0)
    assert [ends.take(), ends.take()] == [(0, 1.0), (1, 2.0)]


@pytest.mark.parametrize(("age", "ahead"), [(0, 0), (1, 1)])
def test_others_may_write_what_a_batch_lacks_with_the_weights_they_have(
    carrier: Carrier, age: int, ahead: int
) -> None:
    """They are at the bound on policy age, and only the writer that is overdue keeps the trainer
    from making newer weights."""
    ends = Presence(timed_spec(max_policy_age=age), carrier)
    write(ends.begin(1), 0.0)
    ends.begin(0)
    for _ in range(2 * ahead):
        write(ends.begin(1), 3.0)
    assert claim(ends.sinks[1], 0) is None
    assert ends.sinks[1].waits_for == "policy_age"
    assert ends.take() == (0, 0.0)
    assert ends.take() is None
    ends.pass_time(1.1, 0)
    assert ends.take() == ((1, 3.0) if ahead else None)
    write(ends.begin(1), 4.0)
    assert ends.take() == (1 + ahead, 4.0)


def test_who_waits_for_newer_weights_is_woken_when_a_number_is_to_be_had_again(
    shm: ShmCarrier,
) -> None:
    ends = Presence(timed_spec(max_policy_age=0), shm)
    write(ends.begin(1), 0.0)
    ends.begin(0)
    assert ends.take() == (0, 0.0)
    assert claim(ends.sinks[1], 0) is None
    wake_pipe = shm.wake_pipe("w1")
    wake_pipe.clear()
    ends.pass_time(1.1, 0)
    assert ends.take() is None
    assert wake_pipe.wait(0.0)
    wake_pipe.close()


def test_a_late_fragment_that_is_young_enough_gets_a_place_at_the_end(carrier: Carrier) -> None:
    ends = Presence(timed_spec(), carrier)
    late = ends.begin(0)
    write(ends.begin(1), 1.0)
    ends.pass_time(1.1, 0)
    assert ends.take() == (0, 1.0)
    write(ends.begin(1), 2.0)
    write(late, 5.0)
    write(ends.begin(0), 6.0)
    assert [ends.take() for _ in range(4)] == [(1, 2.0), (2, 5.0), (3, 6.0), None]
    assert sum(ends.accounts().dropped.values()) == 0


def test_a_late_fragment_that_is_too_old_is_dropped_and_its_writer_goes_on(
    carrier: Carrier,
) -> None:
    ends = Presence(timed_spec(), carrier)
    late = ends.begin(0)
    ends.pass_time(1.1, 0)
    for version in range(3):
        for _ in range(2):
            write(ends.begin(1, version), 1.0, version)
            assert ends.take() is not None
        ends.source.acknowledge(2)
        carrier.publish(version + 1)
    write(late, 5.0, version=0)
    assert ends.take() is None
    accounts = ends.accounts()
    assert (accounts.produced, accounts.consumed, accounts.in_flight) == (7, 6, 0)
    assert accounts.dropped["too late"] == sum(accounts.dropped.values()) == 1
    write(ends.begin(0, 3), 6.0, version=3)
    assert ends.take() == (6, 6.0)


def test_who_waits_for_a_slot_gets_that_of_a_fragment_that_came_too_late(shm: ShmCarrier) -> None:
    ends = Presence(timed_spec(slots=2, fragments_per_batch=1, max_policy_age=0), shm)
    late = ends.begin(0)
    ends.pass_time(1.1, 0)
    assert ends.take() is None
    write(ends.begin(1), 1.0)
    assert ends.take() == (0, 1.0)
    ends.source.acknowledge(1)
    ends.begin(1, 1)
    assert claim(ends.sinks[1], 2) is None
    assert ends.sinks[1].waits_for == "slots"
    wake_pipe = shm.wake_pipe("w1")
    wake_pipe.clear()
    write(late, 5.0, version=0)
    assert wake_pipe.wait(0.0)
    assert claim(ends.sinks[1], 2) is not None
    wake_pipe.close()


@pytest.mark.parametrize(
    ("usual", "patience", "longest"), [(3.0, 1.0, 12.0), (0.1, 2.0, 2.0), (0.0, 1.0, 10.0)]
)
def test_patience_is_measured_by_what_is_usual_for_the_writer(
    local: Carrier, usual: float, patience: float, longest: float
) -> None:
    ends = Presence(timed_spec(patience_seconds=patience), local, usual)
    ends.begin(0)
    write(ends.begin(1), 1.0)
    ends.pass_time(longest - 0.5, 0)
    assert ends.take() is None
    ends.pass_time(0.6, 0)
    assert ends.take() == (0, 1.0)


def test_without_patience_a_writer_is_waited_for_until_its_death_is_certain(
    carrier: Carrier,
) -> None:
    ends = Presence(timed_spec(patience_seconds=0.0), carrier)
    ends.begin(0)
    write(ends.begin(1), 1.0)
    ends.pass_time(1e6, 0)
    assert ends.take() is None
    reclaim_writer(ends.spec, carrier.agent("w0"), 0)
    assert ends.take() == (0, 1.0)


def test_one_fragment_that_took_very_long_changes_little_of_what_is_usual(carrier: Carrier) -> None:
    ends = Presence(timed_spec(max_policy_age=99), carrier, usual=0.0)
    for seconds in (1.0, 30.0):
        slot = ends.begin(0)
        ends.pass_time(seconds, 0)
        write(slot, 1.0)
    assert ends.admission.usual_seconds[0] == pytest.approx(1.25, rel=0.2)
    for _ in range(20):
        slot = ends.begin(0)
        ends.pass_time(5.0, 0)
        write(slot, 1.0)
        ends.take()
        ends.take()
    assert ends.admission.usual_seconds[0] == pytest.approx(5.0, rel=0.2), (
        "it follows what stays so"
    )


def test_a_writer_that_dies_after_it_was_overdue_leaves_no_number_behind(carrier: Carrier) -> None:
    ends = Presence(timed_spec(), carrier)
    ends.begin(0)
    write(ends.begin(1), 1.0)
    ends.pass_time(1.1, 0)
    assert ends.take() == (0, 1.0)
    assert reclaim_writer(ends.spec, carrier.agent("w0"), 0) == 1
    for tag in (2.0, 3.0, 4.0):
        write(ends.begin(1), tag)
    assert [ends.take() for _ in range(4)] == [(1, 2.0), (2, 3.0), (3, 4.0), None]
    assert ends.accounts().dropped["writer died"] == 1


@pytest.mark.parametrize("name", ["inline", "shm", "tcp"])
@given(data=st.data())
@hypothesis_settings(max_examples=10)
def test_nobody_stands_still_whoever_stalls_or_dies(name: str, data: st.DataObject) -> None:
    """The first writer goes on always, so there is a fragment in every second turn at least, while
    others stall for long or die. The bound holds, no number is left out or taken twice, and the
    accounts add up."""
    count, share = data.draw(st.integers(2, 4)), data.draw(st.integers(1, 3))
    age, turns = data.draw(st.integers(0, 2)), 40
    carrier = make_carrier(name)
    try:
        spec = timed_spec(
            writers=tuple(f"w{i}" for i in range(count)),
            slots=count + data.draw(st.integers(0, 3)),
            fragments_per_batch=share,
            max_policy_age=age,
        )
        ends = Presence(spec, carrier)
        writing: dict[int, tuple[Slot, int]] = {}
        held: list[tuple[int, int]] = []
        version, stalled = 0, set()
        for turn in range(2 * turns):
            if turn % turns == 0:
                stalled, before = data.draw(st.sets(st.integers(1, count - 1))), version
            dead = data.draw(st.sampled_from([*[0] * 20, *range(1, count)]))
            if dead and dead in writing:
                del writing[dead]
                reclaim_writer(spec, carrier.agent(f"w{dead}"), dead)
                ends.sinks[dead] = SampleSink(spec, carrier.open(f"w{dead}"), dead)
            ends.pass_time(2.0, *stalled)
            for writer in set(range(count)) - stalled:
                if writer in writing:
                    slot, began = writing.pop(writer)
                    write(slot, 1.0, began)
                elif (claimed := claim(ends.sinks[writer], version)) is not None:
                    writing[writer] = claimed, version
            while len(held) < 2 * share and (item := ends.source.take()) is not None:
                held.append((item.ticket, int(versions_of(item.trajectory).min())))
                item.release()
            if len(held) >= share:
                batch, held = held[:share], held[share:]
                numbers = range(version * share, (version + 1) * share)
                assert [number for number, _ in batch] == list(numbers)
                assert all(0 <= version - oldest <= age for _, oldest in batch)
                ends.source.acknowledge(share)
                version += 1
                carrier.publish(version)
            ends.accounts()
            if turn % turns == turns - 1:
                assert (version - before) * share >= turns / 2 - 8, "nobody stands still"
    finally:
        carrier.close()
