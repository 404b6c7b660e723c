"""The gate of a host: joins its streams and weights to those of the other hosts.

Workers know nothing of it: on every host of a run there are the same regions with the same lanes,
and a gate takes the part of whoever is elsewhere. It sleeps in the kernel until somebody here rings
or a message comes. Nothing that it keeps grows with the number of messages.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from srl.arena.arena import Arena
from srl.arena.shm import Bell
from srl.errors import SpecError
from srl.gates.counters import GateCounters
from srl.gates.ends import Ends
from srl.gates.inference import Answering, Asking, most_lanes
from srl.gates.messages import (
    Done,
    Fragment,
    Grant,
    Hello,
    Message,
    Ranks,
    Reply,
    Request,
    Return,
    Status,
    Taken,
    Took,
    Want,
    Weights,
)
from srl.gates.parameters import PART_BYTES, Receiving, Spreading
from srl.gates.post import GatePlan, Part, Post, one_of
from srl.gates.route import Route
from srl.gates.samples import Borrowing, Lending
from srl.gates.trainers import Grouping
from srl.net.framing import MAX_FRAMES, MAX_HEADER_BYTES, SHARED_FRAME_BYTES, Body
from srl.net.limits import Limits
from srl.net.links import Links
from srl.net.peers import Peers, read_peers
from srl.services.parameters import ParameterReader
from srl.streams.relay import InferenceRelay

log = logging.getLogger("srl.gate")

BUSY_SECONDS = 0.1
"""How long a gate sleeps at most while answers are to come, ..."""
IDLE_SECONDS = 0.5
"""... and while none are."""
COMPLAIN_SECONDS = 5.0
COUNT_SECONDS = 0.1
"""How often the counters that others read are brought up to date while there is much to do."""


def message_limits(plan: GatePlan, arena: Arena) -> Limits:
    """What the largest message is like that a gate of this plan may get."""
    frames = [MAX_HEADER_BYTES, 2 * SHARED_FRAME_BYTES, PART_BYTES]
    bodies = [PART_BYTES]
    for spec in plan.inference:
        relay = InferenceRelay(spec, arena)
        for parts in (relay.request_parts(0, spec.rows), relay.reply_parts(0, spec.rows)):
            sizes = [part.nbytes for part in parts]
            frames += sizes
            bodies.append(sum(sizes) * min(spec.num_lanes, most_lanes(len(sizes))))
    for stream in plan.samples:
        frames.append(stream.spec.trajectory.nbytes)
        bodies.append(stream.spec.trajectory.nbytes)
    return Limits(max(frames), MAX_FRAMES, MAX_HEADER_BYTES + max(bodies))


class Gate:
    """One host's gate, turn by turn."""

    def __init__(
        self,
        plan: GatePlan,
        folder: Path,
        arena: Arena,
        links: Links,
        *,
        packs: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._links = links
        self.counters = GateCounters(arena)
        self.post = post = Post(plan, links, self.counters, packs=packs, clock=clock)
        self._before = (self.counters.get("unsent"), self.counters.get("refused"))
        """What the gates before this one had counted."""
        self._clock = clock
        self._asking = [Asking(n, spec, arena, post) for n, spec in enumerate(plan.inference)]
        self._answering = [Answering(n, spec, arena, post) for n, spec in enumerate(plan.inference)]
        self._routes = [Route(one, post) for one in plan.weights]
        self._spreading = [Spreading(n, way, arena, post) for n, way in enumerate(self._routes)]
        self._receiving = [Receiving(n, way, arena, post) for n, way in enumerate(self._routes)]
        readers = {one.spec.policy: ParameterReader(one.spec, arena) for one in plan.weights}
        self._borrowing = [
            Borrowing(n, stream.spec, arena, post, readers.get(stream.policy))
            for n, stream in enumerate(plan.samples)
        ]
        self._lending = [
            Lending(n, stream.spec, arena, post, readers.get(stream.policy))
            for n, stream in enumerate(plan.samples)
        ]
        self._grouping = [Grouping(n, one, arena, post) for n, one in enumerate(plan.weights)]
        self._ends = Ends(arena, post, self._borrowing, self._spreading, self._receiving)
        self._parts: tuple[Part, ...] = (
            *self._asking, *self._answering, *self._borrowing, *self._lending, *self._spreading,
            *self._receiving, *self._grouping, self._ends,
        )  # fmt: skip
        self._book_stamp: tuple[int, int] | None = None
        self._look = True
        """Whether there may be another address book: its writer rings."""
        self._next_count = 0.0
        self._needed: frozenset[str] = frozenset()
        self._complained = float("-inf")

    # -- the loop --------------------------------------------------------------------------------

    def run(self, bell: Bell, until: Callable[[], bool]) -> None:
        """Turns until told to end, asleep whenever there is nothing to do."""
        while not until():
            if not self.turn():
                self.wait(bell)

    def wait(self, bell: Bell, timeout_seconds: float | None = None) -> None:
        """Sleeps until somebody rings, a message comes, or something is to be sent again."""
        busy = self.post.is_greeting or any(part.busy for part in self._parts)
        limit = BUSY_SECONDS if busy else IDLE_SECONDS
        self._count()
        self._links.wait(bell, limit if timeout_seconds is None else timeout_seconds)
        self._look |= bell.clear()

    def turn(self) -> int:
        """Takes what has come and sends what is to be sent; returns how many messages came."""
        now = self._clock()
        if self._look or now >= self._next_count:
            self._look = False
            self._next_count = now + COUNT_SECONDS
            self._follow()
            self._count()
        self.post.greet(self._needed, now)
        count = 0
        for host, frames in self._links.receive():
            count += 1
            self._receive(host, frames)
        for part in self._parts:
            part.turn(now)
        return count

    def _count(self) -> None:
        counters, links = self.counters, self._links
        counters.set("heartbeat_ns", time.monotonic_ns())
        counters.set("sent_messages", links.sent_messages)
        counters.set("sent_bytes", links.sent_bytes)
        counters.set("received_messages", links.received_messages)
        counters.set("received_bytes", links.received_bytes)
        unsent, refused = self._before
        counters.set("unsent", unsent + links.unsent_messages)
        counters.set("refused", refused + links.refused)

    # -- the address book ------------------------------------------------------------------------

    def _follow(self) -> None:
        """Reads the address book anew, if it was replaced."""
        try:
            stat = (self._folder / "peers.json").stat()
        except FileNotFoundError:
            return
        stamp = (stat.st_ino, stat.st_mtime_ns)
        if stamp == self._book_stamp:
            return
        self._book_stamp = stamp
        peers = read_peers(self._folder)
        if peers is not None:
            self.follow(peers)

    def follow(self, peers: Peers) -> None:
        """Takes over an address book."""
        before, after = self.post.peers.by_host, peers.by_host
        gone = frozenset(
            host
            for host, peer in before.items()
            if host not in after
            or (after[host].incarnation, after[host].public_key)
            != (peer.incarnation, peer.public_key)
        )
        self.post.update(peers, gone)
        for route in self._routes:
            route.follow()
        self._needed = self._who_is_needed(peers)
        self._links.update(peers, self._needed)
        for part in self._parts:
            part.follow(gone)

    def _who_is_needed(self, peers: Peers) -> frozenset[str]:
        """Hosts with which this one shares a stream or weights."""
        plan = self.post.plan
        pairs = [
            *(
                (peers.hosts_of(spec.clients), peers.hosts_of(spec.servers))
                for spec in plan.inference
            ),
            *(
                (peers.hosts_of(stream.spec.writers), peers.hosts_of(stream.spec.readers))
                for stream in plan.samples
            ),
            *((peers.hosts_of(one.trainers), peers.hosts_of(one.trainers)) for one in plan.weights),
            *(
                (peers.hosts_of(one.trainers), peers.hosts_of(stream.spec.readers))
                for one in plan.weights
                for stream in plan.samples
                if stream.policy == one.spec.policy
            ),
        ]
        needed = {host for route in self._routes for host in route.partners(peers.own)}
        for some, others in pairs:
            if peers.own in some:
                needed.update(others)
            if peers.own in others:
                needed.update(some)
        return frozenset(needed - {peers.own, ""})

    # -- messages --------------------------------------------------------------------------------

    def _receive(self, host: str, frames: list[memoryview]) -> None:
        try:
            message, body = self.post.decode(frames)
            if isinstance(message, Hello):
                self.post.hello(host, message)
            elif self.post.greeted(host):
                self._handle(host, message, body)
            else:
                self.counters.add("stale")
        except SpecError as error:
            self.counters.add("rejected")
            now = self._clock()
            if now >= self._complained + COMPLAIN_SECONDS:
                self._complained = now
                log.warning(
                    "a message from host %r was refused: %s %d refused so far.",
                    *(host, error, self.counters.get("rejected")),
                )

    def _handle(self, host: str, message: Message, body: Body) -> None:
        match message:
            case Request():
                one_of(self._answering, message.stream).request(host, message, body)
            case Reply():
                one_of(self._asking, message.stream).reply(host, message, body)
            case Want():
                one_of(self._lending, message.stream).want(host, message)
            case Grant():
                one_of(self._borrowing, message.stream).grant(host, message)
            case Took():
                one_of(self._lending, message.stream).took(host, message)
            case Fragment():
                one_of(self._lending, message.stream).fragment(host, message, body)
            case Return():
                one_of(self._lending, message.stream).returned(host, message)
            case Done():
                one_of(self._borrowing, message.stream).done(host, message)
            case Weights():
                one_of(self._receiving, message.policy).weights(host, message, body)
            case Taken():
                one_of(self._spreading, message.policy).taken(host, message)
            case Ranks():
                one_of(self._grouping, message.policy).ranks(host, message)
            case Status():
                self._ends.status(host, message)

    def close(self) -> None:
        """Hangs up."""
        self._links.close()
