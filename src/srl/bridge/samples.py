"""Samples between hosts.

The readers' host owns a stream and grants its slots to writers on other hosts. `FragmentSender`
runs on the writers' host. It asks for slots for waiting writers and gives granted slots to them. It
sends committed fragments, and returns slots that were not filled. `FragmentReceiver` runs on the
owner's host. It grants slots and writes arriving fragments into them. It takes back the slots that
it granted to hosts that are gone.

Every grant has a number, its `grant_id`, by which messages that come twice or too late are
recognised. A slot on either side is used again only after the other side has said that the grant
has ended.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

from srl.arena.arena import Arena
from srl.bridge.messages import (
    Fragment,
    FragmentStored,
    GrantAccepted,
    SlotGrant,
    SlotRequest,
    SlotReturned,
)
from srl.bridge.messenger import PeerMessenger, Timer
from srl.errors import SpecError
from srl.net.framing import Body
from srl.services.parameters import ParameterReader
from srl.streams.remote_slots import OwnerEnd, RemoteWritersEnd
from srl.streams.sample import SampleSpec
from srl.streams.sample_queue import LOST, READY

ASK_SECONDS = 1.0
"""How often the request for a waiting writer is sent again."""
FIRST_SECONDS = (2.0, 10.0)
LATER_SECONDS = (4.0, 30.0)
"""Limits (least, most) of the time until a fragment is sent again: the first time, and later.

Fragments are large and links may be slow, so they get more time than other messages. The first time
is four times as long as an answer usually takes, later times are up to eight times as long.
"""


@dataclass(slots=True)
class _RemoteSlot:
    """A slot of the owner that is granted to a writer on another host."""

    host: str
    writer: int
    slot: int
    """Index of the slot on this side: in `FragmentReceiver` the owner's, else the writer's."""
    ticket: int
    timer: Timer
    is_told: bool = False
    """Whether the other host was told. In `FragmentReceiver`: it has answered the grant. In
    `FragmentSender`: the fragment, or the return of the slot, was sent and may get lost."""


class FragmentSender:
    """The writers' side of one stream, on a host without readers of the stream."""

    def __init__(
        self,
        number: int,
        spec: SampleSpec,
        arena: Arena,
        messenger: PeerMessenger,
        versions: ParameterReader | None,
    ) -> None:
        self._number = number
        self._spec = spec
        self._messenger = messenger
        self._end = RemoteWritersEnd(spec, arena)
        self._versions = versions
        self._owner = ""
        self._remote_slots: dict[int, _RemoteSlot] = {}
        """Slots that are granted to writers here, by `grant_id`."""
        self._ended_grants: deque[int] = deque(maxlen=8 * spec.slots)
        """The last grants that have ended, to recognise them if they come again."""
        self._waiting: dict[int, tuple[float, float]] = {}
        """Writers that wait: since when, and when to ask for them again."""
        self._answer_seconds = 0.0
        """How long the owner takes to answer a fragment, as a moving average."""

    @property
    def busy(self) -> bool:
        """Whether an answer of the owner is expected."""
        return bool(self._waiting) or any(
            remote_slot.is_told for remote_slot in self._remote_slots.values()
        )

    def holds_of(self, writer: int) -> bool:
        """Whether any slot here still belongs to a writer: not all have gone to the owner yet."""
        return self._end.holds_of(writer)

    def follow(self, gone: frozenset[str]) -> None:
        """Applies a new address book: begins again if the owner has changed or restarted."""
        owner = next(iter(self._messenger.peers.hosts_of(self._spec.readers)), "")
        if owner == self._owner and owner not in gone:
            return
        self._owner = owner
        self._waiting.clear()
        for remote_slot in self._remote_slots.values():
            self._end.revoke(remote_slot.slot)
        self._remote_slots.clear()
        if owner and owner != self._messenger.own:
            self._end.begin()
        elif owner:
            self._end.take_over(0 if self._versions is None else self._versions.version)

    def turn(self, now: float) -> None:
        """Asks for slots for waiting writers, and sends committed fragments and returned slots."""
        if not self._owner or self._owner == self._messenger.own:
            return
        self._ask(now)
        ended = self._end.ended()
        if not ended:
            return
        grant_ids = {
            remote_slot.slot: grant_id for grant_id, remote_slot in self._remote_slots.items()
        }
        for slot, status in ended.items():
            grant_id = grant_ids.get(slot)
            if grant_id is None:
                # Granted by an owner that is gone, or to the bridge before this one.
                self._messenger.counters.add("stale")
                self._end.forget(slot)
            else:
                self._send(grant_id, self._remote_slots[grant_id], status, now)

    def _ask(self, now: float) -> None:
        waiting_writers_here = self._end.waiting_writers_here()
        if not waiting_writers_here and not self._waiting:
            return
        for writer in set(self._waiting).difference(waiting_writers_here):
            del self._waiting[writer]
        due = [
            w for w in waiting_writers_here if w not in self._waiting or now >= self._waiting[w][1]
        ]
        if due and self._messenger.send(self._owner, SlotRequest(self._number, due)):
            for writer in due:
                since = self._waiting.get(writer, (now, now))[0]
                self._waiting[writer] = (since, now + ASK_SECONDS)

    def _send(self, grant_id: int, remote_slot: _RemoteSlot, status: int, now: float) -> None:
        if remote_slot.is_told and now < remote_slot.timer.due:
            return
        queue, slot, messenger = self._end.queue, remote_slot.slot, self._messenger
        if status == READY:
            info = queue.info(slot)
            full = info.length == self._spec.record.capacity
            whole = full and not messenger.packs(self._owner)
            message = Fragment(self._number, grant_id, info, whole)
            parts = self._end.parts(slot, info.length, whole=whole)
            sent = messenger.send(
                self._owner, message, parts, None if whole else self._end.pixels()
            )
        else:
            sent = messenger.send(self._owner, SlotReturned(self._number, grant_id, status == LOST))
        if not sent:
            return
        if remote_slot.is_told:
            messenger.counters.add("resent")
            remote_slot.timer.again(now)
        else:
            remote_slot.is_told = True
            first = _limited(4 * self._answer_seconds, *FIRST_SECONDS)
            remote_slot.timer = Timer(
                now, first, _limited(8 * self._answer_seconds, *LATER_SECONDS)
            )

    def on_slot_grant(self, host: str, message: SlotGrant) -> None:
        """Handles a grant: gives the slot to its writer, or returns it to the owner."""
        if host != self._owner:
            raise SpecError(f"slot grant: expected one from {self._owner}, got one from {host}.")
        if message.writer >= len(self._spec.writers):
            raise SpecError(f"slot grant: there is no writer {message.writer}.")
        now = self._messenger.clock()
        if message.grant_id in self._ended_grants:
            self._messenger.counters.add("stale")
            return
        if message.grant_id not in self._remote_slots:
            slot = self._end.accept(message.writer, message.ticket)
            if slot is None:
                # If this return is lost, the owner repeats the grant, and it is sent again.
                self._messenger.send(host, SlotReturned(self._number, message.grant_id, False))
                return
            since = self._waiting.pop(message.writer, (now, now))[0]
            self._messenger.counters.add("wait_slots_ns", int((now - since) * 1e9))
            remote_slot = _RemoteSlot(host, message.writer, slot, message.ticket, Timer(now))
            self._remote_slots[message.grant_id] = remote_slot
        else:
            self._messenger.counters.add("stale")
        self._messenger.send(host, GrantAccepted(self._number, message.grant_id))

    def on_fragment_stored(self, host: str, message: FragmentStored) -> None:
        """Handles the end of a grant: the slot here becomes free.

        The owner has the fragment or the returned slot, or does not know the grant.
        """
        remote_slot = self._remote_slots.get(message.grant_id)
        if remote_slot is None or host != self._owner or not remote_slot.is_told:
            self._messenger.counters.add("stale")
            return
        del self._remote_slots[message.grant_id]
        self._ended_grants.append(message.grant_id)
        self._answer_seconds = 0.9 * self._answer_seconds + 0.1 * (
            self._messenger.clock() - remote_slot.timer.sent
        )
        self._end.free(remote_slot.slot)


class FragmentReceiver:
    """The owner's side of one stream."""

    def __init__(
        self,
        number: int,
        spec: SampleSpec,
        arena: Arena,
        messenger: PeerMessenger,
        versions: ParameterReader | None,
    ) -> None:
        self._number = number
        self._spec = spec
        self._messenger = messenger
        self._end = OwnerEnd(spec, arena)
        self._versions = versions if spec.max_policy_age is not None else None
        self._has_weights = False
        """Whether the policy's weights come to this host. If so, it grants a slot only when policy
        age allows the writer to begin. If not, the writer waits after the grant."""
        # Above the grant numbers of every earlier bridge of this host.
        self._last_grant_id = time.time_ns()
        self._remote_slots: dict[int, _RemoteSlot] = {}
        """Slots that are granted to writers elsewhere, by `grant_id`."""
        self._waiting: dict[tuple[str, int], None] = {}
        """Hosts and writers that wait for slots, in the order of their requests."""

    @property
    def busy(self) -> bool:
        """Whether a writer waits, or a grant has not been answered yet."""
        return bool(self._waiting) or any(
            not remote_slot.is_told for remote_slot in self._remote_slots.values()
        )

    def follow(self, gone: frozenset[str]) -> None:
        """Applies a new address book: takes back the slots of hosts that are `gone`."""
        self._has_weights = self._versions is not None and any(
            self._messenger.indices_here((*one.spec.readers, *one.trainers))
            for one in self._messenger.plan.weights
            if one.spec.policy == self._versions.spec.policy
        )
        lost = {
            grant_id: remote_slot
            for grant_id, remote_slot in self._remote_slots.items()
            if remote_slot.host in gone
        }
        for grant_id in lost:
            del self._remote_slots[grant_id]
        for host, writer in list(self._waiting):
            if host in gone:
                del self._waiting[host, writer]
        slots = [remote_slot.slot for remote_slot in lost.values()]
        if self._is_owner():
            hosts = self._messenger.host_by_process
            remote_writers = {
                writer
                for writer, process in enumerate(self._spec.writers)
                if hosts.get(process, self._messenger.own) != self._messenger.own
            }
            # Slots that an earlier bridge of this host granted: their numbers are unknown now.
            known = {*slots, *(remote_slot.slot for remote_slot in self._remote_slots.values())}
            slots += [slot for slot in self._end.granted_to(remote_writers) if slot not in known]
        if slots:
            self._end.take_back(slots, lost=True)

    def _newest_version(self) -> int | None:
        """The newest version here; None if age has no limit, or weights do not come here."""
        if self._versions is None or not self._has_weights:
            return None
        return self._versions.version

    def _is_owner(self) -> bool:
        return self._messenger.peers.hosts_of(self._spec.readers)[:1] == (self._messenger.own,)

    def turn(self, now: float) -> None:
        """Grants slots to waiting writers, and repeats grants that were not answered in time."""
        while self._waiting:
            host, writer = next(iter(self._waiting))
            granted = self._end.grant(writer, self._newest_version())
            if granted is None:
                break
            del self._waiting[host, writer]
            self._last_grant_id += 1
            self._remote_slots[self._last_grant_id] = _RemoteSlot(
                host, writer, *granted, Timer(now)
            )
            self._send_grant(self._last_grant_id)
        for grant_id, remote_slot in self._remote_slots.items():
            if not remote_slot.is_told and now >= remote_slot.timer.due:
                remote_slot.timer.again(now)
                self._messenger.counters.add("resent")
                self._send_grant(grant_id)

    def _send_grant(self, grant_id: int) -> None:
        remote_slot = self._remote_slots[grant_id]
        self._messenger.send(
            remote_slot.host,
            SlotGrant(self._number, remote_slot.writer, remote_slot.ticket, grant_id),
        )

    def on_slot_request(self, host: str, message: SlotRequest) -> None:
        """Handles a request for slots from a host whose writers wait."""
        for writer in message.writers:
            known = writer < len(self._spec.writers)
            if not known or self._messenger.host_by_process.get(self._spec.writers[writer]) != host:
                raise SpecError(f"slot request: writer {writer} is not on {host}.")
        if not self._is_owner():
            raise SpecError(
                f"slot request: the readers of {self._spec.name!r} are on another host."
            )
        unanswered = {
            remote_slot.writer: grant_id
            for grant_id, remote_slot in self._remote_slots.items()
            if not remote_slot.is_told
        }
        for writer in message.writers:
            if writer in unanswered:
                # The writer's host may not have received the grant yet.
                self._send_grant(unanswered[writer])
            else:
                self._waiting.setdefault((host, writer))

    def on_grant_accepted(self, host: str, message: GrantAccepted) -> None:
        """Handles the answer to a grant: the grant has arrived."""
        remote_slot = self._find(host, message.grant_id)
        if remote_slot is not None:
            remote_slot.is_told = True

    def on_fragment(self, host: str, message: Fragment, body: Body) -> None:
        """Handles an arrived fragment: copies it into its slot, and hands it to the readers."""
        length = message.info.length
        if not 0 < length <= self._spec.record.capacity:
            raise SpecError(f"fragment: no fragment has {length} ticks.")
        remote_slot = self._find(host, message.grant_id)
        if remote_slot is not None:
            parts = self._end.parts(remote_slot.slot, length, whole=message.whole)
            body.copy_into(part.data for part in parts)
            del self._remote_slots[message.grant_id]
            self._end.commit(remote_slot.slot, message.info)
            self._messenger.counters.add("fragments")
        self._messenger.send(host, FragmentStored(self._number, message.grant_id))

    def on_slot_returned(self, host: str, message: SlotReturned) -> None:
        """Handles a slot that comes back without a fragment."""
        remote_slot = self._find(host, message.grant_id)
        if remote_slot is not None:
            del self._remote_slots[message.grant_id]
            self._end.take_back([remote_slot.slot], lost=message.lost)
        self._messenger.send(host, FragmentStored(self._number, message.grant_id))

    def _find(self, host: str, grant_id: int) -> _RemoteSlot | None:
        remote_slot = self._remote_slots.get(grant_id)
        if remote_slot is None or remote_slot.host != host:
            self._messenger.counters.add("stale")
            return None
        return remote_slot


def _limited(seconds: float, least: float, most: float) -> float:
    return min(max(least, seconds), most)
