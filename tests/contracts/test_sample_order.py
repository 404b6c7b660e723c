"""A reader that takes tickets in turn, and several such with a stream each: what happens when one
dies or falls behind."""

from __future__ import annotations

from typing import Any

import pytest
from carriers import (
    Carrier,
    InlineCarrier,
    ShmCarrier,
    claim,
    dropped,
    fill,
    sample_spec,
    versions_of,
    write,
)
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from srl.streams.sample import (
    SampleSink,
    SampleSource,
    SampleSpec,
    TakenFragment,
    reclaim_reader,
)
from srl.streams.sample_accounting import account
from srl.streams.sample_queue import FragmentInfo


def ordered_spec(**changes: Any) -> SampleSpec:
    base = {"fragments_per_batch": 2, "slots": 8, "max_policy_age": 1}
    return sample_spec(**{**base, **changes})


def open_ends(spec: SampleSpec, carrier: Carrier) -> tuple[SampleSink, SampleSource]:
    carrier.create(spec)
    sink = SampleSink(spec, carrier.open(spec.writers[0]), 0)
    return sink, SampleSource(spec, carrier.open(spec.readers[0]), 0)


def put(sink: SampleSink, version: int, count: int) -> None:
    for _ in range(count):
        slot = claim(sink, version)
        assert slot is not None
        write(slot, 1.0, version)


def take_all(source: SampleSource) -> list[int]:
    got = []
    while (item := source.take()) is not None:
        got.append(item.ticket)
        item.release()
    return got


def test_what_a_dead_reader_lost_is_collected_anew_and_the_batches_stay_the_same(
    local: Carrier,
) -> None:
    spec = ordered_spec()
    sink, dies = open_ends(spec, local)
    put(sink, 0, 4)
    assert take_all(dies) == [0, 1, 2, 3]
    dies.acknowledge(2)
    put(sink, 1, 1)
    assert reclaim_reader(spec, local.open("controller"), 0) == 2
    heir = SampleSource(spec, local.open("r0"), 0)
    assert heir.due == 1
    slot = sink.claim(0)
    assert slot is not None, "with the weights that were good enough for the lost fragment"
    write(slot, 2.0)
    put(sink, 1, 2)
    assert take_all(heir) == [2, 3, 4, 5]
    accounts = account(spec, local.open("controller"))
    assert dropped(accounts) == {"reader died": 2}
    assert accounts.produced == accounts.consumed + 2 + accounts.in_flight


def test_a_reader_that_fell_behind_gives_up_the_batch_that_is_over(local: Carrier) -> None:
    spec = ordered_spec()
    sink, behind = open_ends(spec, local)
    put(sink, 0, 4)
    assert len(take_all(behind)) == 4
    # It dies before it could acknowledge; one of its tickets is being written again by now.
    assert reclaim_reader(spec, local.open("controller"), 0) == 4
    late = sink.claim(0)
    assert late is not None
    heir = SampleSource(spec, local.open("r0"), 0)
    assert heir.due == 0
    heir.skip_batch(0)
    assert heir.due == 1
    write(late, 3.0)
    put(sink, 0, 2)
    assert take_all(heir) == [2, 3], "tickets 0 and 1 belong to a batch that is over"
    accounts = account(spec, local.open("controller"))
    assert dropped(accounts) == {"reader died": 4, "out of turn": 1}
    assert accounts.produced == accounts.consumed + 5 + accounts.in_flight
    # One that lives gives up what it holds.
    heir.skip_batch(2)
    assert heir.due == 2
    accounts = account(spec, local.open("controller"))
    assert accounts.dropped["out of turn"] == 3
    assert accounts.produced == accounts.consumed + 7 + accounts.in_flight


def test_a_batch_is_given_up_where_items_come_in_any_order(local: Carrier) -> None:
    spec = ordered_spec(max_policy_age=None)
    sink, source = open_ends(spec, local)
    put(sink, 0, 3)
    assert len(take_all(source)) == 3
    source.skip_batch(2)
    assert source.due == 1
    source.expect(5)
    assert source.due == 5
    accounts = account(spec, local.open("controller"))
    assert (accounts.dropped["out of turn"], accounts.in_flight) == (2, 1)


def test_later_items_stand_in_for_lost_tickets_that_nobody_has_room_for(local: Carrier) -> None:
    spec = ordered_spec(slots=2, max_policy_age=2)
    sink, dies = open_ends(spec, local)
    put(sink, 0, 2)
    assert take_all(dies) == [0, 1]
    put(sink, 0, 2)
    assert reclaim_reader(spec, local.open("controller"), 0) == 2
    assert sink.claim(0) is None
    heir = SampleSource(spec, local.open("r0"), 0)
    assert take_all(heir) == [0, 1], "those that have every slot"
    put(sink, 0, 2)
    assert take_all(heir) == [2, 3], "whose own tickets are handed out again"
    accounts = account(spec, local.open("controller"))
    assert dropped(accounts) == {"reader died": 2}


def test_who_waits_is_woken_when_a_later_item_stands_in(shm: ShmCarrier) -> None:
    spec = ordered_spec(slots=2, max_policy_age=1)
    sink, dies = open_ends(spec, shm)
    put(sink, 0, 2)
    assert len(take_all(dies)) == 2
    put(sink, 0, 2)
    reclaim_reader(spec, shm.open("controller"), 0)
    assert sink.claim(0) is None
    wake_pipe = shm.wake_pipe("w0")
    wake_pipe.clear()
    assert SampleSource(spec, shm.open("r0"), 0).take() is not None
    assert wake_pipe.wait(0.0)
    wake_pipe.close()


def test_a_new_number_for_the_next_batch_moves_the_bound_with_it(local: Carrier) -> None:
    sink, source = open_ends(ordered_spec(max_policy_age=0), local)
    put(sink, 0, 2)
    assert sink.claim(0) is None
    assert len(take_all(source)) == 2
    source.acknowledge(2)
    source.expect(7)
    assert source.due == 7
    assert sink.claim(6) is None
    slot = sink.claim(7)
    assert slot is not None
    assert slot.oldest_version == 7


class Trainer:
    """A reader as a trainer is one, with its stream and whoever writes that."""

    def __init__(self, spec: SampleSpec, carrier: Carrier) -> None:
        self.spec = spec
        self._carrier = carrier
        self.sink, self.source = open_ends(spec, carrier)
        self.held: list[tuple[int, int]] = []
        self._writing: Any = None

    def write(self, version: int) -> None:
        if self._writing is None:
            self._writing = self.sink.claim(version)
            if self._writing is not None:
                fill(self._writing.trajectory, 1.0, version)
        else:
            self._writing.commit(FragmentInfo(5, 12))
            self._writing = None

    def read(self) -> None:
        if len(self.held) < 2 * self.share and (item := self.source.take()) is not None:
            self.held.append(_read(item))

    @property
    def share(self) -> int:
        return self.spec.fragments_per_batch

    def die(self) -> None:
        assert reclaim_reader(self.spec, self._carrier.open("controller"), 0) == len(self.held)
        self.held = []
        self.source = SampleSource(self.spec, self._carrier.open(self.spec.readers[0]), 0)

    def learn(self) -> list[tuple[int, int]]:
        used = [self.held.pop(0) for _ in range(self.share)]
        self.source.acknowledge(self.share)
        return used

    def join(self, due: int, version: int) -> None:
        if self.source.due < due:
            held = min(self.share, len(self.held))
            self.source.skip_batch(held)
            del self.held[:held]
        self.source.expect(version)


@pytest.mark.parametrize("count", [1, 2, 3])
@given(data=st.data(), name=st.sampled_from(["inline", "shm"]))
@hypothesis_settings(max_examples=12)
def test_batches_stay_whole_and_young_whoever_dies(
    count: int, data: st.DataObject, name: str
) -> None:
    """Trainers that learn together, any of which may die, before an update or in it: the bound
    holds, batches are of the same number everywhere, nobody stands still."""
    age, share = data.draw(st.integers(0, 2)), data.draw(st.integers(1, 2))
    slots = data.draw(st.integers(1, 4))
    local = InlineCarrier() if name == "inline" else ShmCarrier()
    try:
        trainers = [
            Trainer(
                ordered_spec(
                    name=f"s{rank}",
                    writers=(f"w{rank}",),
                    readers=(f"r{rank}",),
                    slots=slots,
                    fragments_per_batch=share,
                    max_policy_age=age,
                ),
                local,
            )
            for rank in range(count)
        ]
        version = 0
        deaths = data.draw(st.sets(st.integers(0, 149), max_size=6))
        for turn in range(300):
            dead = data.draw(st.integers(0, count - 1)) if turn in deaths else -1
            for trainer in trainers:
                trainer.write(version)
                trainer.read()
            if all(len(trainer.held) >= share for trainer in trainers):
                # One may die in an update, or leave it because of that; at least one finishes it.
                fails = set() if dead < 0 else data.draw(st.sets(st.just(dead) | st.just(0)))
                survivors = [t for rank, t in enumerate(trainers) if rank not in fails]
                for trainer in survivors:
                    used = trainer.learn()
                    wanted = range(version * share, (version + 1) * share)
                    assert [ticket for ticket, _ in used] == list(wanted)
                    assert all(0 <= version - oldest <= age for _, oldest in used)
                version += bool(survivors)
            if dead >= 0:
                trainers[dead].die()
                due = max(trainer.source.due for trainer in trainers)
                assert due == version
                for trainer in trainers:
                    trainer.join(due, version)
            if turn % 10 == 0:
                for trainer in trainers:
                    accounts = account(trainer.spec, local.open("controller"))
                    gone = accounts.dropped["reader died"] + accounts.dropped["out of turn"]
                    assert accounts.produced == accounts.consumed + gone + accounts.in_flight
        assert version >= 5, "nobody stands still"
    finally:
        local.close()


def _read(item: TakenFragment) -> tuple[int, int]:
    found = item.ticket, int(versions_of(item.trajectory).min())
    item.release()
    return found
