"""Streams and weights between hosts, with real bridges, and real processes at their ends."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import numpy as np
import pytest
from bridged import Host, Hosts
from carriers import inference_spec, plain, sample_spec
from test_inference_stream import ask

from srl.arena.shm import ShmArena, WakePipe
from srl.bridge.messenger import BridgePlan, SampleRoute, WeightsRoute
from srl.data.records import Snapshot
from srl.services.parameters import ParameterReader, ParameterSpec, ParameterWriter
from srl.streams.inference import InferenceClient, InferenceSpec
from srl.streams.sample import SampleSource
from srl.streams.sample_accounting import account

WAIT_SECONDS = 120.0
"""Half a second until a request is sent again, and what this machine takes besides."""


@pytest.fixture
def closing_hosts() -> Iterator[list[Hosts]]:
    made: list[Hosts] = []
    yield made
    for hosts in made:
        hosts.close()


@pytest.mark.parametrize("delivery", ["any", "all", "key"])
def test_many_processes_at_both_ends(delivery: str) -> None:
    spec = sample_spec(slots=3, writers=("w0", "w1"), readers=("r0", "r1"), delivery=delivery)
    plan = BridgePlan(samples=(SampleRoute(spec=spec, policy=""),))
    with closing(Hosts(plan, right=("r0", "r1"), left=("w0",), other=("w1",))) as hosts:
        writers = [hosts["left"].puppet("w0"), hosts["other"].puppet("w1")]
        readers = [hosts["right"].puppet(name) for name in spec.readers]
        for index, puppet in enumerate(writers):
            puppet("open_sink", spec=plain(spec), writer=index)
        for index, puppet in enumerate(readers):
            puppet("open_source", spec=plain(spec), reader=index)
            puppet.start("read_all")
        for index, puppet in enumerate(writers):
            puppet.start("write_all", first=1000 * index, count=100)
        for puppet in writers:
            puppet.result()
        got = [puppet.result() for puppet in readers]
        wrote = [float(tag) for start in (0, 1000) for tag in range(start, start + 100)]
        match delivery:
            case "any":
                assert sorted(got[0] + got[1]) == wrote
            case "all":
                assert sorted(got[0]) == sorted(got[1]) == wrote
            case "key":
                assert got == [wrote[:100], wrote[100:]]
        accounts = account(spec, hosts["right"].arena)
        assert (accounts.produced, accounts.in_flight) == (200, 0)
        assert accounts.dropped["writer died"] == 0
        assert [host.finish() for host in hosts.hosts.values()] == [0, 0, 0]


def test_two_hosts_of_servers_share_the_work_and_one_takes_over_when_the_other_is_gone() -> None:
    spec = inference_spec(servers=("s0", "s1"), slots_per_client=6)
    plan = BridgePlan(inference=(spec,))
    with closing(Hosts(plan, first=("s0",), second=("s1",), actors=("c0",))) as hosts:
        servers = [hosts["first"].puppet("s0"), hosts["second"].puppet("s1")]
        for index, puppet in enumerate(servers):
            puppet("open_server", spec=plain(spec), server=index)
            puppet.start("serve")
        request_sender = _Asking(spec, hosts["actors"].folder)

        def served() -> list[int]:
            return [hosts[name].counters()["requests"] for name in ("first", "second")]

        # A host that dialled before the others knew its key is refused, and dials again.
        end = time.monotonic() + WAIT_SECONDS
        while not all(served()):
            assert time.monotonic() < end, f"both hosts can be reached: {served()}"
            request_sender.rounds(1)
        before = served()
        request_sender.rounds(30)
        shares = [now - then for then, now in zip(before, served(), strict=True)]
        assert min(shares) > 30, f"both hosts serve: {shares}"
        servers[1].kill()
        hosts["second"].process.kill()
        request_sender.ask(1)
        hosts.tell("second")
        request_sender.check_answers()
        request_sender.rounds(5)
        request_sender.close()
        assert servers[0].result() > 0, "the last server sees that its client has left"


@pytest.mark.parametrize("client", ["a-client", "z-client"], ids=["dials", "listens"])
def test_a_host_that_does_not_answer_is_passed_over_until_it_does(client: str) -> None:
    """The address book says nothing of a host of servers that stands still, goes on, and dies. The
    client's host dials it or listens to it, as their names want it."""
    spec = inference_spec(servers=("s0", "s1"), slots_per_client=6)
    plan = BridgePlan(inference=(spec,))
    with closing(Hosts(plan, first=("s0",), second=("s1",), **{client: ("c0",)})) as hosts:
        for index, name in enumerate(("first", "second")):
            puppet = hosts[name].puppet(f"s{index}")
            puppet("open_server", spec=plain(spec), server=index)
            puppet.start("serve")
        request_sender, second = _Asking(spec, hosts[client].folder), hosts["second"]
        request_sender.rounds(20)
        second.process.send_signal(signal.SIGSTOP)
        _check_passed_over(request_sender, hosts[client])
        second.process.send_signal(signal.SIGCONT)
        before, end = second.counters()["requests"], time.monotonic() + WAIT_SECONDS
        while second.counters()["requests"] < before + 30:
            assert time.monotonic() < end, "a host that answers again has its share again"
            request_sender.rounds(1)
        second.puppets[0].kill()
        second.process.kill()
        second.process.wait()
        _check_passed_over(request_sender, hosts[client])
        request_sender.close()


def _check_passed_over(request_sender: _Asking, host: Host) -> None:
    """What lies with the silent host is answered by another, and what is new is sent to the other:
    else half of the 120 requests would be sent again."""
    before = host.counters()["resent"]
    request_sender.rounds(20)
    assert host.counters()["resent"] - before < 40


class _Asking:
    """A client with six slots."""

    def __init__(self, spec: InferenceSpec, folder: Path) -> None:
        self._arena, self._wake_pipe = ShmArena(folder, "c0", bridged=True), WakePipe(folder, "c0")
        self._client = InferenceClient(spec, self._arena, 0)

    def rounds(self, count: int) -> None:
        """Asks with all slots and checks what is answered."""
        for number in range(count):
            self.ask(number)
            self.check_answers()

    def ask(self, number: int) -> None:
        for slot in range(6):
            ask(self._client, slot, [number, slot, 7])

    def check_answers(self) -> None:
        left = set(range(6))
        while left:
            assert self._wake_pipe.wait(WAIT_SECONDS), "never answered"
            for slot in self._client.poll():
                reply = self._client.take(slot)
                asked = self._client.request(slot).obs["a"][:3, 0]
                assert (reply.extras["value"][:3] == asked).all()
                assert (reply.action[:3] == asked.astype(np.int64) % 5).all()
                left.remove(slot)

    def close(self) -> None:
        self._client.close()
        self._wake_pipe.close()
        self._arena.close()


def test_weights_go_once_to_each_host_however_many_read_them_there() -> None:
    """8 MB to 12 readers on three hosts."""
    names = tuple(f"p{i}" for i in range(12))
    spec = ParameterSpec(policy="p", shapes={"w": ((2_000_000,), "float32")}, readers=names)
    plan = BridgePlan(weights=(WeightsRoute(spec=spec, trainers=("trainer",)),))
    placed = {f"h{i}": names[4 * i : 4 * i + 4] for i in range(3)}
    with closing(Hosts(plan, home=("trainer",), **placed)) as hosts:
        writer = ParameterWriter(spec, hosts["home"].arena)
        wake_pipes = [WakePipe(hosts[f"h{i}"].folder, names[4 * i]) for i in range(3)]
        for version in range(3):
            weights = {"w": np.full(2_000_000, version, np.float32)}
            writer.publish(Snapshot(version, weights))
            for index, wake_pipe in enumerate(wake_pipes):
                reader = ParameterReader(spec, hosts[f"h{index}"].arena)
                while reader.version < version:
                    assert wake_pipe.wait(WAIT_SECONDS), "never woken"
                assert (reader.snapshot().weights["w"] == version).all()
        sent = hosts["home"].counters()["sent_bytes"]
        assert sent < 3 * 3 * 8_000_000 * 1.05, "once for each host and version"
        for wake_pipe in wake_pipes:
            wake_pipe.close()


def test_a_host_that_joins_late_has_the_newest_weights_at_once() -> None:
    spec = ParameterSpec(policy="p", shapes={"w": ((100,), "float32")}, readers=("a", "b"))
    plan = BridgePlan(weights=(WeightsRoute(spec=spec, trainers=("trainer",)),))
    with closing(Hosts(plan, home=("trainer",), early=("a",), late=("b",))) as hosts:
        hosts.tell("late")
        writer = ParameterWriter(spec, hosts["home"].arena)
        writer.publish(Snapshot(7, {"w": np.full(100, 7, np.float32)}))
        wake_pipe = WakePipe(hosts["late"].folder, "b")
        reader = ParameterReader(spec, hosts["late"].arena)
        hosts.tell()
        while reader.version < 7:
            assert wake_pipe.wait(WAIT_SECONDS)
        wake_pipe.close()


def test_a_bridge_that_is_replaced_costs_only_what_was_under_way() -> None:
    spec = sample_spec(slots=4)
    plan = BridgePlan(samples=(SampleRoute(spec=spec, policy=""),))
    with closing(Hosts(plan, right=("r0",), left=("w0",))) as hosts:
        source = SampleSource(spec, hosts["right"].arena, 0)
        writer = hosts["left"].puppet("w0")
        writer("open_sink", spec=plain(spec), writer=0)
        wake_pipe = WakePipe(hosts["right"].folder, "r0")

        def take() -> float:
            while (item := source.take()) is None:
                assert wake_pipe.wait(WAIT_SECONDS), "never woken"
            tag = float(item.trajectory.reward[0, 0])
            item.release()
            source.acknowledge(1)
            return tag

        writer("write", tag=1.0)
        assert take() == 1.0
        for name in ("left", "right"):
            writer("claim_soon")
            writer("fill", tag=2.0)
            host = hosts[name]
            host.process.kill()
            host.process.wait()
            host.incarnation += 1
            host.start()
            hosts.tell()
            writer("commit")
            writer("write", tag=3.0)
            assert take() == 3.0, "the fragment that was being written then is lost, no other"
        accounts = account(spec, hosts["right"].arena)
        assert (accounts.produced, accounts.consumed, accounts.in_flight) == (3, 3, 0)
        assert accounts.dropped["writer died"] == 2
        wake_pipe.close()


def test_a_bridge_ends_when_its_parent_does() -> None:
    with closing(Hosts(BridgePlan(), only=())) as hosts:
        assert hosts["only"].finish() == 0


def test_specs_that_differ_are_refused_and_said(capfd: pytest.CaptureFixture[str]) -> None:
    spec = ParameterSpec(policy="p", shapes={"w": ((4,), "float32")}, readers=("a",))
    plan = BridgePlan(weights=(WeightsRoute(spec=spec, trainers=("t",)),))
    other = msgspec.structs.replace(spec, shapes={"w": ((5,), "float32")})
    with closing(Hosts(plan, home=("t",))) as hosts:
        stranger = Host(
            "z", BridgePlan(weights=(WeightsRoute(spec=other, trainers=("t",)),)), ("a",), False
        )
        hosts.hosts["z"] = stranger
        hosts.tell()
        writer = ParameterWriter(spec, hosts["home"].arena)
        writer.publish(Snapshot(1, {"w": np.zeros(4, np.float32)}))
        while not hosts["home"].counters()["rejected"]:
            assert hosts["home"].process.poll() is None
            hosts["home"].wake_pipe.wait(0.05)
        assert ParameterReader(other, stranger.arena).version == -1
    assert "refused: expected the streams and messages of this run's plan" in capfd.readouterr().err
