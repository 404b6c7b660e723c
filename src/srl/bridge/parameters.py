"""Weights between hosts: each version goes at most once to each host, and all its readers share it.

Hosts pass weights on along a tree (`bridge/route.py`), so that each host sends them to only a few.
`WeightsSender` watches the version that its host has, and sends the newest weights to the hosts
below it. It sends a few parts at a time, so that other messages need not wait. There is one
transfer per host at a time; versions that are published meanwhile are skipped. `WeightsReceiver`
puts the parts together and publishes them in its host's memory. From there they are passed on.

Every host tells the root of the tree which version it has. If the host above another one is silent,
or passes nothing on, the root sends to the lower host itself, until the address book changes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from srl.arena.arena import Arena
from srl.bridge.messages import ChunkStored, WeightsChunk
from srl.bridge.messenger import PeerMessenger, Timer
from srl.bridge.route import Route
from srl.errors import SpecError
from srl.net.framing import Body
from srl.services.parameters import ParameterReader, ParameterWriter

PART_BYTES = 1 << 18
WINDOW = 8
"""Largest number of unanswered parts on their way to one host."""
PART_SECONDS = (2.0, 3.0)
"""Time until a part is sent again: the first time, and every later time."""
MAX_SNAPSHOTS = 4
"""Largest number of versions on their way at the same time, to hosts of different speed."""
LOOK_SECONDS = 0.25
"""How often the root looks for hosts that receive nothing."""
SILENT_SECONDS = 3.0
"""A host whose last report is older than this passes nothing on. Each host reports every second."""
STUCK_SECONDS = 5.0
"""If the host above has newer weights, and nothing has come to the lower host for this time, the
root sends to the lower host."""
QUIET_SECONDS = 2.0
"""A host that began to send a version, and sent no part for this time, is not waited for."""


def _num_parts(nbytes: int) -> int:
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
    """Parts that were sent and not answered."""


@dataclass(slots=True)
class _HostWeights:
    """The weights that a host has, by its last report."""

    heard: float
    """Time of its last report."""
    version: int | None = None
    """The version that it has; None before its first report."""
    coming: int = 0
    """Number of parts of a newer version that it has."""
    last_progress: float = 0.0
    """When that last changed, or when the host above it last had no newer version."""


class WeightsSender:
    """Sends one policy's weights to other hosts."""

    def __init__(self, number: int, route: Route, arena: Arena, messenger: PeerMessenger) -> None:
        self._number = number
        self._route = route
        self._messenger = messenger
        self._reader = ParameterReader(route.spec, arena)
        self._num_parts = _num_parts(self._reader.nbytes)
        self._hosts: dict[str, _HostWeights] = {}
        self._hosts_below: tuple[str, ...] = ()
        self._unserved: list[str] = []
        """Hosts further down the tree that receive nothing from the host above them."""
        self._next_look = 0.0
        self._transfers: dict[str, _Transfer] = {}
        self._newest: _Snapshot | None = None

    @property
    def busy(self) -> bool:
        """Whether a transfer is under way."""
        return bool(self._transfers)

    def follow(self, gone: frozenset[str]) -> None:
        """Applies a new address book: drops hosts that are `gone`, or that another host serves."""
        now, own = self._messenger.clock(), self._messenger.own
        self._hosts_below = self._route.below(own)
        known = self._route.hosts[1:] if own == self._route.root else self._hosts_below
        self._hosts = {
            host: _HostWeights(now) if host in gone else self._hosts.get(host) or _HostWeights(now)
            for host in known
        }
        self._unserved, self._next_look = [], now + LOOK_SECONDS
        for host in self._transfers.keys() - (set(self._hosts_below) - gone):
            del self._transfers[host]

    def has(self, host: str, version: int, coming: int) -> None:
        """Handles a host's report: its version, and how many parts of a newer one it has."""
        one = self._hosts.get(host)
        if one is None:
            return
        one.heard = self._messenger.clock()
        if (version, coming) != (one.version, one.coming):
            one.version, one.coming, one.last_progress = version, coming, one.heard
        transfer = self._transfers.get(host)
        if transfer is not None and version >= transfer.snapshot.version:
            del self._transfers[host]

    def turn(self, now: float) -> None:
        """Begins transfers, and continues those under way."""
        if not self._hosts:
            self._newest = None
            return
        version = self._reader.version
        if now >= self._next_look:
            self._next_look = now + LOOK_SECONDS
            self._unserved = self._find_unserved(version)
        for host in (*self._hosts_below, *self._unserved):
            known = self._hosts[host].version
            if known is not None and known < version and host not in self._transfers:
                snapshot = self._share_snapshot(version)
                if snapshot.version > known:
                    self._transfers[host] = _Transfer(snapshot)
        for host, transfer in self._transfers.items():
            self._continue(host, transfer, now)
        if self._newest is not None and not self._transfers:
            # No transfer needs it any more, and it may be large.
            self._newest = None

    def _find_unserved(self, version: int) -> list[str]:
        """Hosts with old weights because the host above them is silent, or passes nothing on.

        Only the root finds any.
        """
        found = []
        # Not the clock: if this bridge itself is late, it has read all reports late.
        now = max(one.heard for one in self._hosts.values())
        for host, one in self._hosts.items():
            above = self._hosts.get(self._route.above(host))
            if above is None or one.version is None or one.version >= version:
                continue
            if above.version is None or above.version <= one.version:
                one.last_progress = now
            is_here = now - one.heard <= SILENT_SECONDS
            is_cut_off = now - above.heard > SILENT_SECONDS
            if is_here and (is_cut_off or now - one.last_progress > STUCK_SECONDS):
                found.append(host)
        return found

    def _share_snapshot(self, version: int) -> _Snapshot:
        """A copy of the newest weights, which the transfers to several hosts share."""
        newest = self._newest
        alive = {id(transfer.snapshot) for transfer in self._transfers.values()}
        if newest is None or (newest.version < version and len(alive) < MAX_SNAPSHOTS):
            data = np.empty(self._reader.nbytes, np.uint8)
            newest = self._newest = _Snapshot(self._reader.read_bytes(data), data)
        return newest

    def _continue(self, host: str, transfer: _Transfer, now: float) -> None:
        for part, timer in transfer.timers.items():
            if now >= timer.due:
                timer.again(now)
                self._messenger.counters.add("resent")
                self._send(host, transfer.snapshot, part)
        while len(transfer.timers) < WINDOW and transfer.next < self._num_parts:
            if not self._send(host, transfer.snapshot, transfer.next):
                return
            transfer.timers[transfer.next] = Timer(now, *PART_SECONDS)
            transfer.next += 1

    def _send(self, host: str, snapshot: _Snapshot, part: int) -> bool:
        message = WeightsChunk(self._number, snapshot.version, part)
        return self._messenger.send(host, message, [snapshot.part(part)])

    def on_chunk_stored(self, host: str, message: ChunkStored) -> None:
        """Handles the answer to a part: the part has arrived."""
        transfer = self._transfers.get(host)
        if transfer is None or transfer.snapshot.version != message.version:
            self._messenger.counters.add("stale")
            return
        transfer.timers.pop(message.part, None)
        if transfer.next == self._num_parts and not transfer.timers:
            del self._transfers[host]
            self._hosts[host].version = message.version
            self._messenger.counters.add("weights")


class WeightsReceiver:
    """Receives one policy's weights, and publishes them on this host."""

    def __init__(self, number: int, route: Route, arena: Arena, messenger: PeerMessenger) -> None:
        self._number = number
        self._route = route
        self._messenger = messenger
        self._reader = ParameterReader(route.spec, arena)
        self._writer = ParameterWriter(route.spec, arena)
        self._root = ""
        self.reports_to: frozenset[str] = frozenset()
        """Hosts to which this one reports its version."""
        self._data: np.ndarray | None = None
        self._version = -1
        """The version whose parts are being received, ..."""
        self._sender = ""
        """... the host that sends them, ..."""
        self._last_part_time = 0.0
        """... and when the last part came."""
        self._missing: set[int] = set()

    @property
    def busy(self) -> bool:
        """Always False: the sender watches a transfer."""
        return False

    @property
    def version(self) -> int:
        """The version that this host has."""
        return self._reader.version

    @property
    def coming(self) -> int:
        """Number of parts of a newer version that have arrived."""
        newer = self._version > self._reader.version
        return _num_parts(self._reader.nbytes) - len(self._missing) if newer else 0

    def follow(self, gone: frozenset[str]) -> None:
        """Applies a new address book.

        Published weights stay. If the root has changed or restarted, incomplete weights are
        dropped: their parts do not fit to the weights of another publisher.
        """
        self.reports_to = self._route.reports_to(self._messenger.own)
        root = self._route.root
        if root != self._root or root in gone:
            self._root, self._version = root, -1

    def turn(self, now: float) -> None:
        """Does nothing: there is nothing to send."""

    def on_weights_chunk(self, host: str, message: WeightsChunk, body: Body) -> None:
        """Handles an arrived part; the last part publishes the weights here.

        Bridges may have different address books for a moment. So any host of the tree may send.
        """
        if host not in self._route or self._messenger.own == self._route.root:
            raise SpecError(
                f"weights of policy {self._number}: {host} must not send them to this host."
            )
        nbytes = self._reader.nbytes
        if message.part >= _num_parts(nbytes):
            raise SpecError(
                f"weights chunk: expected {_num_parts(nbytes)} parts, got part {message.part}."
            )
        if message.version <= self._reader.version:
            self._messenger.counters.add("stale")
        elif not self._accepts(host, message.version):
            self._messenger.counters.add("stale")
            return
        else:
            assert self._data is not None
            first = message.part * PART_BYTES
            body.copy_into([self._data[first : first + PART_BYTES].data])
            self._missing.discard(message.part)
            if not self._missing:
                self._writer.publish_bytes(self._version, self._data)
        self._messenger.send(host, ChunkStored(self._number, message.version, message.part))

    def _accepts(self, host: str, version: int) -> bool:
        """Whether a part belongs to the weights that are being received.

        All parts must be of the newest version and from one host, unless that host is silent.
        """
        now = self._messenger.clock()
        if (host, version) != (self._sender, self._version):
            if version <= self._version and now - self._last_part_time < QUIET_SECONDS:
                return False
            if self._data is None:
                self._data = np.empty(self._reader.nbytes, np.uint8)
            self._sender, self._version = host, version
            self._missing = set(range(_num_parts(self._reader.nbytes)))
        self._last_part_time = now
        return True
