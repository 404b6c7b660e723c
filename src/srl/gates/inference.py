"""Inference between hosts.

Where clients are and no server is, `Asking` takes submitted lanes, sends their rows to a host with
servers (the one with the least to do), and writes the replies back. Where servers are, `Answering`
puts the rows into the same lanes and sends back what was answered. Every request has a number; one
that is not answered in time is sent again, to another host if there is one, and whatever comes
twice or too late is known by its number. A host that did not answer in time, or that nothing could
be sent to, is doubted until it answers: others are asked, and it only gets copies now and then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from srl.arena.arena import Arena
from srl.errors import SpecError
from srl.gates.messages import MAX_LANES, Reply, Request
from srl.gates.post import MAX_RESEND_SECONDS, RESEND_SECONDS, Post, Timer
from srl.net.framing import MAX_FRAMES, Body
from srl.streams.inference import TAKEN, InferenceSpec
from srl.streams.relay import InferenceRelay

CHECK_SECONDS = 0.1
"""How often lanes are looked through for those that wait too long."""
TRY_SECONDS = 1.0
"""How often a host that is doubted gets a copy of a request, to see whether it answers again."""


@dataclass(slots=True)
class _Asked:
    seq: int
    rows: int
    since: float
    timer: Timer
    host: str = ""
    """The last one that it was to go to, ..."""
    sent: bool = False
    """... and whether it could be sent there."""


class Asking:
    """The clients' side of one stream."""

    def __init__(self, number: int, spec: InferenceSpec, arena: Arena, post: Post) -> None:
        self._number = number
        self._spec = spec
        self._post = post
        self._relay = InferenceRelay(spec, arena)
        self._seq = 0
        self._asked: dict[int, _Asked] = {}
        self._rows: dict[str, int] = {}
        """Rows that each host has to answer."""
        self._seconds: dict[str, float] = {}
        """How long each host takes, smoothed."""
        self._doubted: dict[str, float] = {}
        """Hosts that did not answer, and when each is tried again."""
        self._next_check = 0.0
        self._here = False

    @property
    def busy(self) -> bool:
        """Whether replies are to come."""
        return bool(self._asked)

    def follow(self, gone: frozenset[str]) -> None:
        """Sends what lies with hosts that are gone to others."""
        self._here = bool(self._post.at_home(self._spec.servers))
        for host in gone:
            self._rows.pop(host, None)
            self._seconds.pop(host, None)
            self._doubted.pop(host, None)
        lost = [lane for lane, asked in self._asked.items() if asked.host in gone]
        for lane in lost:
            del self._asked[lane]
        if lost:
            self._relay.put_back(lost)

    def turn(self, now: float) -> None:
        """Sends what was submitted, and once more what was not answered."""
        hosts = [] if self._here else self._post.hosts(self._spec.servers)
        if hosts:
            fresh = self._relay.take()
            for lane in fresh:
                if lane in self._asked:
                    # Of a client that died; its successor asks anew.
                    self._forget(lane)
                self._seq += 1
                rows = self._relay.memory.num_rows[lane]
                self._asked[lane] = _Asked(self._seq, rows, now, Timer(now))
            self._send(fresh, hosts, now)
            if self._doubted and fresh:
                self._try_doubted(fresh[0], hosts, now)
        if self._asked and now >= self._next_check:
            self._next_check = now + CHECK_SECONDS
            self._check(hosts, now)

    def _check(self, hosts: list[str], now: float) -> None:
        late = []
        for lane, asked in list(self._asked.items()):
            if not self._relay.holds(lane):
                # Its client died, and has withdrawn it.
                self._forget(lane)
            elif now >= asked.timer.due or not asked.sent:
                late.append(lane)
        if late and not hosts:
            for lane in late:
                self._forget(lane)
            self._relay.put_back(late)
        elif late:
            sent = [asked for asked in map(self._asked.__getitem__, late) if asked.sent]
            for asked in sent:
                self._doubt(asked.host, now)
            self._post.counters.add("resent", len(sent))
            self._send(late, hosts, now)

    def _doubt(self, host: str, now: float) -> None:
        self._doubted.setdefault(host, now + TRY_SECONDS)

    def _try_doubted(self, lane: int, hosts: list[str], now: float) -> None:
        """Sends copies of a request to hosts that are doubted: whoever answers first counts."""
        for host, due in self._doubted.items():
            if now >= due and host in hosts and host != self._asked[lane].host:
                self._doubted[host] = now + TRY_SECONDS
                self._send_to(host, [lane])

    def _send(self, lanes: list[int], hosts: list[str], now: float) -> None:
        trusted = [host for host in hosts if host not in self._doubted]
        chosen: dict[str, list[int]] = {}
        for lane in lanes:
            asked = self._asked[lane]
            host = self._choose(asked.host, trusted, hosts)
            self._count(asked, -1)
            if asked.sent:
                asked.timer.again(now)
            else:
                asked.timer = Timer(now, self._patience(host))
            asked.host, asked.sent = host, True
            self._count(asked, 1)
            chosen.setdefault(host, []).append(lane)
        for host, group in chosen.items():
            for some in _pieces(group, len(self._relay.pixels)):
                if not self._send_to(host, some):
                    self._doubt(host, now)
                    for lane in some:
                        self._asked[lane].sent = False

    def _choose(self, last: str, trusted: list[str], hosts: list[str]) -> str:
        """The host with the least to do: of those that answer, else another than the last."""
        some = trusted or [host for host in hosts if host != last] or hosts
        return min(some, key=lambda name: self._rows.get(name, 0))

    def _send_to(self, host: str, lanes: list[int]) -> bool:
        asked = [self._asked[lane] for lane in lanes]
        rows = [one.rows for one in asked]
        message = Request(self._number, lanes, rows, [one.seq for one in asked])
        parts = (
            part
            for lane, count in zip(lanes, rows, strict=True)
            for part in self._relay.request_parts(lane, count)
        )
        pixels = (flag for _ in lanes for flag in self._relay.pixels)
        return self._post.send(host, message, parts, pixels)

    def _patience(self, host: str) -> float:
        """Hosts that are slow are not asked again at once, lest they become slower."""
        usual = 4 * self._seconds.get(host, 0.0)
        return min(max(RESEND_SECONDS, usual), 2 * MAX_RESEND_SECONDS)

    def _count(self, asked: _Asked, sign: int) -> None:
        if asked.host:
            self._rows[asked.host] = max(0, self._rows.get(asked.host, 0) + sign * asked.rows)

    def _forget(self, lane: int) -> None:
        self._count(self._asked.pop(lane), -1)

    def reply(self, host: str, message: Reply, body: Body) -> None:
        """Replies have come: those that are waited for are written, others ignored."""
        _check(self._spec, message.lanes, message.rows, message.seqs, message.versions)
        self._doubted.pop(host, None)
        now = self._post.clock()
        wanted: list[int] = []
        targets: list[memoryview | int] = []
        for lane, rows, seq in zip(message.lanes, message.rows, message.seqs, strict=True):
            asked = self._asked.get(lane)
            parts = self._relay.reply_parts(lane, rows)
            if asked is None or asked.seq != seq or not self._relay.holds(lane):
                self._post.counters.add("stale")
                targets += [part.nbytes for part in parts]
                continue
            if asked.rows != rows:
                raise SpecError(f"reply: expected {asked.rows} rows, got {rows}, from {host}.")
            wanted.append(lane)
            targets += parts
        body.copy_into(targets)
        versions = dict(zip(message.lanes, message.versions, strict=True))
        for lane in wanted:
            asked = self._asked[lane]
            self._forget(lane)
            self._relay.memory.version[lane] = versions[lane]
            if host == asked.host:
                took = now - asked.timer.sent
                self._seconds[host] = 0.9 * self._seconds.get(host, took) + 0.1 * took
            self._post.counters.add("wait_requests_ns", int((now - asked.since) * 1e9))
        self._relay.answer(wanted)


@dataclass(slots=True)
class _Open:
    host: str
    seq: int
    rows: int
    kept: list[bytearray] | None = None
    """The request itself, while the lane is still being read by a server."""


class Answering:
    """The servers' side of one stream."""

    def __init__(self, number: int, spec: InferenceSpec, arena: Arena, post: Post) -> None:
        self._number = number
        self._spec = spec
        self._post = post
        self._relay = InferenceRelay(spec, arena)
        self._open: dict[int, _Open] = {}
        self._queued: dict[int, _Open] = {}
        """Requests whose lanes a server still reads for an older one."""
        self._answered: dict[int, _Open] = {}
        """The last one of each lane: its reply is still there, should it have got lost."""

    @property
    def busy(self) -> bool:
        """Only its servers keep it waiting, and they ring."""
        return bool(self._queued)

    def follow(self, gone: frozenset[str]) -> None:
        """Forgets the requests of hosts that are gone."""
        for known in (self._open, self._queued, self._answered):
            for lane, one in list(known.items()):
                if one.host in gone:
                    del known[lane]
                    if known is self._open:
                        self._relay.withdraw(lane)

    def request(self, host: str, message: Request, body: Body) -> None:
        """Requests have come: new ones go to the servers."""
        _check(self._spec, message.lanes, message.rows, message.seqs)
        fresh: list[int] = []
        again: list[int] = []
        queued: dict[int, _Open] = {}
        targets: list[memoryview | int] = []
        for lane, rows, seq in zip(message.lanes, message.rows, message.seqs, strict=True):
            client = self._spec.clients[lane // self._spec.lanes_per_client]
            if self._post.homes.get(client) != host:
                raise SpecError(f"request: lane {lane} is of {client}, which is not on {host}.")
            parts = self._relay.request_parts(lane, rows)
            if self._is_old(lane, host, seq):
                self._post.counters.add("stale")
                targets += [part.nbytes for part in parts]
                last = self._answered.get(lane)
                if last is not None and (last.host, last.seq) == (host, seq):
                    again.append(lane)
            elif self._relay.withdraw(lane):
                self._open.pop(lane, None)
                fresh.append(lane)
                targets += parts
            else:
                kept = [bytearray(part.nbytes) for part in parts]
                queued[lane] = _Open(host, seq, rows, kept)
                targets += [memoryview(part) for part in kept]
        body.copy_into(targets)
        places = {lane: i for i, lane in enumerate(message.lanes)}
        for lane in fresh:
            at = places[lane]
            self._begin(lane, _Open(host, message.seqs[at], message.rows[at]))
        self._relay.submit(fresh)
        self._queued.update(queued)
        if again:
            self._reply(host, again, self._answered)

    def _is_old(self, lane: int, host: str, seq: int) -> bool:
        known = (self._open.get(lane), self._queued.get(lane), self._answered.get(lane))
        return any(one is not None and one.host == host and seq <= one.seq for one in known)

    def _begin(self, lane: int, one: _Open) -> None:
        self._open[lane] = one
        self._answered.pop(lane, None)
        self._relay.memory.num_rows[lane] = one.rows
        self._post.counters.add("requests")

    def turn(self, now: float) -> None:
        """Sends what was answered."""
        if self._queued:
            self._unqueue()
        if not self._open:
            return
        ready: dict[str, list[int]] = {}
        for lane in self._relay.answered():
            one = self._open.get(lane)
            if one is not None:
                ready.setdefault(one.host, []).append(lane)
        for host, lanes in ready.items():
            for some in _pieces(lanes, len(self._relay.pixels)):
                if self._reply(host, some, self._open):
                    for lane in some:
                        self._answered[lane] = self._open.pop(lane)
                        self._relay.withdraw(lane)

    def _unqueue(self) -> None:
        for lane, one in list(self._queued.items()):
            if self._relay.memory.status[lane] == TAKEN or not self._relay.withdraw(lane):
                continue
            del self._queued[lane]
            assert one.kept is not None
            for part, data in zip(self._relay.request_parts(lane, one.rows), one.kept, strict=True):
                part[:] = data
            self._begin(lane, _Open(one.host, one.seq, one.rows))
            self._relay.submit([lane])

    def _reply(self, host: str, lanes: list[int], known: dict[int, _Open]) -> bool:
        rows = [known[lane].rows for lane in lanes]
        versions = [self._relay.memory.version[lane] for lane in lanes]
        seqs = [known[lane].seq for lane in lanes]
        parts = (
            part
            for lane, count in zip(lanes, rows, strict=True)
            for part in self._relay.reply_parts(lane, count)
        )
        self._post.counters.add("replies", len(lanes))
        return self._post.send(host, Reply(self._number, lanes, rows, seqs, versions), parts)


def most_lanes(arrays: int) -> int:
    """How many lanes of so many arrays one message may have."""
    return max(1, min(MAX_LANES, (MAX_FRAMES - 1) // max(1, arrays)))


def _pieces(lanes: Iterable[int], arrays: int) -> Iterator[list[int]]:
    """Lanes as many at a time as one message may have."""
    rest = iter(lanes)
    while piece := list(islice(rest, most_lanes(arrays))):
        yield piece


def _check(spec: InferenceSpec, lanes: list[int], rows: list[int], *more: Sequence[int]) -> None:
    fits = len(set(lanes)) == len(lanes) and all(len(one) == len(lanes) for one in (rows, *more))
    if not fits or max(lanes) >= spec.num_lanes or not 0 < min(rows) <= max(rows) <= spec.rows:
        raise SpecError(
            f"stream {spec.name!r}: expected different lanes below {spec.num_lanes} with 1 to "
            f"{spec.rows} rows each, got lanes {lanes[:8]} with rows {rows[:8]}."
        )
