"""Sockets between hosts: only known keys get in, everything else costs nothing."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import psutil
import pytest
import zmq

from srl.errors import NetError
from srl.net import authenticator
from srl.net.keys import KeyPair, new_pair
from srl.net.limits import Limits
from srl.net.receiver import Socket, is_readable
from srl.net.sockets import LOOPBACK, Listener, Wire

WAIT_SECONDS = 120.0
GREETING = b"\xff" + b"\0" * 7 + b"\x01\x7f\x03\x01" + b"CURVE".ljust(20, b"\0") + b"\0" * 32
LIMITS = Limits(frame_bytes=100_000, frames=50, message_bytes=400_000)
HUGE_COMMAND = b"\x06" + (1 << 60).to_bytes(8, "big")


class Scene:
    """A listener, one who may talk to it, and its address for those who may not."""

    def __init__(self) -> None:
        self.wire, self.far = Wire(), Wire()
        self.server, self.client = new_pair(), new_pair()
        self.listener: Listener = self.wire.listen(
            LOOPBACK, self.server, {self.client.public: "friend"}, limits=LIMITS
        )
        self.friend = self.dial(self.client, self.server.public)
        self.port = int(self.listener.address.rpartition(":")[2])

    def dial(self, keys: KeyPair, server_key: str) -> Socket:
        return self.far.dial(self.listener.address, keys, server_key)

    def raw(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=WAIT_SECONDS)

    def talk(self) -> None:
        """The friend is heard, and hears the answer."""
        text = os.urandom(20)
        self.friend.send_multipart([b"hello", text])
        route, *frames = self.receive(self.listener.socket)
        assert [frame.bytes for frame in frames] == [b"hello", text]
        assert self.listener.name_of(frames[0]) == "friend"
        self.listener.socket.send_multipart([route.bytes, b"answer", text])
        assert [frame.bytes for frame in self.receive(self.friend)] == [b"answer", text]

    def receive(self, end: Socket) -> list[zmq.Frame]:
        assert end.poll(int(WAIT_SECONDS * 1000)), "nothing comes"
        return end.recv_multipart(copy=False)

    def refused(self, count: int) -> None:
        """Waits until so many were turned away."""
        wait_for(lambda: self.listener.refused >= count)
        assert not is_readable(self.listener.socket), "and nothing of theirs is ever seen"

    def close(self) -> None:
        self.far.close()
        self.wire.close()


def wait_for(found: Callable[[], bool]) -> None:
    """The authenticator counts, and then logs, in a thread of its own, which wakes nobody."""
    end = time.monotonic() + WAIT_SECONDS
    while not found():
        assert time.monotonic() < end, "never"
        threading.Event().wait(0.01)


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    monkeypatch.setattr(authenticator, "LOG_SECONDS", 0.0)
    made = Scene()
    yield made
    made.close()


def test_friends_are_heard_by_name(scene: Scene) -> None:
    for _ in range(3):
        scene.talk()
    assert scene.listener.refused == 0
    assert scene.listener.address.startswith("tcp://127.0.0.1:"), "loopback unless told more"


def test_a_stranger_without_a_key(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    scene.talk()
    context = zmq.Context()
    plain = context.socket(zmq.DEALER)
    plain.linger = 0
    plain.connect(scene.listener.address)
    plain.send(b"let me in")
    scene.refused(1)
    wait_for(lambda: "refused a connection" in caplog.text)
    assert scene.listener.address in caplog.text
    plain.close()
    context.term()
    scene.talk()


@pytest.mark.parametrize("wrong", ["own", "server"])
def test_a_stranger_with_a_wrong_key(
    scene: Scene, wrong: str, caplog: pytest.LogCaptureFixture
) -> None:
    scene.talk()
    other = new_pair()
    if wrong == "own":
        stranger = scene.dial(other, scene.server.public)
    else:
        stranger = scene.dial(scene.client, other.public)
    stranger.send(b"let me in")
    scene.refused(1)
    wait_for(lambda: "refused a connection" in caplog.text)
    assert other.secret not in caplog.text
    scene.talk()


@pytest.mark.parametrize(
    "said",
    [
        b"", b"\xff", os.urandom(1000), b"GET / HTTP/1.1\r\n\r\n", GREETING[:11], GREETING,
        GREETING + HUGE_COMMAND, GREETING + b"\x04\x05\x05HELLO", GREETING + b"\x00\xff" * 600,
    ],
    ids=[
        "nothing", "a byte", "garbage", "http", "half a greeting", "a greeting", "a huge header",
        "half a message", "messages before the handshake",
    ],
)  # fmt: skip
def test_a_stranger_who_speaks_otherwise(
    scene: Scene, said: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    scene.talk()
    stranger = scene.raw()
    stranger.sendall(said)
    scene.talk()
    stranger.close()
    scene.refused(1)
    wait_for(lambda: "refused a connection" in caplog.text)
    scene.talk()


def test_what_was_recorded_cannot_be_played_again(scene: Scene) -> None:
    """All bytes of a friend's connection, sent once more by somebody else."""
    recorded, ready = bytearray(), threading.Event()
    relay = socket.create_server(("127.0.0.1", 0))

    def carry(source: socket.socket, target: socket.socket, into: bytearray | None) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if into is not None:
                    into += data
                target.sendall(data)
        target.close()

    def serve() -> None:
        ready.set()
        near, _ = relay.accept()
        far = scene.raw()
        threading.Thread(target=carry, args=(far, near, None), daemon=True).start()
        carry(near, far, recorded)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    assert ready.wait(WAIT_SECONDS)
    address = f"tcp://127.0.0.1:{relay.getsockname()[1]}"
    talker = scene.far.dial(address, scene.client, scene.server.public)
    talker.send(b"only once")
    assert scene.receive(scene.listener.socket)[-1].bytes == b"only once"
    scene.far.hang_up(talker)
    thread.join(WAIT_SECONDS)
    relay.close()
    assert len(recorded) > 200
    before = scene.listener.refused
    thief = scene.raw()
    thief.sendall(bytes(recorded))
    thief.settimeout(WAIT_SECONDS)
    while thief.recv(65536):
        pass
    thief.close()
    scene.refused(before + 1)
    scene.talk()


def test_a_friend_who_sends_too_much_is_cut_off_and_may_come_again(scene: Scene) -> None:
    scene.talk()
    scene.friend.send(bytes(200_000))
    # What he says next may be lost with the connection.
    scene.friend.send(b"again")
    while not scene.listener.socket.poll(300):
        scene.friend.send(b"again")
    while scene.listener.socket.poll(300):
        assert scene.listener.socket.recv_multipart()[1] == b"again"
    scene.talk()


def test_a_crowd_of_strangers_costs_no_memory_and_is_logged_once(
    scene: Scene, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authenticator, "LOG_SECONDS", 3600.0)
    caplog.set_level(logging.WARNING)
    scene.talk()

    def crowd(count: int) -> None:
        for _ in range(count):
            stranger = scene.raw()
            stranger.sendall(GREETING + HUGE_COMMAND)
            stranger.close()

    crowd(50)
    scene.refused(50)
    before = psutil.Process().memory_info().rss
    crowd(300)
    scene.refused(350)
    assert psutil.Process().memory_info().rss - before < 16 << 20
    assert len([r for r in caplog.records if "refused" in r.message]) <= 1
    scene.talk()


def test_who_is_struck_off_the_list_is_not_heard_any_more(scene: Scene) -> None:
    scene.talk()
    scene.listener.admit({})
    scene.friend.send(b"still here")
    frames = scene.receive(scene.listener.socket)
    assert scene.listener.name_of(frames[-1]) is None


def test_a_new_friend_is_let_in_while_it_runs(scene: Scene) -> None:
    late = new_pair()
    scene.listener.admit({scene.client.public: "friend", late.public: "late"})
    stranger = scene.dial(late, scene.server.public)
    stranger.send(b"hello")
    assert scene.listener.name_of(scene.receive(scene.listener.socket)[-1]) == "late"
    scene.talk()


def test_addresses_that_cannot_be_are_refused_with_what_to_do() -> None:
    wire = Wire()
    with pytest.raises(NetError, match=r"expected an address of this host.*ip address"):
        wire.listen("tcp://192.0.2.1:*", new_pair(), {})
    with pytest.raises(NetError, match="expected an address like tcp://HOST:PORT"):
        wire.dial("nowhere", new_pair(), new_pair().public)
    wire.close()
