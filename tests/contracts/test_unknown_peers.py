"""Unknown peers at a bridge, and known ones with odd messages: refused, counted, no loss."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import msgspec
import numpy as np
import pytest
import zmq
from carriers import claim, inference_spec, sample_spec, tag_of, write
from hosts import TcpCarrier
from test_inference_stream import answer, ask, check_reply

from srl.bridge.messages import (
    Fragment,
    PresenceReport,
    ReplyBatch,
    RequestBatch,
    SlotGrant,
    SlotRequest,
    SlotReturned,
    WeightsChunk,
)
from srl.data.spec import AgentSpec, ArraySpec, Discrete
from srl.data.trajectory import TrajectorySpec
from srl.net import authenticator
from srl.net.keys import new_pair
from srl.streams.inference import InferenceClient, InferenceServer
from srl.streams.sample import SampleSink, SampleSource
from srl.streams.sample_accounting import account
from srl.streams.sample_queue import FragmentInfo


class Run:
    """A client, a server, a writer and a reader on two hosts."""

    def __init__(self, carrier: TcpCarrier) -> None:
        self.carrier = carrier
        self.samples, self.requests = sample_spec(), inference_spec()
        carrier.create(self.samples, self.requests)
        self.sink = SampleSink(self.samples, carrier.open("w0"), 0)
        self.source = SampleSource(self.samples, carrier.open("r0"), 0)
        self.client = InferenceClient(self.requests, carrier.open("c0"), 0)
        self.server = InferenceServer(self.requests, carrier.open("s0"), 0)
        self.left, self.right = carrier.sides["left"], carrier.sides["right"]
        self.tag = 0.0

    def works(self) -> None:
        """A request and a fragment go through, exactly."""
        self.tag += 1
        ask(self.client, 0, [int(self.tag), 3])
        assert answer(self.server, self.server.poll()) == [int(self.tag), 3]
        check_reply(self.client, 0, [int(self.tag), 3])
        slot = claim(self.sink)
        assert slot is not None
        write(slot, self.tag)
        item = self.source.take()
        assert item is not None
        assert tag_of(item.trajectory) == self.tag
        item.release()
        self.source.acknowledge(1)
        accounts = account(self.samples, self.carrier.open("controller"))
        assert accounts.produced == accounts.consumed == int(self.tag)
        assert sum(accounts.dropped.values()) == 0


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    monkeypatch.setattr(authenticator, "LOG_SECONDS", 0.0)
    carrier = TcpCarrier()
    yield Run(carrier)
    carrier.close()


def test_strangers_cost_the_run_nothing(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    run.works()
    address = run.right.links.address
    port = int(address.rpartition(":")[2])
    context = zmq.Context()
    keyless, wrong = context.socket(zmq.DEALER), context.socket(zmq.DEALER)
    pair = new_pair()
    wrong.curve_publickey, wrong.curve_secretkey = pair.public.encode(), pair.secret.encode()
    wrong.curve_serverkey = run.right.links.keys.public.encode()
    for stranger in (keyless, wrong):
        stranger.linger = 0
        stranger.connect(address)
        stranger.send(b"hello")
    raw = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
    for number, connection in enumerate(raw):
        connection.sendall(bytes([number]) * 1000)
        run.works()
    for connection in raw:
        connection.close()
    while run.right.links.refused < 20:
        run.right.bridge.wait(run.right.wake_pipe, 0.01)
    run.works()
    run.right.bridge.wait(run.right.wake_pipe, 0.0)
    assert run.right.bridge.counters.get("refused") >= 20
    assert run.right.bridge.counters.get("rejected") == 0
    assert "refused a connection" in caplog.text
    for stranger in (keyless, wrong):
        stranger.close()
    context.term()


ODD = {
    "a slot that is not": RequestBatch(0, [99], [1], [1]),
    "a stream that is not": RequestBatch(7, [0], [1], [1]),
    "rows that are not": RequestBatch(0, [0], [100], [1]),
    "the same slot twice": RequestBatch(0, [0, 0], [1, 1], [1, 2]),
    "a body that is not": RequestBatch(0, [0], [3], [1 << 40]),
    "a reply that nobody waits for": ReplyBatch(0, [0], [3], [9], [1]),
    "a fragment of no grant": Fragment(0, 12345, FragmentInfo(5, 1), True),
    "a return of no grant": SlotReturned(0, 12345, True),
    "a writer that is not": SlotRequest(0, [44]),
    "a grant from one who owns nothing": SlotGrant(0, 0, 1, 99),
    "weights from one who trains nothing": WeightsChunk(0, 50, 0),
    "the state of somebody else's reader": PresenceReport({}, {}, {0: {0: 2}}, {}, {}),
    "the state of a stream that is not": PresenceReport({9: {0: 2}}, {}, {}, {}, {}),
}


@pytest.mark.parametrize("said", ODD.values(), ids=ODD.keys())
def test_what_a_friend_should_not_say_changes_nothing(run: Run, said: object) -> None:
    run.works()
    counters = run.right.bridge.counters
    before = counters.get("rejected") + counters.get("stale")
    frames = run.left.bridge.messenger._framing.encode(said)  # type: ignore[arg-type]
    assert run.left.links.send("right", frames)
    run.carrier.pump()
    assert counters.get("rejected") + counters.get("stale") > before
    run.works()


def test_a_friends_messages_played_again_change_nothing(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything that left said in a whole round, once more, in order and backwards."""
    said: list[list[bytes]] = []
    links = run.left.links
    send = links.send

    def record(host: str, frames: list[bytes]) -> bool:
        said.append([bytes(frame) for frame in frames])
        return send(host, frames)

    monkeypatch.setattr(links, "send", record)
    run.works()
    monkeypatch.setattr(links, "send", send)
    kinds = {msgspec.msgpack.decode(frames[0])[0][0] for frames in said}
    assert {"RequestBatch", "SlotRequest", "Fragment", "GrantAccepted"} <= kinds
    for frames in (*said, *reversed(said)):
        assert send("right", frames)
    run.carrier.pump()
    assert run.server.poll() == []
    assert run.source.take() is None
    run.works()
    assert run.right.bridge.counters.get("stale") > 4


def test_a_bridge_hears_only_hosts_of_the_address_book(run: Run) -> None:
    run.works()
    book = run.right.bridge.messenger.peers
    run.right.bridge.follow(msgspec.structs.replace(book, peers=(book.me,)))
    with run.carrier.at_rest():
        ask(run.client, 1, [1])
        before = run.right.links.received_messages
        for _ in range(10):
            run.left.bridge.turn()
            run.right.bridge.wait(run.right.wake_pipe, 0.01)
            run.right.bridge.turn()
        assert run.right.links.received_messages == before
        assert run.server.poll() == [], "it has left the book, so nothing of it is heard"
    run.left.incarnation += 1
    run.carrier.tell()
    run.carrier.pump()
    run.carrier.advance(5.0)
    run.carrier.pump()
    assert run.server.poll() == [1], "and is heard again when it is back"
    answer(run.server, [1])
    check_reply(run.client, 1, [1])


def test_pixels_are_packed_where_both_hosts_want_it() -> None:
    sent = []
    for packs in (False, True):
        carrier = TcpCarrier(packs=packs)
        try:
            pixels = AgentSpec(obs=ArraySpec(shape=(64, 64), dtype="uint8"), action=Discrete(2))
            trajectory = TrajectorySpec(length=8, rows=2, envs=2, agent=pixels)
            spec = sample_spec(record=trajectory)
            carrier.create(spec)
            sink = SampleSink(spec, carrier.open("w0"), 0)
            source = SampleSource(spec, carrier.open("r0"), 0)
            slot = claim(sink)
            assert slot is not None
            slot.trajectory.acted.fill(False)
            slot.trajectory.obs[...] = np.arange(64, dtype=np.uint8)
            slot.commit(FragmentInfo(5, 1))
            item = source.take()
            assert item is not None
            assert item.info.length == 5
            assert (item.trajectory.obs[:5] == np.arange(64)).all()
            sent.append(carrier.sides["left"].links.sent_bytes)
        finally:
            carrier.close()
    assert sent[1] < sent[0] / 5
