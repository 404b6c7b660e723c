"""Receives whole messages of limited size from a socket, and ends connections that misbehave.

ZeroMQ limits the size of a frame. But it keeps all frames of a message until the last one has come,
however many there are. So messages are read frame by frame here. A message that is too long is
dropped, and its connection is ended. A connection is also ended if it keeps sending bytes but never
completes a message. The other end may dial again.
"""

from __future__ import annotations

import logging
import socket as sockets
import struct
import time

import zmq

from srl.net.limits import Limits
from srl.net.pending_connections import PendingConnections, shut_down, wrapped_socket

log = logging.getLogger("srl.net")

LOOK_SECONDS = 0.1
"""How often connections are checked."""
PATIENCE_SECONDS = 10.0
"""How long a connection may send no whole message while messages of others keep coming."""
LOG_SECONDS = 5.0
"""Least time between two log lines about ended connections."""
_TCP_INFO_BYTES, _BYTES_RECEIVED = 192, 128
"""Size of Linux's `struct tcp_info`, and the offset of the number of received bytes in it."""
_SLACK_BYTES = 1 << 20
_HEARTBEAT_BYTES = 1000
"""More bytes than ZeroMQ's heartbeats take in a second. Heartbeats are not messages."""

Socket = zmq.Socket[bytes]


class _Connection:
    """What is known about one connection of a socket."""

    __slots__ = ("bytes_before", "heard", "is_known", "messages_before", "since")

    def __init__(self) -> None:
        self.is_known = False
        """Whether it has ever sent a message, for which it needs a valid key."""
        self.heard = True
        """Whether one of its messages was read since the last check."""
        self.bytes_before = 0
        """Bytes that it had received at the last check with a message, ..."""
        self.since = 0.0
        """... the time of that check, ..."""
        self.messages_before = 0
        """... and the number of messages of all connections until then."""


class BoundedReceiver:
    """Reads the messages of one socket, and enforces its limits."""

    def __init__(self, socket: Socket, name: str, limits: Limits) -> None:
        self.cut_off = 0
        """Number of connections that were ended here."""
        self._socket = socket
        self._name = name
        self._limits = limits
        routes = socket.getsockopt(zmq.TYPE) == zmq.ROUTER
        self._max_frames = limits.frames + int(routes)
        self._has_one_connection = not routes
        self._connections: dict[int, _Connection] = {}
        """By their file descriptors, which belong to ZeroMQ."""
        self.pending = PendingConnections()
        self._num_messages = 0
        self._next_check = 0.0
        self._last_logged = float("-inf")

    def note(self, event: int, fd: int) -> None:
        """Handles a connection that comes or goes. The authenticator's thread calls it."""
        if event in (zmq.EVENT_ACCEPTED, zmq.EVENT_CONNECTED):
            self._connections[fd] = _Connection()
            if event == zmq.EVENT_ACCEPTED:
                self.pending.come(fd)
        elif event == zmq.EVENT_LISTENING:
            self.pending.listen(fd)
        elif event == zmq.EVENT_DISCONNECTED:
            self._connections.pop(fd, None)
            self.pending.leave(fd)

    def receive(self) -> list[zmq.Frame] | None:
        """Returns the next message, or None if there is none now."""
        while is_readable(self._socket):
            frames = self._read()
            self._check_connections(emptied=False)
            if frames:
                return frames
        self._check_connections(emptied=True)
        return None

    def _read(self) -> list[zmq.Frame]:
        """Reads one whole message; returns no frames if it was too long."""
        frames: list[zmq.Frame] = []
        count = nbytes = 0
        while True:
            frame = self._socket.recv(zmq.NOBLOCK, copy=False)
            count += 1
            nbytes += len(frame)
            fits = count <= self._max_frames and nbytes <= self._limits.message_bytes
            if fits:
                frames.append(frame)
            else:
                frames.clear()
            if not frame.more:
                break
        self._num_messages += 1
        self._mark_heard(frame)
        if fits:
            return frames
        self._end_connection(
            int(frame.get(zmq.SRCFD)),
            f"expected messages of at most {self._limits.frames} frames and "
            f"{self._limits.message_bytes} bytes, got one of {count} frames and {nbytes} bytes",
        )
        return []

    def _mark_heard(self, frame: zmq.Frame) -> None:
        """Marks the connection that a message came from."""
        if self._has_one_connection:
            for connection in list(self._connections.values()):
                connection.heard = True
            return
        known = self._connections.get(int(frame.get(zmq.SRCFD)))
        if known is not None:
            known.heard = True
            if not known.is_known:
                known.is_known = True
                self.pending.leave(int(frame.get(zmq.SRCFD)))

    def _check_connections(self, emptied: bool) -> None:
        """Ends connections that keep sending bytes and never complete a message.

        `emptied`: no whole message waits, so all newer bytes belong to incomplete messages.
        """
        now = time.monotonic()
        if now < self._next_check:
            return
        self._next_check = now + LOOK_SECONDS
        self.pending.make_room()
        max_bytes = 2 * self._limits.message_bytes + _SLACK_BYTES
        for fd, one in list(self._connections.items()):
            received = _received_bytes(fd)
            if received is None:
                continue
            if one.heard:
                one.heard, one.bytes_before = False, received
                one.since, one.messages_before = now, self._num_messages
                continue
            # ZeroMQ reads connections in turn. After enough messages of others, this one has none.
            passed_over = self._num_messages - one.messages_before > 2 * len(self._connections)
            late = now > one.since + PATIENCE_SECONDS and passed_over
            allowed = max_bytes + _HEARTBEAT_BYTES * (now - one.since)
            if received - one.bytes_before > allowed and (emptied or late):
                self._end_connection(
                    fd,
                    f"expected messages of at most {self._limits.message_bytes} bytes, got "
                    f"{received - one.bytes_before} of one that does not end",
                )

    def _end_connection(self, fd: int, reason: str) -> None:
        """Ends a connection. ZeroMQ then drops what it kept of an incomplete message."""
        self._connections.pop(fd, None)
        self.cut_off += 1
        shut_down(fd)
        now = time.monotonic()
        if now >= self._last_logged + LOG_SECONDS:
            self._last_logged = now
            log.warning(
                "%s: a connection was ended: %s. %d so far; the run goes on. The host at its other "
                "end has a key of this run but breaks its limits: check what runs there.",
                *(self._name, reason, self.cut_off),
            )


def is_readable(socket: Socket) -> bool:
    """Whether there is a message to receive.

    A socket's file descriptor (`socket.fd`, to wait for several things at once) says only that
    something changed. So ask this after every wait, send and receive.
    """
    events: int = socket.getsockopt(zmq.EVENTS)  # type: ignore[assignment]
    return bool(events & zmq.POLLIN)


def _received_bytes(fd: int) -> int | None:
    """Bytes that a connection has received since it began; None where the system does not tell."""
    if not hasattr(sockets, "TCP_INFO"):
        return None
    try:
        with wrapped_socket(fd) as connection:
            info = connection.getsockopt(sockets.IPPROTO_TCP, sockets.TCP_INFO, _TCP_INFO_BYTES)
    except OSError:
        return None
    if len(info) < _BYTES_RECEIVED + 8:
        return None
    return int(struct.unpack_from("=Q", info, _BYTES_RECEIVED)[0])
