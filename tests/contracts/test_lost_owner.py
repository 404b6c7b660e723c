"""The host of a stream's readers is lost: another one owns the stream, and versions go on above."""

from __future__ import annotations

import time
from contextlib import closing

import numpy as np
from carriers import Puppet, plain, sample_spec
from gated import Hosts

from srl.arena.shm import Bell, bump_placement, make_bell
from srl.data.records import Snapshot
from srl.gates.counters import GateCounters
from srl.gates.post import GatePlan, Samples, Weights
from srl.services.parameters import ParameterReader, ParameterSpec, ParameterWriter
from srl.streams.sample import SampleSource
from srl.streams.sample_books import ledger, settled, tell_upstream, together
from srl.streams.sample_memory import SampleMemory

WAIT_SECONDS = 20.0
WEIGHTS = ParameterSpec(policy="p", shapes={"w": ((8,), "float32")}, readers=("w0",))
SPEC = sample_spec(slots=4, writers=("w0", "w1"))
PLAN = GatePlan(
    samples=(Samples(spec=SPEC, policy=""),), weights=(Weights(spec=WEIGHTS, trainers=("r0",)),)
)


class Taking:
    """A reader on a host."""

    def __init__(self, hosts: Hosts, name: str) -> None:
        self.source = SampleSource(SPEC, hosts[name].arena, 0)
        self._bell = Bell(hosts[name].folder, "r0")

    def take(self) -> float:
        """The next item, once it has come."""
        while (item := self.source.take()) is None:
            assert self._bell.wait(WAIT_SECONDS), "never rung"
        tag = float(item.trajectory.reward[0, 0])
        item.release()
        return tag

    def close(self) -> None:
        self._bell.close()


def lose(hosts: Hosts, lost: str, heir: str) -> None:
    """Kills a host's gate, and lets the reader go on elsewhere."""
    hosts[lost].process.kill()
    hosts[lost].process.wait()
    make_bell(hosts[heir].folder, "r0")
    bump_placement(hosts[heir].folder)
    hosts[heir].processes = (*hosts[heir].processes, "r0")
    hosts.tell(lost)


def sink(hosts: Hosts, host: str, writer: int) -> Puppet:
    puppet = hosts[host].puppet(f"w{writer}")
    puppet("open_sink", spec=plain(SPEC), writer=writer)
    return puppet


def test_writers_everywhere_go_on_with_a_new_owner_and_every_fragment_is_accounted_for() -> None:
    with closing(Hosts(PLAN, gpu=("r0",), home=("w0",), far=("w1",))) as hosts:
        first = Taking(hosts, "gpu")
        at_home, far = sink(hosts, "home", 0), sink(hosts, "far", 1)
        at_home("write", tag=1.0)
        far("write", tag=2.0)
        assert {first.take(), first.take()} == {1.0, 2.0}
        first.source.acknowledge(1)
        # Both are in the middle of a fragment when the owner is lost.
        for puppet, tag in ((at_home, 3.0), (far, 4.0)):
            puppet("claim_soon")
            puppet("fill", tag=tag)
        last = ledger(SPEC, hosts["gpu"].arena)

        lose(hosts, "gpu", "home")

        second = Taking(hosts, "home")
        far("commit")
        far("write", tag=5.0)
        at_home("commit")
        at_home("write", tag=6.0)
        # What was begun at the new owner's is used; what was begun elsewhere has no slot there.
        assert {second.take() for _ in range(3)} == {3.0, 5.0, 6.0}
        second.source.acknowledge(3)
        here = [ledger(SPEC, hosts[name].arena) for name in ("home", "far")]
        books = together([settled(last), *here])
        assert (books.produced, books.consumed, books.in_flight) == (6, 4, 0)
        assert books.dropped["host lost"] == 2, "one in the lost reader's hands, one on its way"
        first.close()
        second.close()


def test_a_reader_takes_nothing_before_its_host_owns_the_stream() -> None:
    with closing(Hosts(PLAN, gpu=("r0",), home=("w0",))) as hosts:
        early = SampleSource(SPEC, hosts["home"].arena, 0)
        assert not early.here
        writer = sink(hosts, "home", 0)
        with closing(Taking(hosts, "gpu")) as reader:
            writer("write", tag=1.0)
            assert reader.take() == 1.0
        assert early.take() is None
        lose(hosts, "gpu", "home")
        with closing(Taking(hosts, "home")) as reader:
            writer("write", tag=2.0)
            assert reader.take() == 2.0
        assert early.here


def test_a_new_publisher_hears_which_versions_are_out_there() -> None:
    with closing(Hosts(PLAN, gpu=("r0",), home=(), far=("w0",))) as hosts:
        writer = ParameterWriter(WEIGHTS, hosts["gpu"].arena)
        writer.publish(Snapshot(7, {"w": np.full(8, 7, np.float32)}))
        far, home = (ParameterReader(WEIGHTS, hosts[name].arena) for name in ("far", "home"))
        bell = Bell(hosts["far"].folder, "w0")
        while far.version < 7:
            assert bell.wait(WAIT_SECONDS)
        assert (home.version, home.newest_elsewhere) == (-1, -1)

        lose(hosts, "gpu", "home")

        trainer = Bell(hosts["home"].folder, "r0")
        while home.newest_elsewhere < 7:
            assert trainer.wait(WAIT_SECONDS), "never rung"
        # Older ones are not taken; the next one is.
        again = ParameterWriter(WEIGHTS, hosts["home"].arena)
        for version in (5, 8):
            again.publish(Snapshot(version, {"w": np.full(8, version, np.float32)}))
            hosts["home"].arena.ring("gate")
        while far.version == 7:
            assert bell.wait(WAIT_SECONDS), "never rung"
        assert far.version == 8
        bell.close()
        trainer.close()


def test_a_trainer_elsewhere_has_streams_on_the_way_to_its_own_count_anew() -> None:
    """Fragments that were lost with it are replaced; those who wait for newer weights must not wait
    for versions that will never come of what is lost."""
    up = sample_spec(name="up", writers=("w0",), readers=("mid",), slots=4, max_policy_age=0)
    down = sample_spec(name="down", writers=("mid",), readers=("r0",), slots=4)
    plan = GatePlan(
        samples=(Samples(spec=up, policy="p"), Samples(spec=down, policy="p")),
        weights=(Weights(spec=WEIGHTS, trainers=("r0",)),),
    )
    with closing(Hosts(plan, home=("mid",), gpu=("r0",), far=("w0",))) as hosts:
        memory = SampleMemory(up, hosts["home"].arena)
        gpu, bell = SampleSource(down, hosts["gpu"].arena, 0), Bell(hosts["home"].folder, "mid")
        while not gpu.here:
            bell.wait(0.02)
        # No weights come to the owner; it lends all the same, and writers wait for theirs.
        writer = hosts["far"].puppet("w0")
        writer("open_sink", spec=plain(up), writer=0)
        writer("claim_soon")
        memory.next_ticket[0] = memory.open_from[0] = 12

        tell_upstream(down, [up], hosts["gpu"].arena, version=9)

        deadline = time.monotonic() + WAIT_SECONDS
        while memory.base_version[0] != 9:
            assert time.monotonic() < deadline, "never heard"
            bell.wait(0.02)
        assert memory.num_lost[0] == 12
        # Said once a second, done once.
        memory.num_lost[0] = 13
        received = hosts["home"].counters()["received_messages"]
        while hosts["home"].counters()["received_messages"] < received + 3:
            bell.wait(0.05)
        assert memory.num_lost[0] == 13
        # A gate that takes another's place is told once more of what that one has done.
        home = hosts["home"]
        home.process.kill()
        home.process.wait()
        GateCounters(home.arena).set("received_messages", 0)
        home.incarnation += 1
        home.start()
        hosts.tell()
        while home.counters()["received_messages"] < 6:
            bell.wait(0.05)
        assert memory.num_lost[0] == 13
        bell.close()
