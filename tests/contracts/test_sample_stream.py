"""The sample stream's contract, over every carrier."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from carriers import (
    Carrier,
    InlineCarrier,
    ShmCarrier,
    claim,
    dropped,
    fill,
    make_carrier,
    sample_spec,
    tag_of,
    versions_of,
    write,
)
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from srl.errors import ConfigError, StreamError
from srl.streams.admission import AgeBoundAdmission
from srl.streams.sample import (
    SampleSink,
    SampleSource,
    SampleSpec,
    reclaim_reader,
    reclaim_writer,
)
from srl.streams.sample_accounting import account
from srl.streams.sample_queue import FragmentInfo, SampleQueue


def open_all(spec: SampleSpec, carrier: Carrier) -> tuple[list[SampleSink], list[SampleSource]]:
    carrier.create(spec)
    sinks = [SampleSink(spec, carrier.open(p), i) for i, p in enumerate(spec.writers)]
    sources = [SampleSource(spec, carrier.open(p), i) for i, p in enumerate(spec.readers)]
    return sinks, sources


def test_an_item_is_read_as_it_was_written(carrier: Carrier) -> None:
    (sink,), (source,) = open_all(sample_spec(), carrier)
    slot = claim(sink, 0)
    assert slot is not None
    write(slot, 7.0, version=3)
    item = source.take()
    assert item is not None
    assert tag_of(item.trajectory) == 7.0
    assert (item.trajectory.policy_version == 3).all()
    assert (item.writer, item.info) == (0, FragmentInfo(5, 12))


def test_on_one_host_an_item_is_read_where_it_was_written(local: Carrier) -> None:
    (sink,), (source,) = open_all(sample_spec(), local)
    slot = claim(sink, 0)
    assert slot is not None
    write(slot, 7.0)
    item = source.take()
    assert item is not None
    assert item.index == slot.index
    slot.trajectory.reward[0, 0] = 8.0
    assert item.trajectory.reward[0, 0] == 8.0, "what is written afterwards shows in the item"


def test_a_full_stream_makes_writers_wait_until_a_slot_is_released(carrier: Carrier) -> None:
    (sink,), (source,) = open_all(sample_spec(slots=2), carrier)
    for tag in (1.0, 2.0):
        slot = claim(sink, 0)
        assert slot is not None
        write(slot, tag)
    assert claim(sink, 0) is None
    assert sink.waits_for == "slots"
    item = source.take()
    assert item is not None
    assert claim(sink, 0) is None, "a slot that is being read is not free"
    item.release()
    assert claim(sink, 0) is not None


def test_writers_and_readers_are_woken_when_they_may_go_on(shm: ShmCarrier) -> None:
    (sink,), (source,) = open_all(sample_spec(slots=1), shm)
    writer_wake_pipe, reader_wake_pipe = shm.wake_pipe("w0"), shm.wake_pipe("r0")
    assert source.take() is None
    assert not reader_wake_pipe.wait(0)
    slot = claim(sink, 0)
    assert slot is not None
    write(slot, 1.0)
    assert reader_wake_pipe.wait(1), "a reader that found nothing is woken by the commit"
    item = source.take()
    assert item is not None
    assert claim(sink, 0) is None
    assert not writer_wake_pipe.wait(0)
    item.release()
    assert writer_wake_pipe.wait(1), "a writer that found no room is woken by the release"
    # Nobody waits now, so nobody is woken for nothing.
    slot = claim(sink, 0)
    assert slot is not None
    write(slot, 2.0)
    assert not reader_wake_pipe.wait(0)
    for wake_pipe in (writer_wake_pipe, reader_wake_pipe):
        wake_pipe.close()


@pytest.mark.parametrize("delivery", ["any", "all", "key"])
@given(data=st.data(), name=st.sampled_from(["inline", "shm", "tcp"]))
@hypothesis_settings(max_examples=25)
def test_delivery_from_many_writers_to_many_readers(
    delivery: str, data: st.DataObject, name: str
) -> None:
    num_writers = data.draw(st.integers(1, 3))
    num_readers = data.draw(st.integers(1, 3))
    spec = sample_spec(
        slots=data.draw(st.integers(1, 5)),
        writers=tuple(f"w{i}" for i in range(num_writers)),
        readers=tuple(f"r{i}" for i in range(num_readers)),
        delivery=delivery,
    )
    carrier = make_carrier(name)
    try:
        sinks, sources = open_all(spec, carrier)
        got: list[list[float]] = [[] for _ in sources]
        for step, end in enumerate(data.draw(st.lists(st.integers(0, 5), max_size=60))):
            if end < num_writers:
                slot = claim(sinks[end], 0)
                if slot is not None:
                    write(slot, 10.0 * step + end)
            else:
                _take_one(sources, (end - num_writers) % num_readers, got)
        wrote = account(spec, carrier.open("controller")).produced
        for sink in sinks:
            sink.close()
        for reader in range(num_readers):
            while _take_one(sources, reader, got):
                pass
            assert sources[reader].closed
        counts = Counter(tag for tags in got for tag in tags)
        assert len(counts) == wrote
        copies = num_readers if delivery == "all" else 1
        assert set(counts.values()) <= {copies}
        if delivery == "key":
            for reader, tags in enumerate(got):
                assert all(int(tag) % 10 % num_readers == reader for tag in tags)
        for tags in got:
            assert len(set(tags)) == len(tags)
    finally:
        carrier.close()


def _take_one(sources: list[SampleSource], reader: int, got: list[list[float]]) -> bool:
    item = sources[reader].take()
    if item is None:
        return False
    got[reader].append(tag_of(item.trajectory))
    item.release()
    sources[reader].acknowledge(1)
    return True


@pytest.mark.parametrize("age", [0, 1, 2])
@given(data=st.data(), name=st.sampled_from(["inline", "shm", "tcp"]))
@hypothesis_settings(max_examples=25)
def test_no_step_is_older_than_the_bound_when_it_is_consumed(
    age: int, data: st.DataObject, name: str
) -> None:
    """Writers begin fragments when they may; a trainer consumes batches and counts up."""
    num_writers, per_batch = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 4))
    base = data.draw(st.integers(0, 5))
    spec = sample_spec(
        slots=num_writers + per_batch,
        writers=tuple(f"w{i}" for i in range(num_writers)),
        fragments_per_batch=per_batch,
        max_policy_age=age,
        base_version=base,
    )
    carrier = make_carrier(name)
    try:
        sinks, (source,) = open_all(spec, carrier)
        version, batch, order = base, [], []
        open_slots: dict[int, object] = {}
        half = 30 if name == "tcp" else 100
        for turn in range(2 * half):
            writer = (
                data.draw(st.integers(0, num_writers - 1)) if turn < half else turn % num_writers
            )
            slot = open_slots.pop(writer, None)
            if slot is None:
                slot = claim(sinks[writer], version)
                if slot is not None:
                    assert version >= slot.oldest_version
                    # Its first step is of the weights that were there when it began.
                    fill(slot.trajectory, 1.0, version)
                    open_slots[writer] = slot
            else:
                slot.commit(FragmentInfo(5, 12))
            while (item := source.take()) is not None:
                order.append(item.ticket)
                lag = version - int(versions_of(item.trajectory).min())
                # Never older than allowed, though nobody looks at it between claim and here.
                assert 0 <= lag <= age
                batch.append(lag)
                item.release()
                if len(batch) == per_batch:
                    batch = []
                    source.acknowledge(per_batch)
                    version += 1
                    carrier.publish(version)
        assert order == sorted(order), "in the order in which they were begun"
        assert version > base + half // (2 * num_writers * per_batch) - 2, "and nobody stands still"
    finally:
        carrier.close()


def test_with_age_one_the_next_batch_is_written_while_one_is_trained_on(carrier: Carrier) -> None:
    (sink,), (source,) = open_all(
        sample_spec(slots=8, fragments_per_batch=2, max_policy_age=1), carrier
    )
    for _ in range(4):
        slot = claim(sink, 0)
        assert slot is not None
        write(slot, 1.0)
    assert claim(sink, 0) is None
    assert sink.waits_for == "policy_age"
    carrier.publish(1)
    assert claim(sink, 1) is not None, "newer weights open the next batch"
    assert source.take() is not None


def test_where_age_is_bounded_items_come_in_the_order_of_their_claims(carrier: Carrier) -> None:
    spec = sample_spec(writers=("w0", "w1"), max_policy_age=5)
    (first, second), (source,) = open_all(spec, carrier)
    early, late = claim(first, 0), claim(second, 0)
    assert early is not None
    assert late is not None
    write(late, 2.0)
    assert source.take() is None, "the older one is still being written"
    write(early, 1.0)
    got = [source.take(), source.take()]
    assert [tag_of(item.trajectory) for item in got if item is not None] == [1.0, 2.0]


def test_a_reader_with_an_empty_slot_says_whose_it_is(carrier: Carrier) -> None:
    (_, sink), (source,) = open_all(sample_spec(writers=("w0", "w1"), slots=1), carrier)
    for _ in range(2):  # The first time the slot is new, the second time it held an item.
        slot = claim(sink, 0)
        assert slot is not None
        slot.commit(FragmentInfo(5, 12))
        with pytest.raises(StreamError, match=r"slot 0 was committed by w1 .*never written"):
            source.take()
        reclaim_reader(source.spec, carrier.open("controller"), 0)
        slot = claim(sink, 0)
        assert slot is not None
        write(slot, 1.0)
        item = source.take()
        assert item is not None
        item.release()
    # One tick that was observed and never answered is enough.
    slot = claim(sink, 0)
    assert slot is not None
    fill(slot.trajectory, 1.0)
    slot.trajectory.policy_version[2, 1] = -1
    slot.commit(FragmentInfo(5, 12))
    with pytest.raises(StreamError, match="w1"):
        source.take()


# -- closing -------------------------------------------------------------------------------------


def test_readers_drain_what_is_there_and_then_see_the_end(carrier: Carrier) -> None:
    spec = sample_spec(writers=("w0", "w1"))
    (first, second), (source,) = open_all(spec, carrier)
    for sink, tag in ((first, 1.0), (second, 2.0)):
        slot = claim(sink, 0)
        assert slot is not None
        write(slot, tag)
    first.close()
    assert not source.closed, "one writer is still there"
    second.close()
    assert not source.closed, "two items are still there"
    for _ in range(2):
        item = source.take()
        assert item is not None
        item.release()
    assert source.closed


def test_a_stream_whose_writers_have_not_come_yet_is_not_closed(carrier: Carrier) -> None:
    spec = sample_spec()
    carrier.create(spec)
    source = SampleSource(spec, carrier.open("r0"), 0)
    assert not source.closed
    sink = SampleSink(spec, carrier.open("w0"), 0)
    assert not sink.closed


def test_writers_see_when_the_last_reader_has_left(carrier: Carrier) -> None:
    (sink,), (first, second) = open_all(sample_spec(readers=("r0", "r1")), carrier)
    first.close()
    assert not sink.closed
    second.close()
    assert sink.closed


def test_a_writer_that_leaves_in_mid_fragment_gives_its_slot_back(carrier: Carrier) -> None:
    spec = sample_spec(writers=("w0", "w1"), slots=2, max_policy_age=9)
    (leaving, staying), (source,) = open_all(spec, carrier)
    assert claim(leaving, 0) is not None
    slot = claim(staying, 0)
    assert slot is not None
    write(slot, 2.0)
    leaving.close()
    slot = claim(staying, 0)
    assert slot is not None, "the slot is free again"
    assert source.take() is None, "the ticket went back and is used again"
    write(slot, 1.0)
    tags = []
    while (item := source.take()) is not None:
        tags.append(tag_of(item.trajectory))
        item.release()
    assert tags == [1.0, 2.0]


def test_a_gap_that_nobody_will_fill_does_not_hide_what_follows(carrier: Carrier) -> None:
    spec = sample_spec(writers=("w0", "w1"), max_policy_age=9)
    (first, second), (source,) = open_all(spec, carrier)
    assert claim(first, 0) is not None
    slot = claim(second, 0)
    assert slot is not None
    write(slot, 2.0)
    first.close()
    second.close()
    item = source.take()
    assert item is not None
    assert tag_of(item.trajectory) == 2.0
    item.release()
    assert source.closed


def test_closing_wakes_the_other_side(shm: ShmCarrier) -> None:
    (sink,), (source,) = open_all(sample_spec(), shm)
    writer_wake_pipe, reader_wake_pipe = shm.wake_pipe("w0"), shm.wake_pipe("r0")
    sink.close()
    assert reader_wake_pipe.wait(1)
    source.close()
    assert writer_wake_pipe.wait(1)
    for wake_pipe in (writer_wake_pipe, reader_wake_pipe):
        wake_pipe.close()


# -- deaths --------------------------------------------------------------------------------------


def test_a_dead_writers_slot_and_ticket_are_used_again(carrier: Carrier) -> None:
    spec = sample_spec(writers=("w0", "w1"), slots=2, fragments_per_batch=1, max_policy_age=1)
    (dies, lives), (source,) = open_all(spec, carrier)
    held, other = claim(dies, 0), claim(lives, 0)
    assert held is not None
    assert other is not None
    write(other, 2.0)
    controller = carrier.open("controller")
    assert reclaim_writer(spec, carrier.agent("w0"), 0) == 1
    again = claim(lives, 0)
    assert again is not None, "with the weights that were good enough for the lost fragment"
    assert again.index == held.index
    assert source.take() is None, "the dead writer's place in the order is being filled"
    write(again, 1.0)
    got = [source.take(), source.take()]
    assert [tag_of(item.trajectory) for item in got if item is not None] == [1.0, 2.0]
    accounts = account(spec, controller)
    assert accounts.produced == 2
    assert dropped(accounts) == {"writer died": 1}


def test_several_given_back_tickets_are_used_oldest_first(carrier: Carrier) -> None:
    spec = sample_spec(writers=("w0", "w1"), slots=6, max_policy_age=99)
    (dies, lives), (source,) = open_all(spec, carrier)
    slots = [claim(sink, 0) for sink in (dies, lives, dies, dies)]
    assert slots[1] is not None
    write(slots[1], 1.0)
    assert reclaim_writer(spec, carrier.agent("w0"), 0) == 3
    for tag in (0.0, 2.0, 3.0, 4.0):
        slot = claim(lives, 0)
        assert slot is not None
        write(slot, tag)
    tags = []
    while (item := source.take()) is not None:
        tags.append(tag_of(item.trajectory))
        item.release()
    assert tags == [0.0, 1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize("reclaim_first", [True, False])
@pytest.mark.parametrize("given_back", [True, False])
def test_a_writer_that_dies_in_the_middle_of_a_claim_loses_no_ticket(
    local: Carrier, reclaim_first: bool, given_back: bool
) -> None:
    """It had marked its slot, and not yet noted that the ticket is used."""
    spec = sample_spec(writers=("w0", "w1"), slots=3, max_policy_age=99)
    (dies, lives), (source,) = open_all(spec, local)
    controller = local.open("controller")
    if given_back:
        assert claim(dies, 0) is not None
        reclaim_writer(spec, controller, 0)
    queue, admission = dies._queue, dies._admission
    assert isinstance(admission, AgeBoundAdmission)
    before = queue.next_ticket.copy(), admission.num_returned.copy()
    assert claim(dies, 0) is not None
    queue.next_ticket[:], admission.num_returned[:] = before
    if reclaim_first:
        assert reclaim_writer(spec, controller, 0) == 1
    slot = claim(lives, 0)
    assert slot is not None
    write(slot, 1.0)
    reclaim_writer(spec, controller, 0)
    got = []
    for tag in (2.0, 3.0, 4.0):
        slot = claim(lives, 0)
        assert slot is not None
        write(slot, tag)
        while (item := source.take()) is not None:
            got.append(item.ticket)
            item.release()
    assert got == [0, 1, 2, 3]


class _Killed(Exception):
    pass


def test_a_writer_that_dies_in_a_commit_has_produced_nothing(
    local: Carrier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had counted its fragment, and not yet marked it ready."""
    spec = sample_spec(writers=("w0", "w1"), patience_seconds=10.0)
    (dies, lives), (source,) = open_all(spec, local)
    for sink in (dies, lives):
        whole = claim(sink, 0)
        assert whole is not None
        write(whole, 1.0)

    def die(*_: object) -> None:
        raise _Killed

    torn = claim(dies, 0)
    assert torn is not None
    with monkeypatch.context() as patch:
        patch.setattr(SampleQueue, "hand_over", die)
        with pytest.raises(_Killed):
            write(torn, 2.0)
    assert reclaim_writer(spec, local.open("controller"), 0) == 1
    accounts = account(spec, local.open("controller"))
    assert (accounts.produced, accounts.in_flight) == (2, 2)
    assert dropped(accounts) == {"writer died": 1}
    again = claim(lives, 0)
    assert again is not None
    assert again.index == torn.index
    write(again, 3.0)
    assert account(spec, local.open("controller")).produced == 3
    assert tag_of(source.take().trajectory) == 1.0  # type: ignore[union-attr]


@pytest.mark.parametrize("claimed_by", ["nobody", "another", "its successor"])
def test_a_writer_that_dies_at_the_end_of_a_commit_has_produced_its_fragment(
    local: Carrier, claimed_by: str
) -> None:
    """It had marked it ready, and not yet noted that the commit is over."""
    spec = sample_spec(writers=("w0", "w1"), slots=1)
    (dies, lives), (source,) = open_all(spec, local)
    controller = local.open("controller")
    slot = claim(dies, 0)
    assert slot is not None
    write(slot, 1.0)
    dies._queue.committing[0] = slot.index + 1
    item = source.take()
    assert item is not None
    item.release()
    if claimed_by == "another":
        assert claim(lives, 0) is not None
    assert reclaim_writer(spec, controller, 0) == 0
    if claimed_by == "its successor":
        assert claim(SampleSink(spec, local.open("w0"), 0), 0) is not None
        assert reclaim_writer(spec, controller, 0) == 1
    assert account(spec, controller).produced == 1


@pytest.mark.parametrize("delivery", ["any", "all", "key"])
def test_a_dead_readers_items_are_dropped_and_counted(carrier: Carrier, delivery: str) -> None:
    spec = sample_spec(slots=4, readers=("r0", "r1"), writers=("w0", "w1"), delivery=delivery)
    (sink, _), (dies, lives) = open_all(spec, carrier)
    for tag in range(4):
        slot = claim(sink, 0)
        assert slot is not None
        write(slot, tag)
    released, held = dies.take(), dies.take()
    assert released is not None
    assert held is not None
    released.release()
    assert reclaim_reader(spec, carrier.open("controller"), 0) == 2
    accounts = account(spec, carrier.open("controller"))
    assert dropped(accounts) == {"reader died": 2}
    assert accounts.consumed == 0
    # Its successor goes on with the rest, and the slots of what was lost are free again.
    heir = SampleSource(spec, carrier.open("r0"), 0)
    got = []
    while (item := heir.take()) is not None:
        got.append(tag_of(item.trajectory))
        item.release()
    assert got == [2.0, 3.0]
    if delivery == "all":
        while (item := lives.take()) is not None:
            item.release()
    assert all(claim(sink, 0) is not None for _ in range(4))


def test_lost_items_do_not_count_towards_the_batches_to_come(carrier: Carrier) -> None:
    spec = sample_spec(slots=4, fragments_per_batch=2, max_policy_age=0)
    (sink,), (source,) = open_all(spec, carrier)
    for _ in range(2):
        slot = claim(sink, 0)
        assert slot is not None
        write(slot, 1.0)
    assert claim(sink, 0) is None, "the batch of version 0 is complete"
    assert source.take() is not None
    reclaim_reader(spec, carrier.open("controller"), 0)
    assert claim(sink, 0) is not None, "one of its items is lost, so another one is needed"
    assert claim(sink, 0) is None


@given(data=st.data(), name=st.sampled_from(["inline", "shm", "tcp"]))
@hypothesis_settings(max_examples=40)
def test_the_books_add_up_whatever_happens(data: st.DataObject, name: str) -> None:
    spec = sample_spec(
        slots=3,
        writers=("w0", "w1"),
        readers=("r0", "r1"),
        delivery=data.draw(st.sampled_from(["any", "key"])),
    )
    carrier = make_carrier(name)
    try:
        sinks, sources = open_all(spec, carrier)
        controller = carrier.open("controller")
        writing: list[list[object]] = [[], []]
        reading: list[list[object]] = [[], []]
        released = [0, 0]
        actions = st.tuples(
            st.sampled_from(["claim", "commit", "take", "release", "ack", "writer dies", "dies"]),
            st.integers(0, 1),
        )
        for action, who in data.draw(st.lists(actions, max_size=50)):
            if action == "claim" and (slot := claim(sinks[who], 0)) is not None:
                writing[who].append(slot)
            elif action == "commit" and writing[who]:
                write(writing[who].pop(0), 1.0)
            elif action == "take" and (item := sources[who].take()) is not None:
                reading[who].append(item)
            elif action == "release" and reading[who]:
                reading[who].pop(0).release()
                released[who] += 1
            elif action == "ack":
                sources[who].acknowledge(released[who])
                released[who] = 0
            elif action == "writer dies":
                agent = carrier.agent(f"w{who}")
                assert reclaim_writer(spec, agent, who) == len(writing[who])
                writing[who] = []
                sinks[who] = SampleSink(spec, carrier.open(f"w{who}"), who)
            elif action == "dies":
                lost = len(reading[who]) + released[who]
                assert reclaim_reader(spec, controller, who) == lost
                reading[who], released[who] = [], 0
                sources[who] = SampleSource(spec, carrier.open(f"r{who}"), who)
            accounts = account(spec, controller)
            gone = accounts.dropped["reader died"] + accounts.dropped["out of turn"]
            assert accounts.produced == accounts.consumed + gone + accounts.in_flight
            assert accounts.in_flight >= len(reading[0]) + len(reading[1]) + sum(released)
    finally:
        carrier.close()


def test_too_many_readers_for_a_broadcast_are_refused() -> None:
    with pytest.raises(ConfigError, match="at most 31 readers, got 32"):
        sample_spec(delivery="all", readers=tuple(f"r{i}" for i in range(32)))


def test_broadcast_works_up_to_its_limit(carrier: Carrier) -> None:
    spec = sample_spec(delivery="all", slots=1, readers=tuple(f"r{i}" for i in range(31)))
    (sink,), sources = open_all(spec, carrier)
    slot = claim(sink, 0)
    assert slot is not None
    write(slot, 1.0)
    for source in sources:
        assert claim(sink, 0) is None
        item = source.take()
        assert item is not None
        assert source.take() is None, "each reader gets it once"
        item.release()
    assert claim(sink, 0) is not None


def test_fresh_slots_hold_what_nobody_would_write(carrier: Carrier) -> None:
    (sink,), _ = open_all(sample_spec(), carrier)
    slot = claim(sink, 0)
    assert slot is not None
    assert np.isnan(slot.trajectory.reward).all()
    assert np.isnan(slot.trajectory.obs["a"]).all()
    assert (slot.trajectory.action == np.iinfo(np.int64).min).all()
    assert (slot.trajectory.policy_version == -1).all()


def test_a_saved_stream_goes_on_with_the_slot_that_was_being_written() -> None:
    carrier = InlineCarrier()
    spec = sample_spec()
    (sink,), (source,) = open_all(spec, carrier)
    slot = claim(sink, 0)
    assert slot is not None
    fill(slot.trajectory, 3.0)
    saved = carrier.open("controller").state()  # type: ignore[attr-defined]

    other = InlineCarrier()
    (sink,), (source,) = open_all(spec, other)
    other.open("controller").restore(saved)  # type: ignore[attr-defined]
    with pytest.raises(StreamError, match="not being written"):
        sink.reopen(slot.index + 1)
    again = sink.reopen(slot.index)
    assert tag_of(again.trajectory) == 3.0
    again.commit(FragmentInfo(5, 12))
    assert source.take() is not None
