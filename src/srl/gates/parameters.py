"""Weights between hosts: each version goes at most once to each host, whose memory serves everyone
there.

`Spreading`, where a policy is trained, follows its version and sends the newest weights to every
host that needs them, in parts, a few at a time, so that they hold nothing else up. One transfer per
host is under way; versions that come meanwhile are skipped. `Receiving` puts the parts together and
publishes them in its host's own memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from srl.arena.arena import Arena
from srl.errors import SpecError
from srl.gates.messages import Taken
from srl.gates.messages import Weights as WeightsMessage
from srl.gates.post import Post, Timer, Weights
from srl.net.framing import Body
from srl.services.parameters import ParameterReader, ParameterWriter

PART_BYTES = 1 << 18
WINDOW = 8
"""Parts on their way to one host."""
MAX_SNAPSHOTS = 4
"""Versions of which parts are on their way at the same time, to hosts of different speed."""


def publisher(post: Post, weights: Weights) -> str:
    """The host that a policy's weights come from: its trainers', or for a policy that nobody trains
    the first one of the address book."""
    hosts = post.peers.hosts_of(weights.trainers)
    return next(iter(hosts or (peer.host for peer in post.peers.peers)), "")


def _parts(nbytes: int) -> int:
    return -(-nbytes // PART_BYTES)


@dataclass(slots=True)
class _Snapshot:
    version: int
    data: np.ndarray

    def part(self, number: int) -> np.ndarray:
        return self.data[number * PART_BYTES : (number + 1) * PART_BYTES]


@dataclass(slots=True)
class _Transfer:
    snapshot: _Snapshot
    next: int = 0
    timers: dict[int, Timer] = field(default_factory=dict)
    """Parts that were sent and not acknowledged."""


class Spreading:
    """The publishing side of one policy."""

    def __init__(self, number: int, weights: Weights, arena: Arena, post: Post) -> None:
        self._number = number
        self._weights = weights
        self._post = post
        self._reader = ParameterReader(weights.spec, arena)
        self._parts = _parts(self._reader.nbytes)
        self._has: dict[str, int] = {}
        """The version that each host is known to have."""
        self._transfers: dict[str, _Transfer] = {}
        self._newest: _Snapshot | None = None
        self._publishes = False

    @property
    def busy(self) -> bool:
        """Whether something is under way."""
        return bool(self._transfers)

    def follow(self, gone: frozenset[str]) -> None:
        """Forgets hosts that are gone."""
        self._publishes = publisher(self._post, self._weights) == self._post.own
        for host in gone:
            self._has.pop(host, None)
            self._transfers.pop(host, None)

    def has(self, host: str, version: int) -> None:
        """A host said which version it has."""
        self._has[host] = version
        transfer = self._transfers.get(host)
        if transfer is not None and version >= transfer.snapshot.version:
            del self._transfers[host]

    def turn(self, now: float) -> None:
        """Begins transfers, and goes on with those under way."""
        if not self._publishes:
            self._transfers.clear()
            self._newest = None
            return
        version = self._reader.version
        for host in self._post.hosts(self._weights.spec.readers):
            known = self._has.get(host)
            if known is not None and known < version and host not in self._transfers:
                snapshot = self._snapshot(version)
                if snapshot.version > known:
                    self._transfers[host] = _Transfer(snapshot)
        for host, transfer in self._transfers.items():
            self._go_on(host, transfer, now)
        if self._newest is not None and not self._transfers:
            # Nobody needs it any more; it may be large.
            self._newest = None

    def _snapshot(self, version: int) -> _Snapshot:
        """The newest weights, which all hosts that are ready for them share."""
        newest = self._newest
        alive = {id(transfer.snapshot) for transfer in self._transfers.values()}
        if newest is None or (newest.version < version and len(alive) < MAX_SNAPSHOTS):
            data = np.empty(self._reader.nbytes, np.uint8)
            newest = self._newest = _Snapshot(self._reader.read_bytes(data), data)
        return newest

    def _go_on(self, host: str, transfer: _Transfer, now: float) -> None:
        for part, timer in transfer.timers.items():
            if now >= timer.due:
                timer.again(now)
                self._post.counters.add("resent")
                self._send(host, transfer.snapshot, part)
        while len(transfer.timers) < WINDOW and transfer.next < self._parts:
            if not self._send(host, transfer.snapshot, transfer.next):
                return
            transfer.timers[transfer.next] = Timer(now, 2.0)
            transfer.next += 1

    def _send(self, host: str, snapshot: _Snapshot, part: int) -> bool:
        message = WeightsMessage(self._number, snapshot.version, part)
        return self._post.send(host, message, [snapshot.part(part)])

    def taken(self, host: str, message: Taken) -> None:
        """A part has arrived."""
        transfer = self._transfers.get(host)
        if transfer is None or transfer.snapshot.version != message.version:
            self._post.counters.add("stale")
            return
        transfer.timers.pop(message.part, None)
        if transfer.next == self._parts and not transfer.timers:
            del self._transfers[host]
            self._has[host] = message.version
            self._post.counters.add("weights")


class Receiving:
    """The receiving side of one policy."""

    def __init__(self, number: int, weights: Weights, arena: Arena, post: Post) -> None:
        self._number = number
        self._weights = weights
        self._post = post
        self._reader = ParameterReader(weights.spec, arena)
        self._writer = ParameterWriter(weights.spec, arena)
        self._source = ""
        self._data: np.ndarray | None = None
        self._version = -1
        """Of which parts have come."""
        self._missing: set[int] = set()

    @property
    def busy(self) -> bool:
        """What is to come is the sender's to watch."""
        return False

    @property
    def version(self) -> int:
        """The version that this host has."""
        return self._reader.version

    def follow(self, gone: frozenset[str]) -> None:
        """What has come as a whole stays; parts of one publisher's weights fit no other's."""
        source = publisher(self._post, self._weights)
        if source != self._source or source in gone:
            self._source, self._version = source, -1

    def turn(self, now: float) -> None:
        """Nothing to send."""

    def weights(self, host: str, message: WeightsMessage, body: Body) -> None:
        """A part has come; with the last one the weights are published here."""
        if host != publisher(self._post, self._weights):
            raise SpecError(f"weights of {self._weights.spec.policy!r}: {host} does not train it.")
        nbytes = self._reader.nbytes
        if message.part >= _parts(nbytes):
            raise SpecError(f"weights: expected {_parts(nbytes)} parts, got part {message.part}.")
        have = self._reader.version
        if message.version <= have or message.version < self._version:
            self._post.counters.add("stale")
            if message.version > have:
                return
        else:
            if message.version > self._version or self._data is None:
                if self._data is None:
                    self._data = np.empty(nbytes, np.uint8)
                self._version = message.version
                self._missing = set(range(_parts(nbytes)))
            first = message.part * PART_BYTES
            body.copy_into([self._data[first : first + PART_BYTES].data])
            self._missing.discard(message.part)
            if not self._missing:
                self._writer.publish_bytes(self._version, self._data)
        self._post.send(host, Taken(self._number, message.version, message.part))
