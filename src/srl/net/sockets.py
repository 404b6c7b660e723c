"""Sockets between hosts: ZeroMQ with CURVE, for known keys only, with limits on every queue.

A process has one `Wire`. It listens with a ROUTER socket, which accepts the keys on its allow-list.
It dials other processes with DEALER sockets, each of which trusts one server key. Our own code does
no encryption: ZeroMQ does it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import zmq

from srl.errors import NetError
from srl.net.authenticator import AllowList, Authenticator
from srl.net.keys import KeyPair
from srl.net.limits import Limits
from srl.net.receiver import BoundedReceiver, Socket

LOOPBACK = "tcp://127.0.0.1:*"
HIGH_WATER_MARK = 1000
"""Messages that may wait for one connection in each direction; then a send fails."""
LIMITS = Limits()
CURVE_OVERHEAD_BYTES = 1024
HEARTBEAT_SECONDS = 1.0
SILENCE_SECONDS = 10.0
"""A connection without messages and heartbeats for this long is closed and dialled again."""
HANDSHAKE_SECONDS = 5.0
RECONNECT_SECONDS = (0.1, 1.0)
CONNECT_SECONDS = 2.0
"""A connection that is not made after this time is dialled again. The system itself would try less
and less often, and a host with too many pending connections accepts new ones only now and then."""


class Listener:
    """A listening socket with its address and its allow-list."""

    def __init__(self, socket: Socket, allow_list: AllowList, receiver: BoundedReceiver) -> None:
        self.socket = socket
        self._allow_list = allow_list
        self._receiver = receiver

    @property
    def address(self) -> str:
        """The address under which others reach it: "tcp://10.0.0.2:40001"."""
        return self._allow_list.address

    @property
    def refused(self) -> int:
        """Number of connections that were refused."""
        return self._allow_list.refused

    def receive(self) -> list[zmq.Frame] | None:
        """Returns the next message, whose first frame is the route to its sender; None if there is
        none now."""
        return self._receiver.receive()

    def stop_listening(self) -> None:
        """Accepts no new connections; connections of known hosts stay."""
        self._receiver.pending.stop()

    def admit(self, keys: Mapping[str, str]) -> None:
        """Replaces the allow-list: public keys, and the name that is given to each key's messages.

        A connection whose key is no longer on the list stays open, but `name_of` is None for its
        messages.
        """
        self._allow_list.admit(keys)

    def name_of(self, frame: zmq.Frame) -> str | None:
        """The name that the allow-list has for a frame's sender; None if it is no longer there."""
        try:
            name = str(frame.get("User-Id"))
        except zmq.ZMQError:
            return None
        return name if name in self._allow_list.names else None


class Wire:
    """All network sockets of one process."""

    def __init__(self) -> None:
        self._context: zmq.Context[Socket] = zmq.Context()
        self._authenticator = Authenticator(self._context)
        self._receivers: dict[Socket, BoundedReceiver] = {}
        self._cut_off = 0
        self._num_listeners = 0

    def listen(
        self,
        address: str,
        keys: KeyPair,
        admitted: Mapping[str, str],
        *,
        name: str = "bridge",
        limits: Limits = LIMITS,
    ) -> Listener:
        """Opens a ROUTER socket that accepts the `admitted` keys (public key to name).

        `address` is "tcp://HOST:PORT". Port `*` takes any free port; HOST `*` listens on every
        interface.
        """
        self._num_listeners += 1
        allow_list = AllowList(f"{name}#{self._num_listeners}", admitted)
        socket = self._socket(zmq.ROUTER, keys, name, limits)
        receiver = self._receivers[socket]
        socket.curve_server = True
        socket.router_mandatory = True
        self._authenticator.open(socket, allow_list)

        def note(event: int, fd: int) -> None:
            receiver.note(event, fd)
            allow_list.note(event)

        self._authenticator.watch(socket, note)
        try:
            socket.bind(address)
        except zmq.ZMQError as error:
            raise NetError(
                f"{name}: expected an address of this host to listen on, got {address!r} "
                f"({error.strerror}). Name an address that `ip address` shows, with a free port."
            ) from None
        allow_list.address = str(socket.getsockopt_string(zmq.LAST_ENDPOINT))
        return Listener(socket, allow_list, receiver)

    def dial(
        self,
        address: str,
        keys: KeyPair,
        server_key: str,
        *,
        limits: Limits = LIMITS,
    ) -> Socket:
        """Opens a DEALER socket to the process that holds `server_key`.

        It connects by itself, and connects again after a loss.
        """
        socket = self._socket(zmq.DEALER, keys, f"the connection to {address}", limits)
        self._authenticator.watch(socket, self._receivers[socket].note)
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
        """Returns the next message of a socket, or None if there is none now."""
        return self._receivers[socket].receive()

    @property
    def cut_off(self) -> int:
        """Number of connections that were ended because of what they sent."""
        return self._cut_off + sum(receiver.cut_off for receiver in self._receivers.values())

    def hang_up(self, socket: Socket) -> None:
        """Closes a socket, and drops the messages that it has not sent yet."""
        self._cut_off += self._receivers.pop(socket).cut_off
        socket.disable_monitor()
        socket.close(linger=0)

    def _socket(self, kind: int, keys: KeyPair, name: str, limits: Limits) -> Socket:
        socket = self._context.socket(kind)
        self._receivers[socket] = BoundedReceiver(socket, name, limits)
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
            zmq.CONNECT_TIMEOUT: int(CONNECT_SECONDS * 1000),
            zmq.RECONNECT_IVL: int(RECONNECT_SECONDS[0] * 1000),
            zmq.RECONNECT_IVL_MAX: int(RECONNECT_SECONDS[1] * 1000),
        }
        for option, value in options.items():
            socket.setsockopt(option, value)
        return socket

    def close(self) -> None:
        """Closes every socket, and drops all unsent messages."""
        for socket in list(self._receivers):
            self.hang_up(socket)
        self._authenticator.close()
        self._context.term()
