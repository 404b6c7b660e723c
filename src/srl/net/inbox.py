"""What comes in through a socket: whole messages of bounded length, from those who also end them.

ZeroMQ bounds a frame, and keeps the frames of a message until the last one has come, however many
they are. So a message is read frame by frame here, and one that is too long is dropped with the
connection it came through; and a connection that gets more and more bytes while none of its
messages is ever whole is ended too. Its peer may dial again, and starts anew.
"""

from __future__ import annotations

import logging
import os
import socket as sockets
import struct
import time

import zmq

from srl.net.limits import Limits

log = logging.getLogger("srl.net")

LOOK_SECONDS = 0.1
"""How often connections are looked at."""
PATIENCE_SECONDS = 10.0
"""How long a connection may say nothing whole while there is always something from others."""
LOG_SECONDS = 5.0
_TCP_INFO_BYTES, _BYTES_RECEIVED = 192, 128
"""Of Linux's `struct tcp_info`, and where in it the bytes are that have come so far."""
_SLACK_BYTES = 1 << 20
_HEARTBEAT_BYTES = 1000
"""More than ZeroMQ's own heartbeats have in a second; they are no messages."""

Socket = zmq.Socket[bytes]


class _Connection:
    """One connection of a socket."""

    __slots__ = ("bytes", "heard", "others", "since")

    def __init__(self) -> None:
        self.heard = True
        """Whether a message of its was handed out since the last look."""
        self.bytes = 0
        """What it had got at the last look after which nothing of it was heard, ..."""
        self.since = 0.0
        """... when that was, ..."""
        self.others = 0
        """... and the messages of all connections until then."""


class Inbox:
    """The receiving side of one socket."""

    def __init__(self, socket: Socket, name: str, limits: Limits) -> None:
        self.cut_off = 0
        """Connections that were ended here."""
        self._socket = socket
        self._name = name
        self._limits = limits
        routes = socket.getsockopt(zmq.TYPE) == zmq.ROUTER
        self._most_frames = limits.frames + int(routes)
        self._alone = not routes
        self._connections: dict[int, _Connection] = {}
        """By their file descriptors, which are ZeroMQ's."""
        self._messages = 0
        self._next_look = 0.0
        self._told = float("-inf")

    def note(self, event: int, fd: int) -> None:
        """A connection has come or gone; called by the door's thread."""
        if event in (zmq.EVENT_ACCEPTED, zmq.EVENT_CONNECTED):
            self._connections[fd] = _Connection()
        elif event == zmq.EVENT_DISCONNECTED:
            self._connections.pop(fd, None)

    def receive(self) -> list[zmq.Frame] | None:
        """The next message, or None if there is none now."""
        while is_readable(self._socket):
            frames = self._read()
            self._look(emptied=False)
            if frames:
                return frames
        self._look(emptied=True)
        return None

    def _read(self) -> list[zmq.Frame]:
        """One whole message; nothing, if it was too long."""
        frames: list[zmq.Frame] = []
        count = nbytes = 0
        while True:
            frame = self._socket.recv(zmq.NOBLOCK, copy=False)
            count += 1
            nbytes += len(frame)
            fits = count <= self._most_frames and nbytes <= self._limits.message_bytes
            if fits:
                frames.append(frame)
            else:
                frames.clear()
            if not frame.more:
                break
        self._messages += 1
        self._note_heard(frame)
        if fits:
            return frames
        self._cut(
            int(frame.get(zmq.SRCFD)),
            f"expected messages of at most {self._limits.frames} frames and "
            f"{self._limits.message_bytes} bytes, got one of {count} and {nbytes}",
        )
        return []

    def _note_heard(self, frame: zmq.Frame) -> None:
        """Notes which connection a message came through."""
        if self._alone:
            for connection in list(self._connections.values()):
                connection.heard = True
            return
        known = self._connections.get(int(frame.get(zmq.SRCFD)))
        if known is not None:
            known.heard = True

    def _look(self, emptied: bool) -> None:
        """Ends connections that keep sending and never end a message. `emptied`: nothing whole
        waits, so what they got meanwhile is of one that is not whole."""
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + LOOK_SECONDS
        most = 2 * self._limits.message_bytes + _SLACK_BYTES
        for fd, one in list(self._connections.items()):
            received = _received_bytes(fd)
            if received is None:
                continue
            if one.heard:
                one.heard, one.bytes = False, received
                one.since, one.others = now, self._messages
                continue
            # Messages are handed out in turn: enough of others say that this one has none.
            passed_over = self._messages - one.others > 2 * len(self._connections)
            late = now > one.since + PATIENCE_SECONDS and passed_over
            allowed = most + _HEARTBEAT_BYTES * (now - one.since)
            if received - one.bytes > allowed and (emptied or late):
                self._cut(
                    fd,
                    f"expected messages of at most {self._limits.message_bytes} bytes, got "
                    f"{received - one.bytes} of one that does not end",
                )

    def _cut(self, fd: int, reason: str) -> None:
        """Ends a connection; what ZeroMQ had kept of its message goes with it."""
        self._connections.pop(fd, None)
        self.cut_off += 1
        try:
            with sockets.socket(fileno=os.dup(fd)) as connection:
                connection.shutdown(sockets.SHUT_RDWR)
        except OSError:
            # It has just ended by itself.
            pass
        now = time.monotonic()
        if now >= self._told + LOG_SECONDS:
            self._told = now
            log.warning(
                "%s: a connection was ended: %s. %d so far; the run goes on. The host at its other "
                "end has a key of this run and does not behave: look at what runs there.",
                *(self._name, reason, self.cut_off),
            )


def is_readable(socket: Socket) -> bool:
    """Whether there is a message to receive.

    A socket's file descriptor (`socket.fd`, for waiting together with others) says only that
    something changed; after every wait, send and receive this says what.
    """
    events: int = socket.getsockopt(zmq.EVENTS)  # type: ignore[assignment]
    return bool(events & zmq.POLLIN)


def _received_bytes(fd: int) -> int | None:
    """What a connection has got since it began; None where the system does not say."""
    if not hasattr(sockets, "TCP_INFO"):
        return None
    try:
        with sockets.socket(fileno=os.dup(fd)) as connection:
            info = connection.getsockopt(sockets.IPPROTO_TCP, sockets.TCP_INFO, _TCP_INFO_BYTES)
    except OSError:
        return None
    if len(info) < _BYTES_RECEIVED + 8:
        return None
    return int(struct.unpack_from("=Q", info, _BYTES_RECEIVED)[0])
