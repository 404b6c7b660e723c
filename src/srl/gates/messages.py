"""What gates say to each other.

Every message may be lost, doubled, late or cut short: each is either repeated until it is answered,
or said again every second. Numbers (`seq`, `lease`, `version`) tell what is old. Streams and
policies are numbered in the order of the plan.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from srl.data.counts import Count, Version
from srl.net.framing import Natural

MAX_LANES = 1024
"""In one request or reply."""
_Names = Annotated[str, msgspec.Meta(max_length=256)]
_Lanes = Annotated[list[Natural], msgspec.Meta(min_length=1, max_length=MAX_LANES)]
_Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_Versions = Annotated[list[Version], msgspec.Meta(max_length=MAX_LANES)]
_Ends = dict[Natural, dict[Natural, Annotated[int, msgspec.Meta(ge=0, le=2)]]]
"""Stream to end to state: 0 has not come, 1 is there, 2 has left."""


class Hello(msgspec.Struct, array_like=True, frozen=True, tag="hello"):
    """The first word: who speaks, and what its streams look like."""

    incarnation: Natural
    digest: _Names
    packs: bool
    """Whether it would pack pixels."""
    heard: bool
    """Whether it has heard the other one's."""


class Status(msgspec.Struct, array_like=True, frozen=True, tag="status"):
    """How things are with the sender, for those whom it concerns; at every change, and every
    second."""

    clients: _Ends = {}
    writers: _Ends = {}
    readers: _Ends = {}
    books: dict[Natural, tuple[Version, Count, Count]] = {}
    """Of streams whose owner speaks: base version, items lost, next ticket."""
    versions: dict[Natural, Version] = {}
    """The weights that the sender has, by policy."""
    coming: dict[Natural, Natural] = {}
    """Parts of newer ones that have come, by policy."""
    anew: dict[Natural, tuple[Count, Count, Count]] = {}
    """Of streams whose owner listens, what a trainer at the sender's asks: how often it has, the
    version to count on from, and fragments that are under way to it."""


class Request(msgspec.Struct, array_like=True, frozen=True, tag="request"):
    """Rows that need an action; then, lane by lane, the bytes of the request's arrays."""

    stream: Natural
    lanes: _Lanes
    rows: _Lanes
    seqs: _Lanes
    """Each names one request of one lane, however often it is sent."""


class Reply(msgspec.Struct, array_like=True, frozen=True, tag="reply"):
    """What was chosen; then, lane by lane, the bytes of the reply's arrays."""

    stream: Natural
    lanes: _Lanes
    rows: _Lanes
    seqs: _Lanes
    versions: _Versions


class Want(msgspec.Struct, array_like=True, frozen=True, tag="want"):
    """Writers wait for slots."""

    stream: Natural
    writers: _Lanes


class Grant(msgspec.Struct, array_like=True, frozen=True, tag="grant"):
    """The owner holds a slot for a writer."""

    stream: Natural
    writer: Natural
    ticket: Count
    lease: Natural
    """Names this loan, and never another one."""


class Took(msgspec.Struct, array_like=True, frozen=True, tag="took"):
    """A grant has come."""

    stream: Natural
    lease: Natural


class Fragment(msgspec.Struct, array_like=True, frozen=True, tag="fragment"):
    """A committed fragment; then the bytes of its slot."""

    stream: Natural
    lease: Natural
    length: Natural
    env_steps: Count
    whole: bool
    """Whether the slot comes as one piece."""


class Return(msgspec.Struct, array_like=True, frozen=True, tag="return"):
    """A loan that no fragment will come of."""

    stream: Natural
    lease: Natural
    lost: bool
    """Whether one was begun."""


class Done(msgspec.Struct, array_like=True, frozen=True, tag="done"):
    """A loan is over: its fragment or its return has come."""

    stream: Natural
    lease: Natural


class Weights(msgspec.Struct, array_like=True, frozen=True, tag="weights"):
    """A part of a policy's weights; then its bytes."""

    policy: Natural
    version: Count
    part: Natural


class Taken(msgspec.Struct, array_like=True, frozen=True, tag="taken"):
    """A part of a policy's weights has come."""

    policy: Natural
    version: Count
    part: Natural


class Ranks(msgspec.Struct, array_like=True, frozen=True, tag="ranks"):
    """How things are with the trainers of a policy that are on the sender's host."""

    policy: Natural
    epoch: Annotated[int, msgspec.Meta(ge=0, le=1 << 20)]
    rows: dict[Natural, Annotated[list[_Int64], msgspec.Meta(max_length=64)]]
    """By rank, what `services/trainers.py` has of it."""


Message = (
    Hello | Status | Request | Reply | Want | Grant | Took | Fragment | Return | Done | Weights
    | Taken | Ranks
)  # fmt: skip
KINDS = (
    "hello", "status", "request", "reply", "want", "grant", "took", "fragment", "return", "done",
    "weights", "taken", "ranks",
)  # fmt: skip
