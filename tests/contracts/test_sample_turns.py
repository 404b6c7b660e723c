"""Readers that take turns: who gets what, and what happens when one dies or falls behind."""

from __future__ import annotations

from typing import Any

import pytest
from carriers import (
    Carrier,
    InlineCarrier,
    ShmCarrier,
    claim,
    fill,
    sample_spec,
    versions_of,
    write,
)
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from srl.streams.sample import Item, SampleSink, SampleSource, SampleSpec
from srl.streams.sample_books import ledger, reclaim_reader


def turn_spec(**changes: Any) -> SampleSpec:
    base = {"readers": ("r0", "r1"), "delivery": "turn", "items_per_batch": 4, "slots": 8}
    return sample_spec(**{**base, "max_policy_age": 1, **changes})


def open_all(spec: SampleSpec, carrier: Carrier) -> tuple[list[SampleSink], list[SampleSource]]:
    carrier.create(spec)
    sinks = [SampleSink(spec, carrier.open(p), i) for i, p in enumerate(spec.writers)]
    sources = [SampleSource(spec, carrier.open(p), i) for i, p in enumerate(spec.readers)]
    return sinks, sources


def put(sink: SampleSink, version: int, count: int) -> None:
    for _ in range(count):
        slot = claim(sink, version)
        assert slot is not None
        write(slot, 1.0, version)


def take_all(source: SampleSource) -> list[int]:
    got = []
    while (item := source.take()) is not None:
        got.append(item.item_id)
        item.release()
    return got


def test_tickets_go_to_the_readers_in_turn(carrier: Carrier) -> None:
    spec = turn_spec()
    (sink,), sources = open_all(spec, carrier)
    assert spec.items_per_reader == 2
    put(sink, 0, 8)
    assert [take_all(source) for source in sources] == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert claim(sink, 0) is None
    assert sink.waits_for == "policy_age", "both readers' tickets count towards a batch"


def test_what_a_dead_reader_lost_is_collected_anew_and_the_batches_stay_the_same(
    local: Carrier,
) -> None:
    spec = turn_spec()
    (sink,), (lives, _) = open_all(spec, local)
    dies = SampleSource(spec, local.open("r1"), 1)
    put(sink, 0, 7)
    assert take_all(lives) == [0, 2, 4, 6]
    assert take_all(dies) == [1, 3, 5]
    dies.acknowledge(2)
    lives.acknowledge(2)
    assert reclaim_reader(spec, local.open("controller"), 1) == 1
    heir = SampleSource(spec, local.open("r1"), 1)
    slot = sink.claim(0)
    assert slot is not None, "with the weights that were good enough for the lost fragment"
    write(slot, 2.0)
    put(sink, 1, 2)
    assert take_all(heir) == [5, 7]
    assert take_all(lives) == [8]
    books = ledger(spec, local.open("controller"))
    assert books.dropped == {"writer died": 0, "reader died": 1, "out of turn": 0, "host lost": 0}
    assert books.produced == books.consumed + 1 + books.in_flight


def test_a_reader_that_fell_behind_goes_on_with_the_batch_of_the_others(local: Carrier) -> None:
    spec = turn_spec()
    (sink,), (ahead, _) = open_all(spec, local)
    behind = SampleSource(spec, local.open("r1"), 1)
    put(sink, 0, 8)
    assert len(take_all(ahead)) == len(take_all(behind)) == 4
    ahead.acknowledge(2)
    # It dies before it could acknowledge; one of its tickets is being written again by now.
    assert reclaim_reader(spec, local.open("controller"), 1) == 4
    late = sink.claim(0)
    assert late is not None
    heir = SampleSource(spec, local.open("r1"), 1)
    assert heir.newest_batch() == 1
    heir.skip_to(1)
    write(late, 3.0)
    put(sink, 0, 2)
    assert take_all(heir) == [5, 7], "tickets 1 and 3 belong to a batch that is over"
    books = ledger(spec, local.open("controller"))
    assert books.dropped == {"writer died": 0, "reader died": 4, "out of turn": 1, "host lost": 0}
    assert books.produced == books.consumed + 5 + books.in_flight
    # The other way round: what it holds of a batch that is over is given up.
    heir.acknowledge(2)
    assert ahead.newest_batch() == 2
    ahead.discard(2)
    ahead.skip_to(2)
    books = ledger(spec, local.open("controller"))
    assert books.dropped["out of turn"] == 3
    assert books.produced == books.consumed + 7 + books.in_flight


def test_a_lost_ticket_finds_room_though_later_ones_have_every_slot(local: Carrier) -> None:
    spec = turn_spec(slots=2, max_policy_age=None)
    (sink,), (lives, dies) = open_all(spec, local)
    put(sink, 0, 2)
    assert take_all(lives) == [0]
    assert take_all(dies) == [1]
    put(sink, 0, 2)
    assert reclaim_reader(spec, local.open("controller"), 1) == 1
    assert sink.claim(0) is None
    heir = SampleSource(spec, local.open("r1"), 1)
    assert heir.take() is None
    put(sink, 0, 1)
    assert take_all(heir) == [1]
    assert take_all(lives) == [2]
    put(sink, 0, 1)
    assert take_all(heir) == [3], "the one that made room comes in its turn"
    books = ledger(spec, local.open("controller"))
    assert books.dropped == {"writer died": 0, "reader died": 1, "out of turn": 1, "host lost": 0}


def test_who_waits_for_room_is_rung_when_a_later_item_makes_it(shm: ShmCarrier) -> None:
    spec = turn_spec(slots=2, max_policy_age=None)
    (sink,), (lives, dies) = open_all(spec, shm)
    put(sink, 0, 2)
    assert len(take_all(lives)) == len(take_all(dies)) == 1
    put(sink, 0, 2)
    reclaim_reader(spec, shm.open("controller"), 1)
    assert sink.claim(0) is None
    bell = shm.bell("w0")
    bell.wait(0)
    assert SampleSource(spec, shm.open("r1"), 1).take() is None
    assert bell.wait(1)
    bell.close()


def test_a_new_number_for_the_next_batch_moves_the_bound_with_it(local: Carrier) -> None:
    (sink,), (first, _) = open_all(turn_spec(max_policy_age=0), local)
    put(sink, 0, 4)
    assert sink.claim(0) is None
    first.expect(version=7, batch=1)
    assert sink.claim(6) is None
    slot = sink.claim(7)
    assert slot is not None
    assert slot.oldest_version == 7


@pytest.mark.parametrize("num_readers", [1, 2, 3])
@given(data=st.data(), name=st.sampled_from(["inline", "shm"]))
@hypothesis_settings(max_examples=12)
def test_batches_stay_whole_and_young_whoever_dies(
    num_readers: int, data: st.DataObject, name: str
) -> None:
    """Trainers that learn together, any of which may die: the bound holds, nobody stands still."""
    age, share = data.draw(st.integers(0, 2)), data.draw(st.integers(1, 2))
    spec = turn_spec(
        readers=tuple(f"r{i}" for i in range(num_readers)),
        writers=("w0", "w1"),
        slots=data.draw(st.integers(2, 6)),
        items_per_batch=share * num_readers,
        max_policy_age=age,
    )
    local = InlineCarrier() if name == "inline" else ShmCarrier()
    try:
        sinks, sources = open_all(spec, local)
        controller = local.open("controller")
        held: list[list[tuple[int, int]]] = [[] for _ in sources]
        writing: list[Any] = [None, None]
        version, updates = 0, 0
        deaths = data.draw(st.sets(st.integers(0, 149), max_size=6))
        for turn in range(300):
            if turn in deaths:
                dead = data.draw(st.integers(0, num_readers - 1))
                lost = reclaim_reader(spec, controller, dead)
                assert lost == len(held[dead])
                held[dead] = []
                sources[dead] = SampleSource(spec, local.open(f"r{dead}"), dead)
            _write(sinks, writing, turn % 2, version)
            for reader, source in enumerate(sources):
                if len(held[reader]) < 2 * share and (item := source.take()) is not None:
                    held[reader].append(_read(item))
            if all(len(items) >= share for items in held):
                used = [items.pop(0) for items in held for _ in range(share)]
                wanted = range(updates * spec.items_per_batch, (updates + 1) * spec.items_per_batch)
                assert sorted(ticket for ticket, _ in used) == list(wanted)
                assert all(0 <= version - oldest <= age for _, oldest in used)
                for source in sources:
                    source.acknowledge(share)
                version, updates = version + 1, updates + 1
            if turn % 10 == 0:
                books = ledger(spec, controller)
                dropped = books.dropped["reader died"] + books.dropped["out of turn"]
                assert books.produced == books.consumed + dropped + books.in_flight
        assert updates >= 5, "nobody stands still"
    finally:
        local.close()


def _write(sinks: list[SampleSink], writing: list[Any], who: int, version: int) -> None:
    if writing[who] is None:
        writing[who] = sinks[who].claim(version)
        if writing[who] is not None:
            fill(writing[who].trajectory, 1.0, version)
    else:
        writing[who].commit(5, 12)
        writing[who] = None


def _read(item: Item) -> tuple[int, int]:
    found = item.item_id, int(versions_of(item.trajectory).min())
    item.release()
    return found
