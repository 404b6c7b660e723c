"""The sample stream between real processes: back-pressure, kills, and many ends at once."""

from __future__ import annotations

import signal
import subprocess
import sys

import numpy as np
import pytest
from carriers import Puppet, ShmCarrier, plain, sample_spec, tag_of, write

from srl.arena.shm import ShmArena
from srl.streams.remote_slots import RemoteWritersEnd
from srl.streams.sample import (
    SampleSink,
    SampleSource,
    create_sample,
    reclaim_reader,
    reclaim_writer,
)
from srl.streams.sample_accounting import account


def test_a_slot_takes_memory_when_it_is_first_used(shm: ShmCarrier) -> None:
    """However many there are, a stream is there at once; what is unwritten is loud all the same."""
    spec = sample_spec(slots=1000)
    arena = ShmArena(shm.folder, "controller", lazy=True)
    create_sample(spec, arena)
    region = arena.path(f"sample/{spec.name}")
    before = region.stat().st_blocks * 512
    assert before < 100 * spec.trajectory.nbytes
    for _ in range(3):
        slot = SampleSink(spec, arena, 0).claim(0)
        assert slot is not None
        assert np.isnan(slot.trajectory.reward).all()
    assert before < region.stat().st_blocks * 512 < before + 10 * 4096
    arena.close()


def test_a_writer_killed_in_mid_fragment_costs_only_its_fragment(shm: ShmCarrier) -> None:
    spec = sample_spec(writers=("w0", "w1"), slots=2, max_policy_age=9)
    arena = shm.open("controller")
    create_sample(spec, arena)
    source = SampleSource(spec, arena, 0)
    dies, lives = shm.puppet("w0"), shm.puppet("w1")
    for index, puppet in enumerate((dies, lives)):
        puppet("open_sink", spec=plain(spec), writer=index)
    held = dies("claim")
    dies("fill", tag=66.0)
    assert lives("claim") is not None
    lives("fill", tag=2.0)
    lives("commit")
    assert lives("claim") is None, "both slots are in use"
    dies.kill()
    assert reclaim_writer(spec, arena, 0) == 1
    assert lives("wait", seconds=5)["woken"], "whoever waits for a slot is woken"
    assert lives("claim") == held
    lives("fill", tag=1.0)
    lives("commit")
    tags = [source.take(), source.take()]
    assert [tag_of(item.trajectory) for item in tags if item is not None] == [1.0, 2.0]
    accounts = account(spec, arena)
    assert (accounts.produced, accounts.in_flight, accounts.dropped["writer died"]) == (2, 2, 1)


def test_a_stopped_writer_is_killed_before_its_slot_is_taken_back(shm: ShmCarrier) -> None:
    """Stopped, killed, reclaimed, continued: it never writes into what is another's by then."""
    spec = sample_spec(writers=("w0", "w1"), slots=1)
    arena = shm.open("controller")
    create_sample(spec, arena)
    source = SampleSource(spec, arena, 0)
    stopped, heir = shm.puppet("w0"), SampleSink(spec, shm.open("w1"), 1)
    stopped("open_sink", spec=plain(spec), writer=0)
    assert stopped("claim") == 0
    stopped.signal(signal.SIGSTOP)
    stopped.start("fill", tag=66.0)  # It would do this as soon as it goes on.
    assert heir.claim(0) is None, "stopped is not dead: nothing is taken back yet"
    stopped.kill()
    assert reclaim_writer(spec, arena, 0) == 1
    slot = heir.claim(0)
    assert slot is not None
    write(slot, 5.0)
    with pytest.raises(ProcessLookupError):
        stopped.signal(signal.SIGCONT)
    item = source.take()
    assert item is not None
    assert tag_of(item.trajectory) == 5.0


def test_a_lock_is_freed_when_its_holder_is_killed(shm: ShmCarrier) -> None:
    spec = sample_spec()
    create_sample(spec, shm.open("controller"))
    holder, waits = shm.puppet("w0"), shm.puppet("w1")
    waits("open_sink", spec=plain(spec), writer=0)
    assert holder("hold_lock", name="sample/test") == "held"
    waits.start("claim")
    holder.kill()
    assert waits.result() == 0


def test_a_killed_readers_items_are_dropped_and_its_heir_goes_on(shm: ShmCarrier) -> None:
    spec = sample_spec(slots=3, max_policy_age=9)
    arena = shm.open("controller")
    create_sample(spec, arena)
    sink = SampleSink(spec, arena, 0)
    for tag in range(3):
        slot = sink.claim(0)
        assert slot is not None
        write(slot, tag)
    dies = shm.puppet("r0")
    dies("open_source", spec=plain(spec), reader=0)
    assert [dies("take"), dies("take")] == [0.0, 1.0]
    dies("release")
    dies.kill()
    assert sink.claim(0) is not None
    assert sink.claim(0) is None
    assert reclaim_reader(spec, arena, 0) == 2
    accounts = account(spec, arena)
    assert (accounts.produced, accounts.consumed, accounts.in_flight) == (3, 0, 1)
    assert accounts.dropped["reader died"] == 2
    heir = shm.puppet("r0")
    heir("open_source", spec=plain(spec), reader=0)
    for tag in (10.0, 11.0):
        slot = sink.claim(0)
        assert slot is not None, "what it was reading is free again"
        write(slot, tag)
        assert heir("take") == tag, "what was lost comes first, collected anew"
        heir("release")
    assert heir("take") == 2.0


@pytest.mark.parametrize("delivery", ["any", "all", "key"])
def test_many_processes_at_both_ends(shm: ShmCarrier, delivery: str) -> None:
    """Everything arrives exactly as often as it should, with both sides asleep in between."""
    spec = sample_spec(slots=3, writers=("w0", "w1"), readers=("r0", "r1"), delivery=delivery)
    arena = shm.open("controller")
    create_sample(spec, arena)
    writers: list[Puppet] = [shm.puppet(name) for name in spec.writers]
    readers: list[Puppet] = [shm.puppet(name) for name in spec.readers]
    for index, puppet in enumerate(writers):
        puppet("open_sink", spec=plain(spec), writer=index)
    for index, puppet in enumerate(readers):
        puppet("open_source", spec=plain(spec), reader=index)
        puppet.start("read_all")
    for index, puppet in enumerate(writers):
        puppet.start("write_all", first=1000 * index, count=200)
    for puppet in writers:
        puppet.result()
    got = [puppet.result() for puppet in readers]
    wrote = [float(tag) for start in (0, 1000) for tag in range(start, start + 200)]
    match delivery:
        case "any":
            assert sorted(got[0] + got[1]) == wrote
        case "all":
            assert sorted(got[0]) == sorted(got[1]) == wrote
        case "key":
            assert sorted(got[0]) == wrote[:200]
            assert sorted(got[1]) == wrote[200:]
    for tags in got:
        for start in (0, 1000):
            mine = [tag for tag in tags if start <= tag < start + 1000]
            assert mine == sorted(mine), "one writer's items keep their order"
    accounts = account(spec, arena)
    assert accounts.produced == 400
    assert accounts.consumed == (800 if delivery == "all" else 400)
    assert accounts.in_flight == 0


def test_looking_again_when_nothing_is_ready_takes_no_lock(shm: ShmCarrier) -> None:
    """TrainerTable look between minibatches; the lock is for those who change something."""
    spec = sample_spec()
    create_sample(spec, shm.open("controller"))
    source = SampleSource(spec, shm.open("r0"), 0)
    assert source.take() is None
    holder = shm.puppet("holder")
    assert holder("hold_lock", name=f"sample/{spec.name}") == "held"
    for _ in range(3):
        assert source.take() is None, "while another process holds the lock"
    holder.kill()


def test_a_reader_that_looks_often_is_woken_for_every_item(shm: ShmCarrier) -> None:
    """However its looks fall between the steps of a commit, it never sleeps on something ready."""
    spec = sample_spec(slots=1)
    create_sample(spec, shm.open("controller"))
    writer, reader = shm.puppet("w0"), shm.puppet("r0")
    writer("open_sink", spec=plain(spec), writer=0)
    reader("open_source", spec=plain(spec), reader=0)
    reader.start("read_all", looks=3)
    writer.start("write_all", first=0, count=500)
    writer.result()
    assert reader.result() == [float(tag) for tag in range(500)]


FLICKER = """
import sys
from pathlib import Path
import msgspec
from srl.arena.shm import ShmArena
from srl.streams.sample import SampleSpec
from srl.streams.admission import open_queue
spec = msgspec.json.decode(sys.argv[2], type=SampleSpec)
waiting = open_queue(spec, ShmArena(Path(sys.argv[1]), "w")).queue.waiting_writers
print("ready", flush=True)
while True:
    waiting ^= 1
"""


def test_who_waits_for_a_slot_can_be_asked_while_that_changes(shm: ShmCarrier) -> None:
    spec = sample_spec(writers=("w",) * 2000, slots=1)
    create_sample(spec, shm.open("controller"), owned_elsewhere=True)
    writers_end = RemoteWritersEnd(spec, shm.open("bridge"))
    arguments = [str(shm.folder), plain(spec)]
    with subprocess.Popen(
        [sys.executable, "-c", FLICKER, *arguments], stdout=subprocess.PIPE
    ) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == b"ready\n"
            counts = {len(writers_end.waiting_writers_here()) for _ in range(20_000)}
        finally:
            other.kill()
    assert len(counts) > 1, "it did change meanwhile"
