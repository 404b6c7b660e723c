"""Messages between the head and its agents that are dropped, doubled, delayed or cut short: what
must arrive does so once and in order, and nothing waits for longer than seconds."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import zmq

from srl.arena.arena import HeapArena
from srl.errors import RunError
from srl.launch.cluster import host_agent as agent_module
from srl.launch.cluster import protocol
from srl.launch.cluster.membership import Membership
from srl.launch.cluster.protocol import (
    BridgeAddress,
    Brief,
    Channel,
    Exited,
    FinalAccounts,
    GiveOrders,
    Heartbeat,
    KeepAlive,
    Kill,
    Leave,
    Message,
    Notice,
    Output,
    Packet,
    PeerList,
    Ready,
    Reports,
    Start,
    Started,
    Welcome,
    encode,
)
from srl.launch.cluster.remote_node import RemoteNode
from srl.net.keys import JoinKey, join_key_path, load_join_key, make_run_keys
from srl.net.peers import Peer
from srl.net.sockets import Wire
from srl.services.messages import Note
from srl.services.messages import encode as encode_report
from srl.services.worker_stats import StatsTable

KINDS = tuple(str(kind.__struct_config__.tag) for kind in get_args(Message))
FAULTS = ("drop", "double", "delay", "cut")
MOST_SECONDS = 120.0
"""How long a step is waited for, to tell a hang. It takes less than a second on a free machine,
where all is sent again after 0.05 s."""
DELAY_SECONDS = 0.1
NOTE = Note("actor/0", "info", "hello")


class Faults:
    """The man in the middle: half of all messages of one kind meet with an accident."""

    def __init__(self, kind: str, fault: str) -> None:
        self.kind, self._fault = kind, fault
        self._chance = Random(1)
        self._held: dict[object, list[tuple[float, Callable[[], None]]]] = defaultdict(list)
        self.hits = 0

    def meet(self, sender: object, packet: Packet, send: Callable[[bytes], None]) -> None:
        """Sends a packet, as it is or not. What was held up goes out with a later one of the same
        sender, whose socket is only its own."""
        now, data = time.monotonic(), encode(packet)
        for held in [one for one in self._held[sender] if one[0] <= now]:
            self._held[sender].remove(held)
            held[1]()
        is_meant = packet.message.__struct_config__.tag == self.kind
        if not is_meant or (self.hits and self._chance.random() < 0.5):
            send(data)
            return
        self.hits += 1
        match self._fault:
            case "double":
                send(data)
                send(data)
            case "delay":
                self._held[sender].append((now + DELAY_SECONDS, lambda: send(data)))
            case "cut":
                send(data[: len(data) // 2])


class ActedStay:
    """What an agent has between its welcome and its goodbye, without any process."""

    made: list[ActedStay]

    def __init__(self, welcome: Welcome, session: str, bind: str, port: int) -> None:
        self.channel = Channel(session)
        self.handled: list[Message] = []
        self._ends = socket.socketpair()
        self.made.append(self)

    def fileno(self) -> int:
        return self._ends[0].fileno()

    def handle(self, message: Message) -> None:
        # Welcomes and pulses may come twice.
        if not isinstance(message, KeepAlive | Welcome):
            self.handled.append(message)
        match message:
            case Brief():
                self.channel.post(Ready(sees_run_dir=True))
                up = BridgeAddress(address="tcp://127.0.0.1:5", public_key="k" * 40, incarnation=0)
                self.channel.post(up)
            case Start(process=process, incarnation=incarnation):
                self.channel.post(Started(process=process, incarnation=incarnation, pid=77))
            case GiveOrders():
                self.channel.post(Output(message.process, b"hello\n"))
                self.channel.post(Reports((encode_report(NOTE),)))
            case Kill(process=process, incarnation=incarnation):
                self._exited(process, incarnation, -9)
            case Leave(process=process, incarnation=incarnation):
                self._exited(process, incarnation, 0)

    def _exited(self, process: str, incarnation: int, code: int) -> None:
        exited = Exited(process=process, incarnation=incarnation, pid=77, code=code, now_ns=0)
        self.channel.post(exited)

    def turn(self) -> None:
        pass

    def beat(self, now: float) -> Heartbeat:
        return Heartbeat(now_ns=time.monotonic_ns(), conditions={"actor-0": "stopped"})

    def end(self, seconds: float = 0.0) -> None:
        self.channel.post(FinalAccounts({}))

    def close(self) -> None:
        for end in self._ends:
            end.close()


class Agent(threading.Thread):
    """An agent in a thread of its own."""

    def __init__(self, address: str, key: JoinKey, name: str) -> None:
        super().__init__(daemon=True)
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        self.agent = agent_module._Agent(
            (host, int(port)), key, name=name, bind="127.0.0.1", holds=()
        )
        self.code: int | None = None
        self.error = ""
        self.start()

    def run(self) -> None:
        try:
            self.code = self.agent.run(MOST_SECONDS)
        except RunError as error:
            self.error = str(error)
        finally:
            self.agent.close()


class Control:
    """A head, and what starts agents of it."""

    def __init__(self, folder: Path) -> None:
        self._wire = Wire()
        keys = make_run_keys(folder)
        listener = self._wire.listen("tcp://127.0.0.1:*", keys.head, {keys.join.public: "agent"})
        self._address, self._key = listener.address, load_join_key(join_key_path(folder))
        self.hosts = Membership(listener, wanted=("a",), silence_seconds=60.0, logs=folder)
        self._agents: list[Agent] = []

    def agent(self, name: str) -> Agent:
        self._agents.append(Agent(self._address, self._key, name))
        return self._agents[-1]

    def until(self, found: Callable[[], Any], what: str) -> Any:
        """Lets the head go on until something is the case."""
        end = time.monotonic() + MOST_SECONDS
        while not (result := found()):
            assert time.monotonic() < end, f"{what} did not come within {MOST_SECONDS:.0f} s"
            self.hosts.poll()
            time.sleep(0.005)
        return result

    def close(self) -> None:
        for agent in self._agents:
            agent.agent.leave(signal.SIGTERM, None)
            self.until(lambda a=agent: not a.is_alive(), "the end of an agent")
        self._wire.close()


@pytest.fixture(params=[(kind, fault) for kind in KINDS for fault in FAULTS], ids="-".join)
def faults(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Faults:
    made = Faults(*request.param)

    def write(self: Membership, identity: bytes, packet: Packet) -> None:
        def send(data: bytes) -> None:
            with suppress(zmq.ZMQError):
                self._socket.send_multipart([identity, data], zmq.NOBLOCK)

        made.meet(self, packet, send)

    def send(self: Any, packet: Packet) -> None:
        made.meet(self, packet, lambda data: self._socket.send(data, zmq.NOBLOCK))

    monkeypatch.setattr(Membership, "_write", write)
    monkeypatch.setattr(agent_module._Agent, "_send", send)
    monkeypatch.setattr(agent_module, "AgentSession", ActedStay)
    monkeypatch.setattr(agent_module, "ASK_SECONDS", 0.05)
    monkeypatch.setattr(protocol, "RESEND_SECONDS", 0.05)
    ActedStay.made = []
    return made


@pytest.fixture
def run(faults: Faults, tmp_path: Path) -> Iterator[Control]:
    made = Control(tmp_path)
    yield made
    made.close()


def test_whatever_happens_to_one_kind_of_message(
    run: Control, faults: Faults, tmp_path: Path
) -> None:
    hosts, odd, agent = run.hosts, run.agent("no name"), run.agent("a")
    place = run.until(lambda: hosts.joined and hosts.joined.popleft(), "a host")
    run.until(lambda: not odd.is_alive(), "the refusal of a name that is none")
    assert "expected a name of letters" in odd.error
    first = _stay_is_served(run, place)
    run.until(lambda: faults.hits or faults.kind != "pulse", "a pulse, when there is time for one")
    assert (tmp_path / "actor-0.log").read_bytes() == b"hello\n", "once"

    # Given up, it is told so and joins anew; then it is told to leave, and says goodbye.
    hosts._give_up(place, "a test")
    place = run.until(lambda: hosts.joined and hosts.joined.popleft(), "the host again")
    assert (place.name, place.incarnation) == ("a", 1)
    run.until(lambda: place.bridge, "its bridge")
    hosts.lost.clear()
    agent.agent.leave(signal.SIGTERM, None)
    run.until(lambda: place in hosts.lost, "a goodbye")
    assert place.gone == "was told to leave (SIGTERM)"
    run.until(lambda: not agent.is_alive(), "the end of the agent")

    other = run.agent("b")
    run.until(lambda: hosts.joined, "another host")
    assert hosts.finish(MOST_SECONDS) == []
    run.until(lambda: not other.is_alive(), "the end of the other agent")
    assert (agent.code, other.code) == (0, 0)
    kinds = [type(message) for message in first.handled]
    assert kinds == [Brief, Start, GiveOrders, PeerList, Notice, Kill, Start, Leave], (
        "once, and in order"
    )
    assert faults.hits > 0


def _stay_is_served(run: Control, place: RemoteNode) -> ActedStay:
    """All that is said to a host, and what it answers."""
    hosts = run.hosts
    worker = SimpleNamespace(name="actor/0", process="actor-0")
    plan: Any = SimpleNamespace(workers=[worker], processes={"actor-0": [worker]})
    hosts.brief(Brief(plan=b"", run_dir="", probe=""), plan, StatsTable(HeapArena(), ("actor/0",)))
    run.until(lambda: place.sees_run_dir and place.bridge, "what the host has")
    agent_session = next(
        one for one in ActedStay.made if one.channel.session == place.channel.session
    )
    place.start("actor-0", 1, ())
    place.order("actor-0", "")
    hosts.publish((Peer(host="a"),), 1)
    hosts.notify(Notice(stop=False, checkpoint=1, folder="x"))
    run.until(lambda: place.pid("actor-0") == 77 and hosts.reports, "a process")
    run.until(lambda: place.condition("actor-0") == "stopped", "a beat")
    place.kill("actor-0")
    exits = run.until(place.exits, "its end")
    place.start("actor-0", 2, ())
    place.leave("actor-0")
    exits += run.until(place.exits, "its second end")
    assert [(ended.incarnation, ended.code) for ended in exits] == [(1, -9), (2, 0)]
    assert list(hosts.reports) == [NOTE], "once"
    return agent_session
