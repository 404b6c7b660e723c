"""Weights between hosts: each version goes at most once to each host, whose memory serves everyone
there.

Hosts pass them on along a tree (`gates/route.py`), so that no host sends them to more than a few.
`Spreading` follows the version that its host has and sends the newest weights to the hosts below
it, in parts, a few at a time, so that they hold nothing else up. One transfer per host is under
way; versions that come meanwhile are skipped. `Receiving` puts the parts together and publishes
them in its host's own memory, from where they go on.

Every host tells the root of the tree what it has. Where the host above one is silent, or passes
nothing on, the root sends to that one itself, until the address book says who is there.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from srl.arena.arena import Arena
from srl.errors import SpecError
from srl.gates.messages import Taken, Weights
from srl.gates.post import Post, Timer
from srl.gates.route import Route
from srl.net.framing import Body
from srl.services.parameters import ParameterReader, ParameterWriter

PART_BYTES = 1 << 18
WINDOW = 8
"""Parts on their way to one host."""
PART_SECONDS = (2.0, 3.0)
"""A part is sent again after so long, for the first time and later."""
MAX_SNAPSHOTS = 4
"""Versions of which parts are on their way at the same time, to hosts of different speed."""
LOOK_SECONDS = 0.25
"""How often the root looks for hosts that get nothing."""
SILENT_SECONDS = 3.0
"""A host that the root has not heard of for so long passes nothing on; all speak once a second."""
STUCK_SECONDS = 5.0
"""A host to which nothing has come for so long, though the one above it has newer weights, gets
nothing from that one."""
QUIET_SECONDS = 2.0
"""A host that has sent part of a version, and for so long nothing more, is not waited for."""


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


@dataclass(slots=True)
class _Host:
    """What a host has, as it last said."""

    heard: float
    version: int | None = None
    """None: it has not said yet."""
    coming: int = 0
    """Parts of a newer one."""
    moved: float = 0.0
    """When that last changed, or when the host above it last got ahead of it."""


class Spreading:
    """The sending side of one policy."""

    def __init__(self, number: int, route: Route, arena: Arena, post: Post) -> None:
        self._number = number
        self._route = route
        self._post = post
        self._reader = ParameterReader(route.spec, arena)
        self._parts = _parts(self._reader.nbytes)
        self._hosts: dict[str, _Host] = {}
        self._below: tuple[str, ...] = ()
        self._orphans: list[str] = []
        """Hosts further down that get nothing from the one above them."""
        self._next_look = 0.0
        self._transfers: dict[str, _Transfer] = {}
        self._newest: _Snapshot | None = None

    @property
    def busy(self) -> bool:
        """Whether something is under way."""
        return bool(self._transfers)

    def follow(self, gone: frozenset[str]) -> None:
        """Forgets hosts that are gone, and those that are another's to serve now."""
        now, own = self._post.clock(), self._post.own
        self._below = self._route.below(own)
        known = self._route.hosts[1:] if own == self._route.root else self._below
        self._hosts = {
            host: _Host(now) if host in gone else self._hosts.get(host) or _Host(now)
            for host in known
        }
        self._orphans, self._next_look = [], now + LOOK_SECONDS
        for host in self._transfers.keys() - (set(self._below) - gone):
            del self._transfers[host]

    def has(self, host: str, version: int, coming: int) -> None:
        """A host said which version it has, and how many parts of a newer one have come."""
        one = self._hosts.get(host)
        if one is None:
            return
        one.heard = self._post.clock()
        if (version, coming) != (one.version, one.coming):
            one.version, one.coming, one.moved = version, coming, one.heard
        transfer = self._transfers.get(host)
        if transfer is not None and version >= transfer.snapshot.version:
            del self._transfers[host]

    def turn(self, now: float) -> None:
        """Begins transfers, and goes on with those under way."""
        if not self._hosts:
            self._newest = None
            return
        version = self._reader.version
        if now >= self._next_look:
            self._next_look = now + LOOK_SECONDS
            self._orphans = self._find_orphans(version)
        for host in (*self._below, *self._orphans):
            known = self._hosts[host].version
            if known is not None and known < version and host not in self._transfers:
                snapshot = self._snapshot(version)
                if snapshot.version > known:
                    self._transfers[host] = _Transfer(snapshot)
        for host, transfer in self._transfers.items():
            self._go_on(host, transfer, now)
        if self._newest is not None and not self._transfers:
            # Nobody needs it any more; it may be large.
            self._newest = None

    def _find_orphans(self, version: int) -> list[str]:
        """Hosts that are behind because the one above them is silent, or passes nothing on. Only
        the root knows of any."""
        found = []
        # Not the clock: where this gate itself is late, it has heard everyone late.
        now = max(one.heard for one in self._hosts.values())
        for host, one in self._hosts.items():
            above = self._hosts.get(self._route.above(host))
            if above is None or one.version is None or one.version >= version:
                continue
            if above.version is None or above.version <= one.version:
                one.moved = now
            is_here = now - one.heard <= SILENT_SECONDS
            is_cut_off = now - above.heard > SILENT_SECONDS
            if is_here and (is_cut_off or now - one.moved > STUCK_SECONDS):
                found.append(host)
        return found

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
            transfer.timers[transfer.next] = Timer(now, *PART_SECONDS)
            transfer.next += 1

    def _send(self, host: str, snapshot: _Snapshot, part: int) -> bool:
        message = Weights(self._number, snapshot.version, part)
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
            self._hosts[host].version = message.version
            self._post.counters.add("weights")


class Receiving:
    """The receiving side of one policy."""

    def __init__(self, number: int, route: Route, arena: Arena, post: Post) -> None:
        self._number = number
        self._route = route
        self._post = post
        self._reader = ParameterReader(route.spec, arena)
        self._writer = ParameterWriter(route.spec, arena)
        self._root = ""
        self.told: frozenset[str] = frozenset()
        """Hosts that are told which version this one has."""
        self._data: np.ndarray | None = None
        self._version = -1
        """Of which parts have come."""
        self._sender = ""
        """The host they came from, ..."""
        self._came = 0.0
        """... and when the last one did."""
        self._missing: set[int] = set()

    @property
    def busy(self) -> bool:
        """What is to come is the sender's to watch."""
        return False

    @property
    def version(self) -> int:
        """The version that this host has."""
        return self._reader.version

    @property
    def coming(self) -> int:
        """Parts of a newer version that have come."""
        newer = self._version > self._reader.version
        return _parts(self._reader.nbytes) - len(self._missing) if newer else 0

    def follow(self, gone: frozenset[str]) -> None:
        """What has come as a whole stays; parts of one publisher's weights fit no other's."""
        self.told = self._route.told(self._post.own)
        root = self._route.root
        if root != self._root or root in gone:
            self._root, self._version = root, -1

    def turn(self, now: float) -> None:
        """Nothing to send."""

    def weights(self, host: str, message: Weights, body: Body) -> None:
        """A part has come; with the last one the weights are published here.

        Gates may have different address books for a moment, so any host of the tree may be the one
        that passes them on.
        """
        if host not in self._route or self._post.own == self._route.root:
            raise SpecError(f"weights of policy {self._number}: {host} has none for this host.")
        nbytes = self._reader.nbytes
        if message.part >= _parts(nbytes):
            raise SpecError(f"weights: expected {_parts(nbytes)} parts, got part {message.part}.")
        if message.version <= self._reader.version:
            self._post.counters.add("stale")
        elif not self._takes(host, message.version):
            self._post.counters.add("stale")
            return
        else:
            assert self._data is not None
            first = message.part * PART_BYTES
            body.copy_into([self._data[first : first + PART_BYTES].data])
            self._missing.discard(message.part)
            if not self._missing:
                self._writer.publish_bytes(self._version, self._data)
        self._post.send(host, Taken(self._number, message.version, message.part))

    def _takes(self, host: str, version: int) -> bool:
        """Whether a part is one of those that are put together here: of the newest version, and all
        from one host, unless that one has fallen silent."""
        now = self._post.clock()
        if (host, version) != (self._sender, self._version):
            if version <= self._version and now - self._came < QUIET_SECONDS:
                return False
            if self._data is None:
                self._data = np.empty(self._reader.nbytes, np.uint8)
            self._sender, self._version = host, version
            self._missing = set(range(_parts(self._reader.nbytes)))
        self._came = now
        return True
