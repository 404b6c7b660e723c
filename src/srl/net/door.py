"""The door of a process: who may finish a handshake with its sockets, and who was turned away.

A thread of its own answers ZeroMQ's questions about keys (ZAP) and watches connections come and go,
so that strangers are dealt with whatever the process itself is doing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping

import zmq
from zmq.utils import z85
from zmq.utils.monitor import recv_monitor_message

log = logging.getLogger("srl.net")

LOG_SECONDS = 5.0
"""A crowd of strangers is logged once in so long, with their number."""
WATCHED = (
    zmq.EVENT_ACCEPTED | zmq.EVENT_CONNECTED | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)  # fmt: skip

Note = Callable[[int, int], None]
"""Takes an event of a socket, and the file descriptor of the connection it is about."""


class Desk:
    """The list of one listening socket: which keys are let in, and how many were not."""

    def __init__(self, name: str, admitted: Mapping[str, str]) -> None:
        self.name = name
        self.admit(admitted)
        self.address = ""
        self.accepted = self.succeeded = self.refused = 0
        self._told: dict[str, float] = {}
        """When a refusal was last logged, by its reason."""

    def admit(self, keys: Mapping[str, str]) -> None:
        """Replaces the list: public key (Z85) to the name under which its messages come."""
        self.admitted = dict(keys)
        self.names = frozenset(self.admitted.values())

    def note(self, event: int) -> None:
        """Counts what happened to a connection.

        A connection that ends before its handshake was done is one that was refused. Which of
        several ended is not told; a stranger that was counted and gets in after all (he took long)
        is taken off again.
        """
        if event == zmq.EVENT_ACCEPTED:
            self.accepted += 1
        elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self.succeeded += 1
            self.refused = min(self.refused, self.accepted - self.succeeded)
        elif event == zmq.EVENT_DISCONNECTED and self.accepted - self.succeeded - self.refused > 0:
            self.refused += 1
            self.tell("it did not show a key of this run (no CURVE, a wrong key, or garbage)")

    def tell(self, reason: str, who: str = "") -> None:
        """Logs a refusal, unless one for the same reason was logged just now."""
        now = time.monotonic()
        if now - self._told.get(reason, float("-inf")) < LOG_SECONDS:
            return
        self._told[reason] = now
        log.warning(
            "%s (%s) refused a connection%s: %s. %d refused so far; the run goes on. A host that "
            "is just joining dials again; otherwise somebody else on the network tries this port.",
            *(self.name, self.address, who and f" from {who}", reason, max(self.refused, 1)),
        )


class Door(threading.Thread):
    """Answers for the keys of all sockets of a context."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        super().__init__(name="srl-door", daemon=True)
        self._context = context
        self._desks: dict[str, Desk] = {}
        self._monitors: dict[zmq.Socket[bytes], Note] = {}
        self._lock = threading.Lock()
        self._zap = context.socket(zmq.ROUTER)
        self._zap.linger = 0
        self._zap.bind("inproc://zeromq.zap.01")
        self._inside = context.socket(zmq.PAIR)
        self._outside = context.socket(zmq.PAIR)
        self._inside.bind("inproc://srl-door")
        self._outside.connect("inproc://srl-door")
        self.start()

    def open(self, socket: zmq.Socket[bytes], desk: Desk) -> None:
        """Lets a listening socket in by a list of its own; before it is bound."""
        socket.zap_domain = desk.name.encode()
        with self._lock:
            self._desks[desk.name] = desk

    def watch(self, socket: zmq.Socket[bytes], note: Note) -> None:
        """Notes every connection of a socket that comes or goes; before there are any."""
        monitor = socket.get_monitor_socket(WATCHED)
        with self._lock:
            self._monitors[monitor] = note
        self._outside.send(b"new")

    def close(self) -> None:
        """Ends the thread. The sockets themselves are closed before."""
        self._outside.send(b"end")
        self.join()
        for socket in (self._zap, self._inside, self._outside, *self._monitors):
            socket.close(linger=0)

    def run(self) -> None:
        """The thread: sleeps until there is a question."""
        poller = zmq.Poller()
        poller.register(self._zap, zmq.POLLIN)
        poller.register(self._inside, zmq.POLLIN)
        while True:
            for socket, _ in poller.poll():
                if socket is self._zap:
                    self._answer()
                elif socket is self._inside:
                    if self._inside.recv() == b"end":
                        return
                    with self._lock:
                        for monitor in self._monitors:
                            poller.register(monitor, zmq.POLLIN)
                elif not self._watch(socket):
                    poller.unregister(socket)
                    with self._lock:
                        del self._monitors[socket]
                    socket.close(linger=0)

    def _watch(self, monitor: zmq.Socket[bytes]) -> bool:
        """Notes one event; False once there will be no more."""
        message = recv_monitor_message(monitor)
        event = int(message["event"])
        if event == zmq.EVENT_MONITOR_STOPPED:
            return False
        self._monitors[monitor](event, int(message["value"]))
        return True

    def _answer(self) -> None:
        """One question of ZAP (RFC 27): is this key known here?"""
        frames = self._zap.recv_multipart()
        split = frames.index(b"")
        envelope, request = frames[: split + 1], frames[split + 1 :]
        version, number, domain, address, _, mechanism, *credentials = request
        with self._lock:
            desk = self._desks.get(domain.decode(errors="replace"))
        name = None
        if desk is not None and mechanism == b"CURVE" and len(credentials) == 1:
            name = desk.admitted.get(z85.encode(credentials[0]).decode())
        if desk is not None and name is None:
            desk.tell("its key is unknown", address.decode(errors="replace"))
        status = [b"200", b"OK"] if name is not None else [b"400", b"unknown key"]
        user = (name or "").encode()
        self._zap.send_multipart([*envelope, version, number, *status, user, b""])
