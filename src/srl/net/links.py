"""Links between the bridges of a run: one connection for each pair of hosts that need each other.

Of two hosts, the one whose name sorts first dials and the other one listens; both may then send.
When a link breaks, it loses the messages on their way and connects again by itself. The callers
send a message again until it is answered. A message that cannot be sent now is not kept here,
so that no queue grows.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from typing import Any

import zmq

from srl.arena.shm import WakePipe
from srl.errors import NetError
from srl.net.framing import Frames
from srl.net.keys import KeyPair, new_pair
from srl.net.limits import Limits
from srl.net.peers import Peer, Peers
from srl.net.receiver import Socket
from srl.net.sockets import LIMITS, LOOPBACK, Wire

log = logging.getLogger("srl.bridge")

MESSAGES_PER_TURN = 64
"""Largest number of messages read from one connection before the next one is read."""
_GONE = (zmq.EHOSTUNREACH, zmq.ENOTSOCK)


class Links:
    """A bridge's connections, by the name of the host at the other end."""

    def __init__(self, host: str, address: str = LOOPBACK, *, limits: Limits = LIMITS) -> None:
        self.host = host
        self.keys: KeyPair = new_pair()
        self._wire = Wire()
        self._limits = limits
        self._listener = self._wire.listen(address, self.keys, {}, limits=limits)
        self._dialled: dict[str, tuple[Peer, Socket]] = {}
        self._by_key: dict[str, str] = {}
        self._routes: dict[str, tuple[str, bytes]] = {}
        """The key and the ZeroMQ route of each host that has dialled this one."""
        self.sent_messages = self.sent_bytes = 0
        self.received_messages = self.received_bytes = 0
        self.unsent_messages = 0
        """Messages that were not sent: the queue was full, or there was no connection."""

    @property
    def address(self) -> str:
        """The address under which other hosts reach this bridge."""
        return self._listener.address

    @property
    def refused(self) -> int:
        """Connections without a valid key, and connections that were ended for what they sent."""
        return self._listener.refused + self._wire.cut_off

    def update(self, peers: Peers, needed: Collection[str]) -> None:
        """Applies a new address book: allows and dials the `needed` hosts, and drops the others."""
        wanted = {
            peer.host: peer
            for peer in peers.others
            if peer.host in needed and peer.address and peer.public_key
        }
        self._by_key = {
            peer.public_key: host for host, peer in wanted.items() if not self._dials(host)
        }
        self._listener.admit({key: key for key in self._by_key})
        for host, (peer, socket) in list(self._dialled.items()):
            found = wanted.get(host)
            if found is None or _identity(found) != _identity(peer):
                del self._dialled[host]
                self._wire.hang_up(socket)
        for host, (key, _) in list(self._routes.items()):
            if self._by_key.get(key) != host:
                del self._routes[host]
        for host, peer in wanted.items():
            if self._dials(host) and host not in self._dialled:
                try:
                    self._dial(peer)
                except NetError as error:
                    # A wrong address of one host must not stop the links to the others.
                    log.error("host %r cannot be reached: %s", host, error)

    def redial(self, host: str) -> None:
        """Dials a host again, if this end is the one that dials.

        A host refuses this one until its own address book names this one, and ZeroMQ does not try
        again after a refusal.
        """
        if host in self._dialled:
            peer, socket = self._dialled[host]
            self._wire.hang_up(socket)
            self._dial(peer)

    def _dial(self, peer: Peer) -> None:
        socket = self._wire.dial(peer.address, self.keys, peer.public_key, limits=self._limits)
        self._dialled[peer.host] = (peer, socket)

    def _dials(self, other: str) -> bool:
        return self.host < other

    def send(self, host: str, frames: Frames) -> bool:
        """Gives a message to the link; False if the queue is full or there is no connection."""
        if host in self._dialled:
            socket, prefix = self._dialled[host][1], []
        elif host in self._routes:
            socket, prefix = self._listener.socket, [self._routes[host][1]]
        else:
            self.unsent_messages += 1
            return False
        try:
            socket.send_multipart([*prefix, *frames], zmq.NOBLOCK, copy=False)
        except zmq.Again:
            self.unsent_messages += 1
            return False
        except zmq.ZMQError as error:
            if error.errno not in _GONE:
                raise
            self._routes.pop(host, None)
            self.unsent_messages += 1
            return False
        self.sent_messages += 1
        self.sent_bytes += sum(len(frame) for frame in frames)
        return True

    def receive(self) -> Iterator[tuple[str, list[memoryview]]]:
        """Yields the messages that have arrived, each with the host that sent it."""
        for host, (_, socket) in list(self._dialled.items()):
            for frames in self._received_frames(socket):
                yield self._count(host, frames)
        for frames in self._received_frames(self._listener.socket):
            key = self._listener.name_of(frames[-1])
            sender = self._by_key.get(key or "")
            if sender is None or key is None:
                # The host left the address book while it was connected.
                continue
            self._routes[sender] = (key, frames[0].bytes)
            yield self._count(sender, frames[1:])

    def _received_frames(self, socket: Socket) -> Iterator[list[zmq.Frame]]:
        for _ in range(MESSAGES_PER_TURN):
            frames = self._wire.receive(socket)
            if frames is None:
                return
            yield frames

    def _count(self, host: str, frames: list[zmq.Frame]) -> tuple[str, list[memoryview]]:
        views = [frame.buffer for frame in frames]
        self.received_messages += 1
        self.received_bytes += sum(view.nbytes for view in views)
        return host, views

    def wait(self, further: WakePipe, timeout_seconds: float) -> None:
        """Sleeps until a message arrives, the wake pipe wakes this process, or the time is over."""
        sockets = [socket for _, socket in self._dialled.values()]
        waited: list[Any] = [further.fileno(), self._listener.socket, *sockets]
        items = [(one, int(zmq.POLLIN)) for one in waited]
        zmq.zmq_poll(items, int(timeout_seconds * 1000))

    def close(self) -> None:
        """Closes all connections."""
        self._wire.close()


def _identity(peer: Peer) -> tuple[int, str, str]:
    return peer.incarnation, peer.address, peer.public_key
