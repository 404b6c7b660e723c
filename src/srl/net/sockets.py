"""Sockets between hosts: ZeroMQ with CURVE, known keys only, bounded in every direction.

A process has one `Wire`. It listens with a ROUTER that lets in the keys on its list, and dials
others with DEALERs that trust one server key. Nothing is encrypted or checked by our own code.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any

import zmq

from srl.errors import NetError
from srl.net.door import Desk, Door
from srl.net.inbox import Inbox, Socket
from srl.net.keys import KeyPair
from srl.net.limits import Limits

LOOPBACK = "tcp://127.0.0.1:*"
HIGH_WATER_MARK = 1000
"""Messages that may wait for one connection in each direction; then senders are told."""
LIMITS = Limits()
CURVE_OVERHEAD_BYTES = 1024
HEARTBEAT_SECONDS = 1.0
SILENCE_SECONDS = 10.0
"""A connection that is silent for so long, heartbeats included, is given up and dialled anew."""
HANDSHAKE_SECONDS = 5.0
RECONNECT_SECONDS = (0.1, 1.0)


class Listener:
    """A listening socket, the address it got, and its list of keys."""

    def __init__(self, socket: Socket, desk: Desk, inbox: Inbox) -> None:
        self.socket = socket
        self._desk = desk
        self._inbox = inbox

    @property
    def address(self) -> str:
        """Where others reach it: "tcp://10.0.0.2:40001"."""
        return self._desk.address

    @property
    def refused(self) -> int:
        """Connections that were turned away."""
        return self._desk.refused

    def receive(self) -> list[zmq.Frame] | None:
        """The next message, after the route back to its sender; None if there is none now."""
        return self._inbox.receive()

    def admit(self, keys: Mapping[str, str]) -> None:
        """Replaces the list: public keys, and the name that each one's messages bear.

        Who is on no list any more stays connected; `name_of` of his messages is then None.
        """
        self._desk.admit(keys)

    def name_of(self, frame: zmq.Frame) -> str | None:
        """Who sent a frame: the name that his key was admitted under, if it still is."""
        try:
            name = str(frame.get("User-Id"))
        except zmq.ZMQError:
            return None
        return name if name in self._desk.names else None


class Wire:
    """The sockets of one process."""

    def __init__(self) -> None:
        self._context: zmq.Context[Socket] = zmq.Context()
        self._door = Door(self._context)
        self._inboxes: dict[Socket, Inbox] = {}
        self._cut_off = 0
        self._names = 0

    def listen(
        self,
        address: str,
        keys: KeyPair,
        admitted: Mapping[str, str],
        *,
        name: str = "gate",
        limits: Limits = LIMITS,
    ) -> Listener:
        """A ROUTER that lets in the holders of the `admitted` keys (public key to name).

        `address` is "tcp://HOST:PORT"; port `*` takes any that is free. With HOST `*` it listens
        on every interface.
        """
        self._names += 1
        desk = Desk(f"{name}#{self._names}", admitted)
        socket = self._socket(zmq.ROUTER, keys, name, limits)
        inbox = self._inboxes[socket]
        socket.curve_server = True
        socket.router_mandatory = True
        self._door.open(socket, desk)

        def note(event: int, fd: int) -> None:
            inbox.note(event, fd)
            desk.note(event)

        self._door.watch(socket, note)
        try:
            socket.bind(address)
        except zmq.ZMQError as error:
            raise NetError(
                f"{name}: expected an address of this host to listen on, got {address!r} "
                f"({error.strerror}). Name an address that `ip address` shows, with a free port."
            ) from None
        desk.address = str(socket.getsockopt_string(zmq.LAST_ENDPOINT))
        return Listener(socket, desk, inbox)

    def dial(
        self,
        address: str,
        keys: KeyPair,
        server_key: str,
        *,
        limits: Limits = LIMITS,
    ) -> Socket:
        """A DEALER to the one who holds `server_key`; it connects, and connects again, by
        itself."""
        socket = self._socket(zmq.DEALER, keys, f"the line to {address}", limits)
        self._door.watch(socket, self._inboxes[socket].note)
        try:
            socket.curve_serverkey = server_key.encode()
            socket.connect(address)
        except zmq.ZMQError as error:
            self.hang_up(socket)
            raise NetError(
                f"expected an address like tcp://HOST:PORT and a key of 40 characters, got "
                f"{address!r} and {server_key!r} ({error.strerror})."
            ) from None
        return socket

    def receive(self, socket: Socket) -> list[zmq.Frame] | None:
        """The next message of a socket, or None if there is none now."""
        return self._inboxes[socket].receive()

    @property
    def cut_off(self) -> int:
        """Connections that were ended because of what came through them."""
        return self._cut_off + sum(inbox.cut_off for inbox in self._inboxes.values())

    def hang_up(self, socket: Socket) -> None:
        """Closes a socket; what it has not sent yet is dropped."""
        self._cut_off += self._inboxes.pop(socket).cut_off
        socket.disable_monitor()
        socket.close(linger=0)

    def _socket(self, kind: int, keys: KeyPair, name: str, limits: Limits) -> Socket:
        socket = self._context.socket(kind)
        self._inboxes[socket] = Inbox(socket, name, limits)
        socket.curve_publickey = keys.public.encode()
        socket.curve_secretkey = keys.secret.encode()
        options: dict[int, Any] = {
            zmq.LINGER: 0,
            zmq.SNDHWM: HIGH_WATER_MARK,
            zmq.RCVHWM: HIGH_WATER_MARK,
            zmq.MAXMSGSIZE: limits.frame_bytes + CURVE_OVERHEAD_BYTES,
            zmq.HANDSHAKE_IVL: int(HANDSHAKE_SECONDS * 1000),
            zmq.HEARTBEAT_IVL: int(HEARTBEAT_SECONDS * 1000),
            zmq.HEARTBEAT_TIMEOUT: int(SILENCE_SECONDS * 1000),
            zmq.RECONNECT_IVL: int(RECONNECT_SECONDS[0] * 1000),
            zmq.RECONNECT_IVL_MAX: int(RECONNECT_SECONDS[1] * 1000),
        }
        for option, value in options.items():
            socket.setsockopt(option, value)
        return socket

    def close(self) -> None:
        """Closes every socket; nothing lingers."""
        for socket in list(self._inboxes):
            self.hang_up(socket)
        self._door.close()
        self._context.term()


def reachable_as(address: str, host: str) -> str:
    """A listening address as another host would dial it: `host` in place of "all interfaces"."""
    name, _, port = address.removeprefix("tcp://").rpartition(":")
    try:
        everywhere = ipaddress.ip_address(name.strip("[]")).is_unspecified
    except ValueError:
        everywhere = name == "*"
    return f"tcp://{host if everywhere else name}:{port}"
