"""The bridge of a host: connects its streams and weights to those of the other hosts.

Workers know nothing about the bridge. Every host of a run has the same regions with the same slots,
and the bridge acts in place of the workers on other hosts. It sleeps in the kernel until a process
of its host wakes it or a message arrives. Its memory does not grow with the number of messages.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from srl.arena.arena import Arena
from srl.arena.shm import WakePipe
from srl.bridge.counters import BridgeCounters
from srl.bridge.inference import RequestReceiver, RequestSender, most_slots
from srl.bridge.messages import (
    ChunkStored,
    Fragment,
    FragmentStored,
    GrantAccepted,
    Hello,
    Message,
    PresenceReport,
    RankNumbers,
    ReplyBatch,
    RequestBatch,
    SlotGrant,
    SlotRequest,
    SlotReturned,
    WeightsChunk,
)
from srl.bridge.messenger import BridgePart, BridgePlan, PeerMessenger, one_of
from srl.bridge.parameters import PART_BYTES, WeightsReceiver, WeightsSender
from srl.bridge.presence import Presence
from srl.bridge.route import Route
from srl.bridge.samples import FragmentReceiver, FragmentSender
from srl.bridge.trainers import RankExchange
from srl.errors import SpecError
from srl.net.framing import MAX_FRAMES, MAX_HEADER_BYTES, SHARED_FRAME_BYTES, Body
from srl.net.limits import Limits
from srl.net.links import Links
from srl.net.peers import Peers, read_peers
from srl.services.parameters import ParameterReader
from srl.streams.remote_requests import RemoteRequests

log = logging.getLogger("srl.bridge")

BUSY_SECONDS = 0.1
"""Longest sleep of a bridge while it waits for answers, ..."""
IDLE_SECONDS = 0.5
"""... and while it waits for none."""
WARNING_SECONDS = 5.0
"""Least time between two warnings about refused messages."""
COUNT_SECONDS = 0.1
"""How often a busy bridge looks for a new address book and updates its counters."""


def message_limits(plan: BridgePlan, arena: Arena) -> Limits:
    """Limits that allow the largest message which a bridge of this plan may receive."""
    frames = [MAX_HEADER_BYTES, 2 * SHARED_FRAME_BYTES, PART_BYTES]
    bodies = [PART_BYTES]
    for spec in plan.inference:
        slots = RemoteRequests(spec, arena)
        for parts in (slots.request_parts(0, spec.rows), slots.reply_parts(0, spec.rows)):
            sizes = [part.nbytes for part in parts]
            frames += sizes
            bodies.append(sum(sizes) * min(spec.num_slots, most_slots(len(sizes))))
    for stream in plan.samples:
        frames.append(stream.spec.record.nbytes)
        bodies.append(stream.spec.record.nbytes)
    return Limits(max(frames), MAX_FRAMES, MAX_HEADER_BYTES + max(bodies))


class Bridge:
    """One host's bridge: its parts (one for each side of each stream), and the loop over them."""

    def __init__(
        self,
        plan: BridgePlan,
        folder: Path,
        arena: Arena,
        links: Links,
        *,
        packs: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._links = links
        self.counters = BridgeCounters(arena)
        self.messenger = messenger = PeerMessenger(
            plan, links, self.counters, packs=packs, clock=clock
        )
        self._earlier_counts = (self.counters.get("unsent"), self.counters.get("refused"))
        """What earlier bridges of this host had counted."""
        self._clock = clock
        self._request_sender = [
            RequestSender(n, spec, arena, messenger) for n, spec in enumerate(plan.inference)
        ]
        self._request_receiver = [
            RequestReceiver(n, spec, arena, messenger) for n, spec in enumerate(plan.inference)
        ]
        self._routes = [Route(one, messenger) for one in plan.weights]
        self._weights_sender = [
            WeightsSender(n, route, arena, messenger) for n, route in enumerate(self._routes)
        ]
        self._weights_receiver = [
            WeightsReceiver(n, route, arena, messenger) for n, route in enumerate(self._routes)
        ]
        readers = {one.spec.policy: ParameterReader(one.spec, arena) for one in plan.weights}
        self._fragment_sender = [
            FragmentSender(n, stream.spec, arena, messenger, readers.get(stream.policy))
            for n, stream in enumerate(plan.samples)
        ]
        self._fragment_receiver = [
            FragmentReceiver(n, stream.spec, arena, messenger, readers.get(stream.policy))
            for n, stream in enumerate(plan.samples)
        ]
        self._rank_exchange = [
            RankExchange(n, one, arena, messenger) for n, one in enumerate(plan.weights)
        ]
        self._presence = Presence(
            arena, messenger, self._fragment_sender, self._weights_sender, self._weights_receiver
        )
        self._parts: tuple[BridgePart, ...] = (
            *self._request_sender, *self._request_receiver,
            *self._fragment_sender, *self._fragment_receiver,
            *self._weights_sender, *self._weights_receiver, *self._rank_exchange, self._presence,
        )  # fmt: skip
        self._peers_stamp: tuple[int, int] | None = None
        self._may_have_new_peers = True
        """Whether there may be a new address book: its writer wakes this process."""
        self._next_count = 0.0
        self._needed: frozenset[str] = frozenset()
        self._last_warning = float("-inf")

    # -- the loop --------------------------------------------------------------------------------

    def run(self, wake_pipe: WakePipe, until: Callable[[], bool]) -> None:
        """Takes turns until `until` returns True, and sleeps when there is nothing to do."""
        while not until():
            if not self.turn():
                self.wait(wake_pipe)

    def wait(self, wake_pipe: WakePipe, timeout_seconds: float | None = None) -> None:
        """Sleeps until a process wakes it, a message arrives, or something must be sent again."""
        busy = self.messenger.is_greeting or any(part.busy for part in self._parts)
        limit = BUSY_SECONDS if busy else IDLE_SECONDS
        self._update_counters()
        self._links.wait(wake_pipe, limit if timeout_seconds is None else timeout_seconds)
        self._may_have_new_peers |= wake_pipe.clear()

    def turn(self) -> int:
        """Handles arrived messages and sends what is due; returns the number of messages."""
        now = self._clock()
        if self._may_have_new_peers or now >= self._next_count:
            self._may_have_new_peers = False
            self._next_count = now + COUNT_SECONDS
            self._reload_peers()
            self._update_counters()
        self.messenger.greet(self._needed, now)
        count = 0
        for host, frames in self._links.receive():
            count += 1
            self._receive(host, frames)
        for part in self._parts:
            part.turn(now)
        return count

    def _update_counters(self) -> None:
        counters, links = self.counters, self._links
        counters.set("heartbeat_ns", time.monotonic_ns())
        counters.set("sent_messages", links.sent_messages)
        counters.set("sent_bytes", links.sent_bytes)
        counters.set("received_messages", links.received_messages)
        counters.set("received_bytes", links.received_bytes)
        unsent, refused = self._earlier_counts
        counters.set("unsent", unsent + links.unsent_messages)
        counters.set("refused", refused + links.refused)

    # -- the address book ------------------------------------------------------------------------

    def _reload_peers(self) -> None:
        """Reads the address book again if it was replaced."""
        try:
            stat = (self._folder / "peers.json").stat()
        except FileNotFoundError:
            return
        stamp = (stat.st_ino, stat.st_mtime_ns)
        if stamp == self._peers_stamp:
            return
        self._peers_stamp = stamp
        peers = read_peers(self._folder)
        if peers is not None:
            self.follow(peers)

    def follow(self, peers: Peers) -> None:
        """Applies a new address book."""
        before, after = self.messenger.peers.by_host, peers.by_host
        gone = frozenset(
            host
            for host, peer in before.items()
            if host not in after
            or (after[host].incarnation, after[host].public_key)
            != (peer.incarnation, peer.public_key)
        )
        self.messenger.update(peers, gone)
        for route in self._routes:
            route.follow()
        self._needed = self._needed_hosts(peers)
        self._links.update(peers, self._needed)
        for part in self._parts:
            part.follow(gone)

    def _needed_hosts(self, peers: Peers) -> frozenset[str]:
        """Hosts that share a stream, weights or a trainer group with this one."""
        plan = self.messenger.plan
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
            message, body = self.messenger.decode(frames)
            if body.nbytes:
                self.counters.add("data_messages")
            if isinstance(message, Hello):
                self.messenger.on_hello(host, message)
            elif self.messenger.greeted(host):
                self._handle(host, message, body)
            else:
                self.counters.add("stale")
        except SpecError as error:
            self.counters.add("rejected")
            now = self._clock()
            if now >= self._last_warning + WARNING_SECONDS:
                self._last_warning = now
                log.warning(
                    "a message from host %r was refused: %s %d refused so far.",
                    *(host, error, self.counters.get("rejected")),
                )

    def _handle(self, host: str, message: Message, body: Body) -> None:
        match message:
            case RequestBatch():
                one_of(self._request_receiver, message.stream).on_request_batch(host, message, body)
            case ReplyBatch():
                one_of(self._request_sender, message.stream).on_reply_batch(host, message, body)
            case SlotRequest():
                one_of(self._fragment_receiver, message.stream).on_slot_request(host, message)
            case SlotGrant():
                one_of(self._fragment_sender, message.stream).on_slot_grant(host, message)
            case GrantAccepted():
                one_of(self._fragment_receiver, message.stream).on_grant_accepted(host, message)
            case Fragment():
                one_of(self._fragment_receiver, message.stream).on_fragment(host, message, body)
            case SlotReturned():
                one_of(self._fragment_receiver, message.stream).on_slot_returned(host, message)
            case FragmentStored():
                one_of(self._fragment_sender, message.stream).on_fragment_stored(host, message)
            case WeightsChunk():
                one_of(self._weights_receiver, message.policy).on_weights_chunk(host, message, body)
            case ChunkStored():
                one_of(self._weights_sender, message.policy).on_chunk_stored(host, message)
            case RankNumbers():
                one_of(self._rank_exchange, message.policy).on_rank_numbers(host, message)
            case PresenceReport():
                self._presence.on_presence_report(host, message)

    def close(self) -> None:
        """Closes all connections."""
        self._links.close()
