"""Authentication of connections: which keys may connect to a process, and which were refused.

A separate thread answers ZeroMQ's questions about keys (ZAP) and watches connections come and go.
So unknown connections are refused even while the process is busy.
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
"""Least time between two logged refusals for one reason; each line gives the total."""
WATCHED = (
    zmq.EVENT_LISTENING | zmq.EVENT_ACCEPTED | zmq.EVENT_CONNECTED | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)  # fmt: skip

Note = Callable[[int, int], None]
"""Callback for an event of a socket, with the file descriptor of the event's connection."""


class AllowList:
    """The public keys that may connect to one listening socket, and counts of its connections."""

    def __init__(self, name: str, admitted: Mapping[str, str]) -> None:
        self.name = name
        self.admit(admitted)
        self.address = ""
        self.accepted = self.succeeded = self.refused = 0
        self._last_logged: dict[str, float] = {}
        """Time of the last logged refusal, by its reason."""

    def admit(self, keys: Mapping[str, str]) -> None:
        """Replaces the list: public key (Z85) to the name that is given to its messages."""
        self.admitted = dict(keys)
        self.names = frozenset(self.admitted.values())

    def note(self, event: int) -> None:
        """Counts one event of a connection.

        A connection that ends before its handshake succeeded counts as refused. The event does not
        say which of several connections ended. So a slow connection may be counted as refused and
        succeed later; the count is then lowered again.
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
        """Logs a refusal, unless one for the same reason was logged in the last LOG_SECONDS."""
        now = time.monotonic()
        if now - self._last_logged.get(reason, float("-inf")) < LOG_SECONDS:
            return
        self._last_logged[reason] = now
        log.warning(
            "%s (%s) refused a connection%s: %s. %d refused so far; the run goes on. A host that "
            "is just joining dials again; otherwise somebody else on the network tries this port.",
            *(self.name, self.address, who and f" from {who}", reason, max(self.refused, 1)),
        )


class Authenticator(threading.Thread):
    """Thread that checks the keys of all connections to the sockets of a ZeroMQ context."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        super().__init__(name="srl-authenticator", daemon=True)
        self._context = context
        self._allow_lists: dict[str, AllowList] = {}
        self._monitors: dict[zmq.Socket[bytes], Note] = {}
        self._lock = threading.Lock()
        self._zap = context.socket(zmq.ROUTER)
        self._zap.linger = 0
        self._zap.bind("inproc://zeromq.zap.01")
        self._inside = context.socket(zmq.PAIR)
        self._outside = context.socket(zmq.PAIR)
        self._inside.bind("inproc://srl-authenticator")
        self._outside.connect("inproc://srl-authenticator")
        self.start()

    def open(self, socket: zmq.Socket[bytes], allow_list: AllowList) -> None:
        """Gives a listening socket its allow-list. Call this before the socket is bound."""
        socket.zap_domain = allow_list.name.encode()
        with self._lock:
            self._allow_lists[allow_list.name] = allow_list

    def watch(self, socket: zmq.Socket[bytes], note: Note) -> None:
        """Calls `note` for every connection of a socket that comes or goes.

        Call this before the socket has any connection.
        """
        monitor = socket.get_monitor_socket(WATCHED)
        with self._lock:
            self._monitors[monitor] = note
        self._outside.send(b"new")

    def close(self) -> None:
        """Ends the thread. Close the watched sockets before."""
        self._outside.send(b"end")
        self.join()
        for socket in (self._zap, self._inside, self._outside, *self._monitors):
            socket.close(linger=0)

    def run(self) -> None:
        """The thread's loop: sleeps until there is a question about a key or a connection event."""
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
        """Passes on one event of a monitor; returns False after the last one."""
        message = recv_monitor_message(monitor)
        event = int(message["event"])
        if event == zmq.EVENT_MONITOR_STOPPED:
            return False
        self._monitors[monitor](event, int(message["value"]))
        return True

    def _answer(self) -> None:
        """Answers one ZAP request (RFC 27): is this key on the allow-list?"""
        frames = self._zap.recv_multipart()
        split = frames.index(b"")
        envelope, request = frames[: split + 1], frames[split + 1 :]
        version, number, domain, address, _, mechanism, *credentials = request
        with self._lock:
            allow_list = self._allow_lists.get(domain.decode(errors="replace"))
        name = None
        if allow_list is not None and mechanism == b"CURVE" and len(credentials) == 1:
            name = allow_list.admitted.get(z85.encode(credentials[0]).decode())
        if allow_list is not None and name is None:
            allow_list.tell("its key is unknown", address.decode(errors="replace"))
        status = [b"200", b"OK"] if name is not None else [b"400", b"unknown key"]
        user = (name or "").encode()
        self._zap.send_multipart([*envelope, version, number, *status, user, b""])
