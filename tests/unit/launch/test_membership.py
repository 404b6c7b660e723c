"""Who joins, who is refused, who is given up: the head's side of the control socket."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
import zmq

from srl.arena.arena import HeapArena
from srl.bridge.counters import REPORTED
from srl.launch.cluster import membership as hosts_module
from srl.launch.cluster.membership import Membership
from srl.launch.cluster.protocol import (
    PROTOCOL,
    BridgeAddress,
    Brief,
    Channel,
    Exited,
    Heartbeat,
    JoinRequest,
    Message,
    Output,
    Packet,
    PeerList,
    Refusal,
    Reports,
    Start,
    Started,
    StatsRow,
    Unknown,
    Welcome,
    decode,
    encode,
)
from srl.net.keys import KeyPair, make_run_keys, new_pair
from srl.net.peers import Peer, Peers
from srl.net.sockets import Wire
from srl.services.messages import Note
from srl.services.messages import encode as encode_report
from srl.services.worker_stats import StatsTable

LIMIT_SECONDS = 120.0


class FakeAgent:
    """The other side of the socket, which says what a test wants it to say."""

    def __init__(self, wire: Wire, address: str, keys: KeyPair, head_key: str) -> None:
        self.socket = wire.dial(address, keys, head_key)
        self.channel = Channel("")

    def ask(self, name: str = "a", token: str = "t", version: str = PROTOCOL) -> None:
        join = JoinRequest(
            token=token, name=name, machine="m", pid=1, cores=2, address="127.0.0.1",
            version=version,
        )  # fmt: skip
        self.send(Packet("", 0, 0, join))

    def send(self, packet: Packet) -> None:
        # A socket whose key was refused has nowhere to send to, and would wait for ever.
        with suppress(zmq.Again):
            self.socket.send(encode(packet), zmq.NOBLOCK)

    def say(self, message: Message) -> None:
        self.channel.post(message)
        for packet in self.channel.packets(time.monotonic()):
            self.send(packet)

    def hear(self, kind: type, hosts: Membership) -> Message:
        """The next message of a kind."""
        deadline = time.monotonic() + LIMIT_SECONDS
        while time.monotonic() < deadline:
            hosts.poll()
            if not self.socket.poll(20):
                continue
            packet = decode(self.socket.recv(zmq.NOBLOCK))
            if isinstance(packet.message, Welcome):
                self.channel = Channel(packet.session)
                message: Message | None = packet.message
            else:
                message = self.channel.receive(packet)
            if isinstance(message, kind):
                return message
        pytest.fail(f"no {kind.__name__} came")

    def enter(self, hosts: Membership, name: str = "a", token: str = "t") -> Welcome:
        self.ask(name, token)
        welcome = self.hear(Welcome, hosts)
        assert isinstance(welcome, Welcome)
        return welcome


@pytest.fixture
def wire() -> Iterator[Wire]:
    made = Wire()
    yield made
    made.close()


@pytest.fixture
def control(
    tmp_path: Path, wire: Wire
) -> tuple[Callable[..., Membership], Callable[..., FakeAgent]]:
    """Makes the head's hosts, and agents that talk to them."""
    keys = make_run_keys(tmp_path)
    listener = wire.listen("tcp://127.0.0.1:*", keys.head, {keys.join.public: "agent"})
    (tmp_path / "logs").mkdir()

    def head(wanted: tuple[str, ...] = ("a", "b"), silence: float = 30.0) -> Membership:
        logs = tmp_path / "logs"
        return Membership(listener, wanted=wanted, silence_seconds=silence, logs=logs)

    def agent(pair: KeyPair = keys.join) -> FakeAgent:
        return FakeAgent(wire, listener.address, pair, keys.head.public)

    return head, agent


def until(hosts: Membership, condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)
        hosts.poll()


def test_what_cannot_be_logged_is_lost_and_nothing_else(control, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    head, agent = control
    hosts, one = head(), agent()
    one.enter(hosts)
    node = hosts.joined.popleft()
    (tmp_path / "logs").rmdir()
    node.start("actor-0", 1, ())
    one.say(Started(process="actor-0", incarnation=1, pid=77))
    one.say(Output("actor-0", b"hello\n"))
    one.say(Exited(process="actor-0", incarnation=1, pid=77, code=0, now_ns=0))
    until(hosts, lambda: not node.is_alive("actor-0"))
    assert [ended.code for ended in node.exits()] == [0]


def test_a_host_joins_works_and_tells(control, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    head, agent = control
    hosts, one = head(), agent()
    assert one.enter(hosts).name == "a"
    node = hosts.joined.popleft()
    assert hosts.missing() == ["b"]

    node.start("actor-0", 3, ("srl.workers.actor",))
    order = one.hear(Start, hosts)
    assert (order.process, order.incarnation) == ("actor-0", 3)
    one.say(Started(process="actor-0", incarnation=3, pid=77))
    one.say(Output("actor-0", b"hello\n"))
    note = Note("actor/0", "info", "x")
    one.say(Reports((encode_report(note), b"x")))
    one.say(BridgeAddress(address="tcp://1.2.3.4:5", public_key="k" * 40, incarnation=0))
    one.send(one.channel.state(Heartbeat(now_ns=0, bridge={"resent": 7, "odd": 1})))
    # Of an earlier life: it counts no more.
    one.say(Exited(process="actor-0", incarnation=2, pid=70, code=-9, now_ns=0))
    one.say(Exited(process="actor-0", incarnation=3, pid=77, code=-9, now_ns=0))
    until(hosts, lambda: not node.is_alive("actor-0"))
    assert [(e.incarnation, e.pid, e.how) for e in node.exits()] == [
        (3, 77, "was killed (SIGKILL)")
    ]
    assert node.traffic == {**dict.fromkeys(REPORTED, 0), "resent": 7}
    assert list(hosts.reports) == [note]
    assert hosts.refused == 1, "what is no report is counted"
    assert (tmp_path / "logs" / "actor-0.log").read_text() == "hello\n"
    assert node.peer(("actor-0",)).address == "tcp://1.2.3.4:5"


def test_agents_without_a_name_get_that_of_a_missing_host(control) -> None:  # type: ignore[no-untyped-def]
    head, agent = control
    hosts = head()
    names = [agent().enter(hosts, name="", token=str(i)).name for i in range(3)]
    assert names == ["a", "b", "host-1"]


def test_another_version_a_bad_name_and_a_taken_name_are_refused(control) -> None:  # type: ignore[no-untyped-def]
    head, agent = control
    hosts, one, two = head(), agent(), agent()
    two.ask(version="0.0")
    refusal = two.hear(Refusal, hosts)
    assert refusal.final
    assert "got 0.0" in refusal.reason
    two.ask(name="../../etc")
    assert two.hear(Refusal, hosts).final

    one.enter(hosts)
    two.ask(token="another")
    refusal = two.hear(Refusal, hosts)
    assert not refusal.final
    assert "'a' has joined already" in refusal.reason
    # Who asks twice, because the answer was lost, is the same host still.
    one.ask()
    assert one.hear(Welcome, hosts).incarnation == 0
    assert len(hosts.joined) == 1


def test_a_silent_host_is_given_up_told_so_and_comes_again(control) -> None:  # type: ignore[no-untyped-def]
    head, agent = control
    hosts, one = head(silence=0.3), agent()
    one.enter(hosts)
    node = hosts.joined.popleft()
    node.start("actor-0", 0, ())
    until(hosts, lambda: hosts.lost)
    assert hosts.lost.popleft() is node
    assert "silent for" in node.gone
    assert list(node.processes) == ["actor-0"]

    one.send(one.channel.state(Heartbeat(now_ns=0)))
    one.hear(Unknown, hosts)
    assert one.enter(hosts, token="again").incarnation == 1


def test_a_host_whose_agent_ended_is_given_up_long_before_a_silent_one(control, wire) -> None:  # type: ignore[no-untyped-def]
    head, agent = control
    hosts, one, two = head(silence=1e9), agent(), agent()
    one.enter(hosts)
    two.enter(hosts, name="b", token="b")
    first = hosts.joined.popleft()

    # The system closes the connections of a process that ends.
    wire.hang_up(one.socket)

    until(hosts, lambda: hosts.lost)
    assert hosts.lost.popleft() is first
    assert "has ended" in first.gone
    assert list(hosts.nodes) == ["b"], "who is only silent stays"


def test_who_comes_in_place_of_an_agent_that_ended_need_not_wait(control, wire) -> None:  # type: ignore[no-untyped-def]
    head, agent = control
    hosts, one = head(silence=1e9), agent()
    one.enter(hosts)
    first = hosts.joined.popleft()
    wire.hang_up(one.socket)
    until(hosts, lambda: first.closed is not None or hosts.lost)

    assert agent().enter(hosts, token="another").incarnation == 1
    assert list(hosts.nodes.values()) != [first]


def test_an_agent_that_connects_anew_stays(control, wire) -> None:  # type: ignore[no-untyped-def]
    head, agent = control
    hosts, one, two = head(silence=1e9), agent(), agent()
    one.enter(hosts)
    node = hosts.joined.popleft()
    wire.hang_up(one.socket)
    until(hosts, lambda: node.closed is not None)
    two.channel = one.channel
    two.send(two.channel.state(Heartbeat(now_ns=0)))
    until(hosts, lambda: node.closed is None)
    assert hosts.nodes == {"a": node}


def test_garbage_costs_nothing_and_strangers_are_not_heard(control) -> None:  # type: ignore[no-untyped-def]
    head, agent = control
    hosts, one, stranger = head(), agent(), agent(new_pair())
    one.enter(hosts)
    stranger.ask(name="b", token="stranger")
    for data in (b"", b"\x00" * 100, encode(Packet("", 0, 0, Heartbeat(now_ns=0)))[:-3]):
        one.socket.send(data)
    until(hosts, lambda: hosts.refused == 3)
    one.socket.send_multipart([b"too", b"many"])
    until(hosts, lambda: hosts.refused == 4)
    assert list(hosts.nodes) == ["a"]


def test_of_the_address_book_hosts_get_what_has_changed_and_late_ones_all(control) -> None:  # type: ignore[no-untyped-def]
    head, agent = control
    hosts, one, two = head(), agent(), agent()
    one.enter(hosts)
    assert hosts.book_changed
    first = (Peer(host="home", processes=("trainer-0",)), Peer(host="a", processes=("actor-0",)))
    hosts.publish(first, epoch=1)
    assert not hosts.book_changed
    told = one.hear(PeerList, hosts)
    book = told.after(Peers(own="a"))
    assert book == Peers(own="a", epoch=1, peers=first)

    two.enter(hosts, name="b", token="b")
    assert hosts.book_changed
    moved = Peer(host="a", address="tcp://1.2.3.4:5", processes=("actor-0",))
    second = (first[0], moved, Peer(host="b", processes=("actor-1",)))
    hosts.publish(second, epoch=2)
    told = one.hear(PeerList, hosts)
    assert [peer.host for peer in told.peers] == ["a", "b"]
    book = told.after(book)
    assert book == Peers(own="a", epoch=2, peers=second)
    assert two.hear(PeerList, hosts).after(Peers(own="b")).peers == second

    # Who is in it no more is not named, and the order is the head's.
    third = (second[2], second[0])
    hosts.publish(third, epoch=3)
    told = one.hear(PeerList, hosts)
    assert told.peers == ()
    assert told.after(book).peers == third


class Crew:
    """One host with one worker that has counted."""

    def __init__(self, hosts: Membership, agent: FakeAgent) -> None:
        self.stats_table = StatsTable(HeapArena(), ("actor/0",))
        self.there = StatsTable(HeapArena(), ("actor/0",)).rows["actor/0"]
        worker = SimpleNamespace(name="actor/0", process="actor-0")
        plan = SimpleNamespace(workers=(worker,), processes={"actor-0": [worker]})
        agent.enter(hosts)
        self.node = hosts.joined.popleft()
        hosts.brief(Brief(plan=b"", run_dir="", probe=""), plan, self.stats_table)  # type: ignore[arg-type]
        self.node.start("actor-0", 0, ())

    @property
    def counted(self) -> int:
        return self.stats_table.rows["actor/0"].get("count_env_steps")

    def beat(self, steps: int) -> Heartbeat:
        self.there.set("count_env_steps", steps)
        return Heartbeat(
            now_ns=time.monotonic_ns(), rows=(StatsRow("actor/0", 0, self.there.dump()),)
        )


def test_what_a_worker_had_counted_at_its_end_is_known_without_a_beat(control) -> None:  # type: ignore[no-untyped-def]
    head, agent = control
    hosts, one = head(), agent()
    crew = Crew(hosts, one)
    one.send(one.channel.state(crew.beat(1)))
    last = crew.beat(5)
    ended = Exited(
        process="actor-0", incarnation=0, pid=7, code=0, now_ns=last.now_ns, rows=last.rows
    )
    one.say(ended)
    until(hosts, lambda: not crew.node.is_alive("actor-0"))
    assert crew.counted == 5


def test_what_a_worker_had_counted_before_its_end_is_known(control) -> None:  # type: ignore[no-untyped-def]
    head, agent = control
    hosts, one = head(), agent()
    crew = Crew(hosts, one)
    for steps in (1, 2, 3):
        one.send(one.channel.state(crew.beat(steps)))
    one.say(Exited(process="actor-0", incarnation=0, pid=7, code=-9, now_ns=0))
    # Of a process that is gone: it changes nothing.
    one.send(one.channel.state(crew.beat(4)))
    one.say(Reports((encode_report(Note("w", "info", "the end")),)))
    until(hosts, lambda: hosts.reports)
    assert not crew.node.is_alive("actor-0")
    assert crew.counted == 3


def test_a_head_that_is_told_more_than_it_can_take_still_speaks(  # type: ignore[no-untyped-def]
    control, monkeypatch: pytest.MonkeyPatch
) -> None:
    head, agent = control
    hosts, one = head(), agent()
    crew = Crew(hosts, one)
    monkeypatch.setattr(hosts_module, "HEAR_SECONDS", -1.0)
    for steps in range(1, 21):
        one.send(one.channel.state(crew.beat(steps)))
    until(hosts, lambda: crew.counted)
    assert hosts.is_behind
    assert crew.counted < 20, "it listened until there was silence"
    one.hear(Start, hosts)
    until(hosts, lambda: not hosts.is_behind)
    assert crew.counted == 20
