"""Whoever has a key and sends too much, or never ends: cut off, and nobody else is harmed."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Iterator

import psutil
import pytest
import zmq

from srl.net import receiver
from srl.net.keys import new_pair
from srl.net.limits import Limits
from srl.net.receiver import Socket
from srl.net.sockets import LOOPBACK, Listener, Wire

LIMITS = Limits(frame_bytes=100_000, frames=50, message_bytes=400_000)
WAIT_SECONDS = 120.0


class Scene:
    """A listener, and two who have keys: one behaves, the other one is to do what a test wants."""

    def __init__(self) -> None:
        self.wire, self.far = Wire(), Wire()
        server, self.good, self.odd = new_pair(), new_pair(), new_pair()
        self.server_key = server.public
        names = {self.good.public: "good", self.odd.public: "odd"}
        self.listener: Listener = self.wire.listen(LOOPBACK, server, names, limits=LIMITS)
        self.friend = self.dial("good")
        self.number = 0
        self.talk()

    def dial(self, who: str) -> Socket:
        keys = self.good if who == "good" else self.odd
        return self.far.dial(self.listener.address, keys, self.server_key)

    def next(self) -> list[bytes]:
        """The next message that the listener gets."""
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline:
            frames = self.listener.receive()
            if frames is not None:
                return [frame.bytes for frame in frames]
            self.listener.socket.poll(20)
        pytest.fail("nothing comes")

    def talk(self) -> None:
        """The friend is heard, message by message."""
        for _ in range(3):
            self.number += 1
            self.friend.send_multipart([b"hello", b"%d" % self.number])
            assert self.next()[1:] == [b"hello", b"%d" % self.number]

    def until_cut(self, count: int = 1) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while self.wire.cut_off < count:
            assert time.monotonic() < deadline, "never"
            assert self.listener.receive() is None
            self.listener.socket.poll(20)

    def close(self) -> None:
        self.far.close()
        self.wire.close()


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[Scene]:
    monkeypatch.setattr(receiver, "LOG_SECONDS", 0.0)
    caplog.set_level(logging.WARNING)
    made = Scene()
    yield made
    made.close()


def test_messages_up_to_the_limits_go_through(scene: Scene) -> None:
    scene.friend.send_multipart([b"x"] * LIMITS.frames)
    assert len(scene.next()) == 1 + LIMITS.frames
    scene.friend.send_multipart([bytes(99_000)] * 4)
    assert sum(map(len, scene.next()[1:])) == 396_000
    assert scene.wire.cut_off == 0


@pytest.mark.parametrize(
    ("frames", "size"), [(51, 1), (20_000, 1), (5, 99_000)], ids=["frames", "more frames", "bytes"]
)
def test_a_message_that_is_too_long_ends_its_connection_and_no_other(
    scene: Scene, caplog: pytest.LogCaptureFixture, frames: int, size: int
) -> None:
    odd = scene.dial("odd")
    odd.send_multipart([bytes(size)] * frames)
    scene.until_cut()
    assert "a connection was ended" in caplog.text
    assert "at most 50 frames and 400000 bytes" in caplog.text
    scene.talk()
    # It may come back, and is heard if it behaves. What it says at once is lost with the old line.
    deadline = time.monotonic() + WAIT_SECONDS
    while (heard := scene.listener.receive()) is None:
        assert time.monotonic() < deadline, "never"
        odd.send(b"sorry")
        scene.listener.socket.poll(50)
    assert [frame.bytes for frame in heard][1:] == [b"sorry"]


@pytest.mark.skipif(not hasattr(socket, "TCP_INFO"), reason="the system does not count bytes")
def test_a_message_that_does_not_end_is_cut_off_before_it_fills_the_memory(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    """ZeroMQ shows nothing of it before its last frame. This one would have 400 MB."""
    odd = scene.dial("odd")
    odd.send(b"hello")
    assert scene.next()[1:] == [b"hello"]
    frame = zmq.Frame(bytes(90_000))
    before = psutil.Process().memory_info().rss

    odd.send_multipart([frame] * 4_500, copy=False)
    scene.until_cut()
    assert "of one that does not end" in caplog.text
    assert psutil.Process().memory_info().rss - before < 300 << 20
    scene.far.hang_up(odd)
    scene.talk()


def test_a_slow_reader_cuts_nobody_off(scene: Scene) -> None:
    """Many whole messages wait, far more bytes than one message may have."""
    odd = scene.dial("odd")
    for number in range(100):
        odd.send_multipart([b"%d" % number, bytes(99_000)])
    deadline = time.monotonic() + 2 * receiver.LOOK_SECONDS
    while time.monotonic() < deadline or not scene.listener.socket.poll(20):
        pass
    for number in range(100):
        assert scene.next()[1] == b"%d" % number
    assert scene.wire.cut_off == 0


def test_one_who_is_dialled_is_bounded_too(caplog: pytest.LogCaptureFixture) -> None:
    near, far = Wire(), Wire()
    server, client = new_pair(), new_pair()
    listener = far.listen(LOOPBACK, server, {client.public: "client"})
    line = near.dial(listener.address, client, server.public, limits=LIMITS)
    line.send(b"hello")
    assert listener.socket.poll(int(WAIT_SECONDS * 1000))
    frames = listener.receive()
    assert frames is not None
    listener.socket.send_multipart([frames[0].bytes, *([b"x"] * 60)])
    deadline = time.monotonic() + WAIT_SECONDS
    while not near.cut_off:
        assert time.monotonic() < deadline, "never"
        assert near.receive(line) is None
        line.poll(20)
    assert f"the connection to {listener.address}" in caplog.text
    near.close()
    far.close()
