"""Links between the gates of a run: one connection for each pair of hosts that need each other.

Of two hosts the one whose name comes first dials, the other one listens; either may then send. A
link loses what is under way when it breaks, and mends by itself: those above send again what was
not answered. What cannot be sent now is not kept here either, so that nothing piles up.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from typing import Any

import zmq

from srl.arena.shm import Bell
from srl.errors import NetError
from srl.net.framing import Frames
from srl.net.inbox import Socket
from srl.net.keys import KeyPair, new_pair
from srl.net.limits import Limits
from srl.net.peers import Peer, Peers
from srl.net.sockets import LIMITS, LOOPBACK, Wire

log = logging.getLogger("srl.gate")

MESSAGES_PER_TURN = 64
"""Received from one connection before the others have their turn."""
_GONE = (zmq.EHOSTUNREACH, zmq.ENOTSOCK)


class Links:
    """A gate's connections, by the names of the hosts at their other ends."""

    def __init__(self, host: str, address: str = LOOPBACK, *, limits: Limits = LIMITS) -> None:
        self.host = host
        self.keys: KeyPair = new_pair()
        self._wire = Wire()
        self._limits = limits
        self._listener = self._wire.listen(address, self.keys, {}, limits=limits)
        self._dialled: dict[str, tuple[Peer, Socket]] = {}
        self._by_key: dict[str, str] = {}
        self._routes: dict[str, tuple[str, bytes]] = {}
        """The key and the route of each host that has dialled here."""
        self.sent_messages = self.sent_bytes = 0
        self.received_messages = self.received_bytes = 0
        self.unsent_messages = 0
        """Messages for which there was no room, or no connection yet."""

    @property
    def address(self) -> str:
        """Where others reach this gate."""
        return self._listener.address

    @property
    def refused(self) -> int:
        """Connections of strangers that were turned away, and of others that were ended because of
        what they sent."""
        return self._listener.refused + self._wire.cut_off

    def update(self, peers: Peers, needed: Collection[str]) -> None:
        """Follows the address book: lets in those it names, dials those that are needed."""
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
            if found is None or _place(found) != _place(peer):
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
                    # What one host says of itself must not harm those that could do without it.
                    log.error("host %r cannot be reached: %s", host, error)

    def redial(self, host: str) -> None:
        """Dials anew, if it is for this end to do.

        A host that was dialled before its own address book named this one has turned it away, and
        ZeroMQ does not try again after that.
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
        """Hands a message to the link; False if there is no room or no connection now."""
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
        """Messages that have come, each with the host that sent it."""
        for host, (_, socket) in list(self._dialled.items()):
            for frames in self._arrived(socket):
                yield self._count(host, frames)
        for frames in self._arrived(self._listener.socket):
            key = self._listener.name_of(frames[-1])
            sender = self._by_key.get(key or "")
            if sender is None or key is None:
                # Its host left the book while it was connected.
                continue
            self._routes[sender] = (key, frames[0].bytes)
            yield self._count(sender, frames[1:])

    def _arrived(self, socket: Socket) -> Iterator[list[zmq.Frame]]:
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

    def wait(self, further: Bell, timeout_seconds: float) -> None:
        """Sleeps until a message has come, `further` is rung, or the time is over."""
        sockets = [socket for _, socket in self._dialled.values()]
        waited: list[Any] = [further.fileno(), self._listener.socket, *sockets]
        items = [(one, int(zmq.POLLIN)) for one in waited]
        zmq.zmq_poll(items, int(timeout_seconds * 1000))

    def close(self) -> None:
        """Hangs up."""
        self._wire.close()


def _place(peer: Peer) -> tuple[int, str, str]:
    return peer.incarnation, peer.address, peer.public_key
