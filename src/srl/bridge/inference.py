"""Inference between hosts.

On a host with clients and without servers, `RequestSender` takes submitted slots. It sends their
rows to the host with servers that has the fewest rows to answer, and writes the replies back. On a
host with servers, `RequestReceiver` puts the rows into the same slots and sends the replies back.

Every request has a number, by which messages that come twice or too late are recognised. A request
that is not answered in time is sent again, to another host if there is one. A host that did not
answer in time, or to which nothing could be sent, counts as unresponsive until it answers. Requests
then go to other hosts, and this host only gets a copy of a request now and then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from srl.arena.arena import Arena
from srl.bridge.messages import MAX_SLOTS, ReplyBatch, RequestBatch
from srl.bridge.messenger import MAX_RESEND_SECONDS, RESEND_SECONDS, PeerMessenger, Timer
from srl.errors import SpecError
from srl.net.framing import MAX_FRAMES, Body
from srl.streams.inference import TAKEN, InferenceSpec
from srl.streams.remote_requests import RemoteRequests

CHECK_SECONDS = 0.1
"""How often slots are checked for requests that wait too long."""
PROBE_SECONDS = 1.0
"""How often an unresponsive host gets a copy of a request, to see whether it answers again."""


@dataclass(slots=True)
class _PendingRequest:
    """A request of a client here that waits for its reply."""

    seq: int
    rows: int
    since: float
    timer: Timer
    host: str = ""
    """The last host that was chosen for it, ..."""
    sent: bool = False
    """... and whether it was sent there."""


class RequestSender:
    """The clients' side of one stream: sends requests to hosts with servers."""

    def __init__(
        self, number: int, spec: InferenceSpec, arena: Arena, messenger: PeerMessenger
    ) -> None:
        self._number = number
        self._spec = spec
        self._messenger = messenger
        self._remote_requests = RemoteRequests(spec, arena)
        self._seq = 0
        self._pending: dict[int, _PendingRequest] = {}
        self._open_rows: dict[str, int] = {}
        """Number of rows that each host still has to answer."""
        self._reply_seconds: dict[str, float] = {}
        """How long each host takes to answer, as a moving average."""
        self._unresponsive: dict[str, float] = {}
        """Hosts that did not answer, and when each gets the next copy of a request."""
        self._next_check = 0.0
        self._has_local_servers = False

    @property
    def busy(self) -> bool:
        """Whether any request waits for its reply."""
        return bool(self._pending)

    def follow(self, gone: frozenset[str]) -> None:
        """Applies a new address book: requests to hosts that are `gone` go to others."""
        self._has_local_servers = bool(self._messenger.indices_here(self._spec.servers))
        for host in gone:
            self._open_rows.pop(host, None)
            self._reply_seconds.pop(host, None)
            self._unresponsive.pop(host, None)
        lost = [slot for slot, request in self._pending.items() if request.host in gone]
        for slot in lost:
            del self._pending[slot]
        if lost:
            self._remote_requests.put_back(lost)

    def turn(self, now: float) -> None:
        """Sends submitted requests, and sends those again that were not answered in time."""
        hosts = [] if self._has_local_servers else self._messenger.hosts(self._spec.servers)
        if hosts:
            fresh = self._remote_requests.take()
            for slot in fresh:
                if slot in self._pending:
                    # A request of a client that died. The restarted client has submitted a new one.
                    self._drop(slot)
                self._seq += 1
                rows = self._remote_requests.memory.num_rows[slot]
                self._pending[slot] = _PendingRequest(self._seq, rows, now, Timer(now))
            self._send(fresh, hosts, now)
            if self._unresponsive and fresh:
                self._probe_unresponsive(fresh[0], hosts, now)
        if self._pending and now >= self._next_check:
            self._next_check = now + CHECK_SECONDS
            self._resend_late(hosts, now)

    def _resend_late(self, hosts: list[str], now: float) -> None:
        late = []
        for slot, request in list(self._pending.items()):
            if not self._remote_requests.holds(slot):
                # The client died, and its request was withdrawn.
                self._drop(slot)
            elif now >= request.timer.due or not request.sent:
                late.append(slot)
        if late and not hosts:
            for slot in late:
                self._drop(slot)
            self._remote_requests.put_back(late)
        elif late:
            sent = [request for request in map(self._pending.__getitem__, late) if request.sent]
            for request in sent:
                self._mark_unresponsive(request.host, now)
            self._messenger.counters.add("resent", len(sent))
            self._send(late, hosts, now)

    def _mark_unresponsive(self, host: str, now: float) -> None:
        self._unresponsive.setdefault(host, now + PROBE_SECONDS)

    def _probe_unresponsive(self, slot: int, hosts: list[str], now: float) -> None:
        """Sends copies of a request to unresponsive hosts; the first reply counts."""
        for host, due in self._unresponsive.items():
            if now >= due and host in hosts and host != self._pending[slot].host:
                self._unresponsive[host] = now + PROBE_SECONDS
                self._send_to(host, [slot])

    def _send(self, slots: list[int], hosts: list[str], now: float) -> None:
        responsive = [host for host in hosts if host not in self._unresponsive]
        chosen: dict[str, list[int]] = {}
        for slot in slots:
            request = self._pending[slot]
            host = self._choose(request.host, responsive, hosts)
            self._count_rows(request, -1)
            if request.sent:
                request.timer.again(now)
            else:
                request.timer = Timer(now, self._first_timeout(host))
            request.host, request.sent = host, True
            self._count_rows(request, 1)
            chosen.setdefault(host, []).append(slot)
        for host, group in chosen.items():
            for some in _split(group, len(self._remote_requests.pixels)):
                if not self._send_to(host, some):
                    self._mark_unresponsive(host, now)
                    for slot in some:
                        self._pending[slot].sent = False

    def _choose(self, last: str, responsive: list[str], hosts: list[str]) -> str:
        """The host with the fewest rows to answer, among the responsive hosts.

        If there is none, it is chosen among the hosts other than the last one.
        """
        some = responsive or [host for host in hosts if host != last] or hosts
        return min(some, key=lambda name: self._open_rows.get(name, 0))

    def _send_to(self, host: str, slots: list[int]) -> bool:
        requests = [self._pending[slot] for slot in slots]
        rows = [one.rows for one in requests]
        message = RequestBatch(self._number, slots, rows, [one.seq for one in requests])
        parts = (
            part
            for slot, count in zip(slots, rows, strict=True)
            for part in self._remote_requests.request_parts(slot, count)
        )
        pixels = (flag for _ in slots for flag in self._remote_requests.pixels)
        return self._messenger.send(host, message, parts, pixels)

    def _first_timeout(self, host: str) -> float:
        """Time until a request is sent again. A slow host gets more time, to add no load there."""
        usual = 4 * self._reply_seconds.get(host, 0.0)
        return min(max(RESEND_SECONDS, usual), 2 * MAX_RESEND_SECONDS)

    def _count_rows(self, request: _PendingRequest, sign: int) -> None:
        if request.host:
            self._open_rows[request.host] = max(
                0, self._open_rows.get(request.host, 0) + sign * request.rows
            )

    def _drop(self, slot: int) -> None:
        self._count_rows(self._pending.pop(slot), -1)

    def on_reply_batch(self, host: str, message: ReplyBatch, body: Body) -> None:
        """Handles arrived replies: writes those of pending requests, and ignores the others."""
        _check_message(self._spec, message.slots, message.rows, message.seqs, message.versions)
        self._unresponsive.pop(host, None)
        now = self._messenger.clock()
        wanted: list[int] = []
        targets: list[memoryview | int] = []
        for slot, rows, seq in zip(message.slots, message.rows, message.seqs, strict=True):
            request = self._pending.get(slot)
            parts = self._remote_requests.reply_parts(slot, rows)
            if request is None or request.seq != seq or not self._remote_requests.holds(slot):
                self._messenger.counters.add("stale")
                targets += [part.nbytes for part in parts]
                continue
            if request.rows != rows:
                raise SpecError(
                    f"reply batch: expected {request.rows} rows, got {rows}, from {host}."
                )
            wanted.append(slot)
            targets += parts
        body.copy_into(targets)
        versions = dict(zip(message.slots, message.versions, strict=True))
        for slot in wanted:
            request = self._pending[slot]
            self._drop(slot)
            self._remote_requests.memory.version[slot] = versions[slot]
            if host == request.host:
                took = now - request.timer.sent
                self._reply_seconds[host] = 0.9 * self._reply_seconds.get(host, took) + 0.1 * took
            self._messenger.counters.add("wait_requests_ns", int((now - request.since) * 1e9))
        self._remote_requests.answer(wanted)


@dataclass(slots=True)
class _ReceivedRequest:
    """A request of a client on another host."""

    host: str
    seq: int
    rows: int
    saved_parts: list[bytearray] | None = None
    """The request's bytes, while a server still reads an older request in the slot."""


class RequestReceiver:
    """The servers' side of one stream: passes requests of other hosts to the servers here."""

    def __init__(
        self, number: int, spec: InferenceSpec, arena: Arena, messenger: PeerMessenger
    ) -> None:
        self._number = number
        self._spec = spec
        self._messenger = messenger
        self._remote_requests = RemoteRequests(spec, arena)
        self._open: dict[int, _ReceivedRequest] = {}
        self._queued: dict[int, _ReceivedRequest] = {}
        """Requests that wait because a server still reads an older request in their slot."""
        self._answered: dict[int, _ReceivedRequest] = {}
        """The last answered request of each slot. Its reply is still in the slot, so it can be sent
        again if it was lost."""

    @property
    def busy(self) -> bool:
        """Whether requests are queued. For other requests the servers wake the bridge."""
        return bool(self._queued)

    def follow(self, gone: frozenset[str]) -> None:
        """Applies a new address book: drops the requests of hosts that are `gone`."""
        for known in (self._open, self._queued, self._answered):
            for slot, one in list(known.items()):
                if one.host in gone:
                    del known[slot]
                    if known is self._open:
                        self._remote_requests.withdraw(slot)

    def on_request_batch(self, host: str, message: RequestBatch, body: Body) -> None:
        """Handles arrived requests: passes new ones to the servers, answers repeated ones again."""
        _check_message(self._spec, message.slots, message.rows, message.seqs)
        fresh: list[int] = []
        again: list[int] = []
        queued: dict[int, _ReceivedRequest] = {}
        targets: list[memoryview | int] = []
        for slot, rows, seq in zip(message.slots, message.rows, message.seqs, strict=True):
            client = self._spec.clients[slot // self._spec.slots_per_client]
            if self._messenger.host_by_process.get(client) != host:
                raise SpecError(
                    f"request batch: slot {slot} belongs to {client}, which is not on {host}."
                )
            parts = self._remote_requests.request_parts(slot, rows)
            if self._is_old(slot, host, seq):
                self._messenger.counters.add("stale")
                targets += [part.nbytes for part in parts]
                last = self._answered.get(slot)
                if last is not None and (last.host, last.seq) == (host, seq):
                    again.append(slot)
            elif self._remote_requests.withdraw(slot):
                self._open.pop(slot, None)
                fresh.append(slot)
                targets += parts
            else:
                saved_parts = [bytearray(part.nbytes) for part in parts]
                queued[slot] = _ReceivedRequest(host, seq, rows, saved_parts)
                targets += [memoryview(part) for part in saved_parts]
        body.copy_into(targets)
        positions = {slot: i for i, slot in enumerate(message.slots)}
        for slot in fresh:
            at = positions[slot]
            self._begin(slot, _ReceivedRequest(host, message.seqs[at], message.rows[at]))
        self._remote_requests.submit(fresh)
        self._queued.update(queued)
        if again:
            self._reply(host, again, self._answered)

    def _is_old(self, slot: int, host: str, seq: int) -> bool:
        known = (self._open.get(slot), self._queued.get(slot), self._answered.get(slot))
        return any(one is not None and one.host == host and seq <= one.seq for one in known)

    def _begin(self, slot: int, one: _ReceivedRequest) -> None:
        self._open[slot] = one
        self._answered.pop(slot, None)
        self._remote_requests.memory.num_rows[slot] = one.rows
        self._messenger.counters.add("requests")

    def turn(self, now: float) -> None:
        """Sends the replies that the servers have written."""
        if self._queued:
            self._submit_queued()
        if not self._open:
            return
        ready: dict[str, list[int]] = {}
        for slot in self._remote_requests.answered():
            one = self._open.get(slot)
            if one is not None:
                ready.setdefault(one.host, []).append(slot)
        for host, slots in ready.items():
            for some in _split(slots, len(self._remote_requests.pixels)):
                if self._reply(host, some, self._open):
                    for slot in some:
                        self._answered[slot] = self._open.pop(slot)
                        self._remote_requests.withdraw(slot)

    def _submit_queued(self) -> None:
        for slot, one in list(self._queued.items()):
            remote = self._remote_requests
            if remote.memory.status[slot] == TAKEN or not remote.withdraw(slot):
                continue
            del self._queued[slot]
            assert one.saved_parts is not None
            for part, data in zip(
                remote.request_parts(slot, one.rows), one.saved_parts, strict=True
            ):
                part[:] = data
            self._begin(slot, _ReceivedRequest(one.host, one.seq, one.rows))
            remote.submit([slot])

    def _reply(self, host: str, slots: list[int], known: dict[int, _ReceivedRequest]) -> bool:
        rows = [known[slot].rows for slot in slots]
        versions = [self._remote_requests.memory.version[slot] for slot in slots]
        seqs = [known[slot].seq for slot in slots]
        parts = (
            part
            for slot, count in zip(slots, rows, strict=True)
            for part in self._remote_requests.reply_parts(slot, count)
        )
        self._messenger.counters.add("replies", len(slots))
        return self._messenger.send(
            host, ReplyBatch(self._number, slots, rows, seqs, versions), parts
        )


def most_slots(arrays: int) -> int:
    """Largest number of slots in one message, for slots of `arrays` arrays."""
    return max(1, min(MAX_SLOTS, (MAX_FRAMES - 1) // max(1, arrays)))


def _split(slots: Iterable[int], arrays: int) -> Iterator[list[int]]:
    """Splits slots into lists that each fit into one message."""
    rest = iter(slots)
    while piece := list(islice(rest, most_slots(arrays))):
        yield piece


def _check_message(
    spec: InferenceSpec, slots: list[int], rows: list[int], *more: Sequence[int]
) -> None:
    fits = len(set(slots)) == len(slots) and all(len(one) == len(slots) for one in (rows, *more))
    if not fits or max(slots) >= spec.num_slots or not 0 < min(rows) <= max(rows) <= spec.rows:
        raise SpecError(
            f"stream {spec.name!r}: expected different slots below {spec.num_slots} with 1 to "
            f"{spec.rows} rows each, got slots {slots[:8]} with rows {rows[:8]}."
        )
