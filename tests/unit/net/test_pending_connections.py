"""Connections without a key: bounded in number, while who has a key gets in."""

from __future__ import annotations

import os
import select
import socket
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from srl.net import pending_connections
from srl.net.keys import KeyPair, new_pair
from srl.net.sockets import LOOPBACK, Listener, Wire

LIMIT = 128
"""Descriptors that the listening process is said to have. Unknown peers dial four times as many.
The test has both ends: it takes fewer than the 1,024 that many systems allow."""
WAIT_SECONDS = 90.0


class Holder(threading.Thread):
    """A stranger: holds as many connections as it can, and dials anew when one is cut."""

    def __init__(self, port: int, count: int) -> None:
        super().__init__(daemon=True)
        self._port, self._count = port, count
        self._over = threading.Event()
        self.was_cut = threading.Event()
        self.start()

    def run(self) -> None:
        held: dict[int, socket.socket] = {}
        poll = select.poll()
        while not self._over.is_set():
            while len(held) < self._count:
                one = socket.socket()
                one.setblocking(False)
                one.connect_ex(("127.0.0.1", self._port))
                held[one.fileno()] = one
                poll.register(one, select.POLLIN)
            for fd, events in poll.poll(20):
                if events & (select.POLLHUP | select.POLLERR) or not _read(held[fd]):
                    poll.unregister(fd)
                    held.pop(fd).close()
                    self.was_cut.set()
        for one in held.values():
            one.close()

    def end(self) -> None:
        self._over.set()
        self.join()


def _read(connection: socket.socket) -> bytes:
    try:
        return connection.recv(4096)
    except OSError:
        return b""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Wire, Listener, KeyPair, KeyPair]]:
    monkeypatch.setattr(pending_connections, "descriptor_limit", lambda: LIMIT)
    # The test's own connections are in the same process.
    monkeypatch.setattr(pending_connections, "_lowest_free", lambda: 0)
    wire, keys, known = Wire(), new_pair(), new_pair()
    listener = wire.listen(LOOPBACK, keys, {known.public: "known"})
    yield wire, listener, keys, known
    wire.close()


def port_of(listener: Listener) -> int:
    return int(listener.address.rpartition(":")[2])


def accepted(port: int) -> int:
    """Connections that this process holds as the one who was dialled."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            with pending_connections.wrapped_socket(int(name)) as one:
                is_ours = one.getsockname()[1] == port
                found += is_ours and one.getpeername()[0] == "127.0.0.1"
        except (OSError, IndexError, TypeError):
            continue
    return found


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts descriptors by /proc")
def test_strangers_hold_a_bounded_number_and_a_known_host_gets_in(
    server: tuple[Wire, Listener, KeyPair, KeyPair],
) -> None:
    wire, listener, keys, known = server
    port = port_of(listener)
    stranger = Holder(port, 4 * LIMIT)
    most = 0
    try:
        assert stranger.was_cut.wait(WAIT_SECONDS)
        friend = wire.dial(listener.address, known, keys.public)
        friend.send(b"hello")
        deadline = time.monotonic() + WAIT_SECONDS
        while (frames := listener.receive()) is None:
            most = max(most, accepted(port))
            assert time.monotonic() < deadline
            listener.socket.poll(20)
        assert frames[-1].bytes == b"hello"
        for _ in range(20):
            most = max(most, accepted(port))
            listener.socket.poll(20)
    finally:
        stranger.end()
    assert 0 < most < LIMIT


def test_one_address_does_not_crowd_out_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_connections, "descriptor_limit", lambda: 0)
    few = pending_connections.PendingConnections()
    cut: list[int] = []
    monkeypatch.setattr(pending_connections, "shut_down", cut.append)
    where = {number: "10.0.0.9" for number in range(100)} | {0: "10.0.0.1"}
    monkeypatch.setattr(pending_connections, "wrapped_socket", lambda fd: _From(where[fd]))
    for number in range(pending_connections.FEWEST + 1):
        few.come(number)
    assert cut
    assert 0 not in cut, "it was the oldest, but of another address"
    assert cut == sorted(cut), "the oldest go first"


class _From:
    """A connection from an address."""

    def __init__(self, address: str) -> None:
        self._address = address

    def __enter__(self) -> _From:
        return self

    def __exit__(self, *raised: object) -> None:
        pass

    def getpeername(self) -> tuple[str, int]:
        return (self._address, 1)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux filters a listening socket")
def test_nobody_new_gets_in_after_the_end_and_who_is_there_stays(
    server: tuple[Wire, Listener, KeyPair, KeyPair],
) -> None:
    wire, listener, keys, known = server
    friend = wire.dial(listener.address, known, keys.public)
    friend.send(b"one")
    _next(listener)
    listener.stop_listening()
    with socket.socket() as late:
        late.settimeout(0.5)
        with pytest.raises(TimeoutError):
            late.connect(("127.0.0.1", port_of(listener)))
    friend.send(b"two")
    assert _next(listener) == b"two"


def _next(listener: Listener) -> bytes:
    deadline = time.monotonic() + WAIT_SECONDS
    while (frames := listener.receive()) is None:
        assert time.monotonic() < deadline
        listener.socket.poll(20)
    return frames[-1].bytes
