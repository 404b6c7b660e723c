"""The host of a stream's readers is lost: another one owns the stream, and versions go on above."""

from __future__ import annotations

import time
from contextlib import closing

import numpy as np
from bridged import Hosts
from carriers import Puppet, plain, sample_spec

from srl.arena.shm import WakePipe, bump_placement, make_wake_pipe
from srl.bridge.counters import BridgeCounters
from srl.bridge.messenger import BridgePlan, SampleRoute, WeightsRoute
from srl.data.records import Snapshot
from srl.services.parameters import ParameterReader, ParameterSpec, ParameterWriter
from srl.streams.admission import open_queue
from srl.streams.sample import SampleSource, propagate_version
from srl.streams.sample_accounting import account, close_account, sum_accounts

WAIT_SECONDS = 120.0
WEIGHTS = ParameterSpec(policy="p", shapes={"w": ((8,), "float32")}, readers=("w0",))
SPEC = sample_spec(slots=4, writers=("w0", "w1"))
PLAN = BridgePlan(
    samples=(SampleRoute(spec=SPEC, policy=""),),
    weights=(WeightsRoute(spec=WEIGHTS, trainers=("r0",)),),
)


class Taking:
    """A reader on a host."""

    def __init__(self, hosts: Hosts, name: str) -> None:
        self.source = SampleSource(SPEC, hosts[name].arena, 0)
        self._wake_pipe = WakePipe(hosts[name].folder, "r0")

    def take(self) -> float:
        """The next item, once it has come."""
        while (item := self.source.take()) is None:
            assert self._wake_pipe.wait(WAIT_SECONDS), "never woken"
        tag = float(item.trajectory.reward[0, 0])
        item.release()
        return tag

    def close(self) -> None:
        self._wake_pipe.close()


def lose(hosts: Hosts, lost: str, heir: str) -> None:
    """Kills a host's bridge, and lets the reader go on elsewhere."""
    hosts[lost].process.kill()
    hosts[lost].process.wait()
    make_wake_pipe(hosts[heir].folder, "r0")
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
        last = account(SPEC, hosts["gpu"].arena)

        lose(hosts, "gpu", "home")

        second = Taking(hosts, "home")
        far("commit")
        far("write", tag=5.0)
        at_home("commit")
        at_home("write", tag=6.0)
        # What was begun at the new owner's is used; what was begun elsewhere has no slot there.
        assert {second.take() for _ in range(3)} == {3.0, 5.0, 6.0}
        second.source.acknowledge(3)
        here = [account(SPEC, hosts[name].arena) for name in ("home", "far")]
        accounts = sum_accounts([close_account(last), *here])
        assert (accounts.produced, accounts.consumed, accounts.in_flight) == (6, 4, 0)
        assert accounts.dropped["host lost"] == 2, "one in the lost reader's hands, one on its way"
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
        wake_pipe = WakePipe(hosts["far"].folder, "w0")
        while far.version < 7:
            assert wake_pipe.wait(WAIT_SECONDS)
        assert (home.version, home.newest_remote_version) == (-1, -1)

        lose(hosts, "gpu", "home")

        trainer = WakePipe(hosts["home"].folder, "r0")
        while home.newest_remote_version < 7:
            assert trainer.wait(WAIT_SECONDS), "never woken"
        # Older ones are not taken; the next one is.
        again = ParameterWriter(WEIGHTS, hosts["home"].arena)
        for version in (5, 8):
            again.publish(Snapshot(version, {"w": np.full(8, version, np.float32)}))
            hosts["home"].arena.wake("bridge")
        while far.version == 7:
            assert wake_pipe.wait(WAIT_SECONDS), "never woken"
        assert far.version == 8
        wake_pipe.close()
        trainer.close()


def test_a_trainer_elsewhere_has_streams_on_the_way_to_its_own_count_anew() -> None:
    """Fragments that were lost with it are replaced; those who wait for newer weights must not wait
    for versions that will never come of what is lost."""
    up = sample_spec(name="up", writers=("w0",), readers=("mid",), slots=4, max_policy_age=0)
    down = sample_spec(name="down", writers=("mid",), readers=("r0",), slots=4)
    plan = BridgePlan(
        samples=(SampleRoute(spec=up, policy="p"), SampleRoute(spec=down, policy="p")),
        weights=(WeightsRoute(spec=WEIGHTS, trainers=("r0",)),),
    )
    with closing(Hosts(plan, home=("mid",), gpu=("r0",), far=("w0",))) as hosts:
        admission = open_queue(up, hosts["home"].arena)
        gpu, wake_pipe = (
            SampleSource(down, hosts["gpu"].arena, 0),
            WakePipe(hosts["home"].folder, "mid"),
        )
        while not gpu.here:
            wake_pipe.wait(0.02)
        # No weights come to the owner; it grants slots all the same, and writers wait for theirs.
        writer = hosts["far"].puppet("w0")
        writer("open_sink", spec=plain(up), writer=0)
        writer("claim_soon")
        admission.queue.next_ticket[0] = admission.first_unacknowledged[0] = 12

        propagate_version(down, [up], hosts["gpu"].arena, version=9)

        deadline = time.monotonic() + WAIT_SECONDS
        while admission.base_version[0] != 9:
            assert time.monotonic() < deadline, "never heard"
            wake_pipe.wait(0.02)
        assert admission.first_ticket[0] == 12
        # Said once a second, done once.
        admission.first_ticket[0] = 13
        received = hosts["home"].counters()["received_messages"]
        while hosts["home"].counters()["received_messages"] < received + 3:
            wake_pipe.wait(0.05)
        assert admission.first_ticket[0] == 13
        # A bridge that takes another's place is told once more of what that one has done.
        home = hosts["home"]
        home.process.kill()
        home.process.wait()
        BridgeCounters(home.arena).set("received_messages", 0)
        home.incarnation += 1
        home.start()
        hosts.tell()
        while home.counters()["received_messages"] < 6:
            wake_pipe.wait(0.05)
        assert admission.first_ticket[0] == 13
        wake_pipe.close()
