"""The messages between bridges.

Any message may be lost, doubled, late or cut short. So each message is either sent again until it
is answered, or sent every second. Numbers (`seq`, `grant_id`, `version`) show which messages are
old. Streams and policies are numbered in the order of the plan. A message's tag is the name of its
class, and its handler is `on_` and that name: `GrantAccepted` is handled by `on_grant_accepted`.
"""

from __future__ import annotations

from typing import Annotated, get_args

import msgspec

from srl.data.counts import Count, Natural, Version
from srl.streams.sample_queue import FragmentInfo

MAX_SLOTS = 1024
"""Largest number of slots in one request or reply."""
_Names = Annotated[str, msgspec.Meta(max_length=256)]
_Slots = Annotated[list[Natural], msgspec.Meta(min_length=1, max_length=MAX_SLOTS)]
_Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_Versions = Annotated[list[Version], msgspec.Meta(max_length=MAX_SLOTS)]
_Ends = dict[Natural, dict[Natural, Annotated[int, msgspec.Meta(ge=0, le=2)]]]
"""For each stream, the state of each end: 0 has not come yet, 1 is there, 2 has left."""


class Hello(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """First message of a connection: the sender's incarnation, and a digest of its plan."""

    incarnation: Natural
    digest: _Names
    packs: bool
    """Whether the sender packs (compresses) pixels for hosts that do so too."""
    heard: bool
    """Whether the sender has received the other bridge's hello."""


class PresenceReport(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """Which ends of streams are on the sender's host, and what it has of accounts and weights.

    It is sent at every change and every second, to the hosts that need it.
    """

    clients: _Ends = {}
    writers: _Ends = {}
    readers: _Ends = {}
    accounts: dict[Natural, tuple[Version, Count, Count]] = {}
    """For streams that the sender owns: base version, fragments lost, next ticket."""
    versions: dict[Natural, Version] = {}
    """The version of the weights that the sender has, by policy."""
    coming: dict[Natural, Natural] = {}
    """Number of parts of newer weights that the sender has received, by policy."""
    restart_requests: dict[Natural, tuple[Count, Count, Count]] = {}
    """For streams that the receiver owns: the request of a trainer on the sender's host to set the
    base version again. Number of such requests so far, the new version, and fragments that are
    still on their way to the trainer."""


class RequestBatch(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """Rows that need an action; then, slot by slot, the bytes of the request's arrays."""

    stream: Natural
    slots: _Slots
    rows: _Slots
    seqs: _Slots
    """The number of each slot's request; it stays the same when the request is sent again."""


class ReplyBatch(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """Replies of the policy; then, slot by slot, the bytes of the reply's arrays."""

    stream: Natural
    slots: _Slots
    rows: _Slots
    seqs: _Slots
    versions: _Versions


class SlotRequest(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """Writers that wait for slots ask the stream's owner for them."""

    stream: Natural
    writers: _Slots


class SlotGrant(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """The owner grants a slot to a writer."""

    stream: Natural
    writer: Natural
    ticket: Count
    grant_id: Natural
    """The number of this grant; no other grant ever has it."""


class GrantAccepted(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """Answer to a grant that has arrived."""

    stream: Natural
    grant_id: Natural


class Fragment(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """A committed fragment; then the bytes of its slot."""

    stream: Natural
    grant_id: Natural
    info: FragmentInfo
    whole: bool
    """Whether the bytes are the slot as one piece, not array by array."""


class SlotReturned(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """A granted slot is given back without a fragment."""

    stream: Natural
    grant_id: Natural
    lost: bool
    """Whether a fragment was begun in it, and lost."""


class FragmentStored(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """Answer to a fragment or to a returned slot: the grant has ended."""

    stream: Natural
    grant_id: Natural


class WeightsChunk(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """A part of a policy's weights; then the bytes of the part."""

    policy: Natural
    version: Count
    part: Natural


class ChunkStored(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """Answer to a part of a policy's weights that has arrived."""

    policy: Natural
    version: Count
    part: Natural


class RankNumbers(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """The numbers of a policy's ranks that are on the sender's host."""

    policy: Natural
    epoch: Annotated[int, msgspec.Meta(ge=0, le=1 << 20)]
    rows: dict[Natural, Annotated[list[_Int64], msgspec.Meta(max_length=64)]]
    """For each rank its row of `services/trainer_table.py`."""


Message = (
    Hello | PresenceReport | RequestBatch | ReplyBatch | SlotRequest | SlotGrant | GrantAccepted
    | Fragment | SlotReturned | FragmentStored | WeightsChunk | ChunkStored | RankNumbers
)  # fmt: skip
KINDS = tuple(kind.__name__ for kind in get_args(Message))
"""The tags of all messages."""
