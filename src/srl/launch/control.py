"""What the head and the agents of a run say to each other: small typed messages as msgpack.

An agent joins, is welcomed with a session, and from then on both sides send packets of that
session. Most messages must arrive, once and in order: `Channel` numbers them and sends them again
until they are acknowledged. Beats and pulses say how things are now; one that is lost is made good
by the next.
"""

from __future__ import annotations

from collections import deque
from importlib.metadata import version
from typing import Annotated

import msgspec

from srl.data.counts import Count
from srl.errors import SpecError
from srl.launch.last_words import Failure
from srl.net.limits import Limits
from srl.net.peers import Peer, Peers
from srl.streams.sample_books import Ledger

PROTOCOL = f"{version('srl')}+4"
"""Hosts with another one do not understand each other; the number after the plus grows with these
messages."""
PACKET_LIMITS = Limits(frame_bytes=64 << 20, frames=1, message_bytes=64 << 20)
"""A plan of tens of thousands of workers fits; anything larger is refused before it is read."""
RESEND_SECONDS = 1.0
_Text = Annotated[str, msgspec.Meta(max_length=1024)]
_Address = Annotated[str, msgspec.Meta(pattern=r"^tcp://[!-~]{1,256}:[0-9]{1,5}$")]
_Key = Annotated[str, msgspec.Meta(pattern=r"^[!-~]{40}$")]
_Clock = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]


# -- from an agent ---------------------------------------------------------------------------------


class Join(msgspec.Struct, tag="join", frozen=True, kw_only=True):
    """An agent asks to become a host of the run."""

    token: _Text
    """Made anew by each agent, so that one that asks again is told from another of its name."""
    name: _Text
    machine: _Text
    pid: Count
    cores: Count
    address: _Text
    """Where its gate will listen."""
    holds: tuple[_Text, ...] = ()
    version: _Text
    """Of SRL; hosts with different ones do not understand each other."""


class Row(msgspec.Struct, tag="row", frozen=True, array_like=True):
    """A worker's row of the board."""

    worker: str
    incarnation: int
    """Of its process."""
    cells: bytes


class Beat(msgspec.Struct, tag="beat", frozen=True, kw_only=True):
    """An agent is alive; and what its workers' rows say."""

    now_ns: _Clock
    """The agent's clock, which its rows are by."""
    rows: tuple[Row, ...] = ()
    stopped: tuple[str, ...] = ()
    """Processes that the system has stopped."""
    books: dict[str, Ledger] = {}
    """Of its sample streams, by name."""
    gate: dict[str, Annotated[int, msgspec.Meta(ge=0, le=1 << 56)]] = {}
    """What its gate has counted, by name."""


class Ready(msgspec.Struct, tag="ready", frozen=True, kw_only=True):
    """The agent has the plan."""

    sees_run_dir: bool
    """Whether the run directory is the head's own, as on a shared file system."""


class Started(msgspec.Struct, tag="started", frozen=True, kw_only=True):
    """A process runs."""

    process: str
    incarnation: int
    pid: Count


class Exited(msgspec.Struct, tag="exited", frozen=True, kw_only=True):
    """A process has ended, and what it held was taken back."""

    process: str
    incarnation: int
    pid: Count
    code: int
    failure: Failure | None = None
    now_ns: _Clock
    """The agent's clock, which its rows are by."""
    rows: tuple[Row, ...] = ()
    """What its workers' rows said in the end: it may have ended before a beat could tell."""


class GateIs(msgspec.Struct, tag="gate", frozen=True, kw_only=True):
    """The host's gate listens."""

    address: _Address
    public_key: _Key
    incarnation: Count
    """Grows with every gate of the host, and with every time that the host joins."""


class Reports(msgspec.Struct, tag="reports", frozen=True):
    """Messages of workers to the metrics collector, as they came."""

    messages: tuple[bytes, ...]


class Output(msgspec.Struct, tag="output", frozen=True):
    """What a process printed."""

    process: str
    text: bytes


class LastBooks(msgspec.Struct, tag="books", frozen=True):
    """The books of the host's sample streams, now that all its workers have ended."""

    books: dict[str, Ledger]


class Trouble(msgspec.Struct, tag="trouble", frozen=True):
    """The agent cannot go on; it leaves after this."""

    text: str


class Left(msgspec.Struct, tag="left", frozen=True):
    """All processes have ended and the agent leaves."""


# -- from the head ---------------------------------------------------------------------------------


class Welcome(msgspec.Struct, tag="welcome", frozen=True, kw_only=True):
    """The agent is a host of the run now."""

    token: str
    name: str
    incarnation: int


class Refusal(msgspec.Struct, tag="refusal", frozen=True, kw_only=True):
    """The agent cannot join, or not yet."""

    token: str
    reason: str
    final: bool


class Unknown(msgspec.Struct, tag="unknown", frozen=True):
    """The session is over: the host was given up, and may join anew."""


class Brief(msgspec.Struct, tag="brief", frozen=True, kw_only=True):
    """What the run is: sent once to each host."""

    plan: bytes
    """As JSON, packed: most of it is names, and all hosts are sent it at once."""
    run_dir: str
    probe: str
    """What the file `.session` in the run directory says."""


class Start(msgspec.Struct, tag="start", frozen=True, kw_only=True):
    """Start a worker process."""

    process: str
    incarnation: int
    modules: tuple[str, ...]


class Order(msgspec.Struct, tag="order", frozen=True, kw_only=True):
    """Give a process its part of the plan."""

    process: str
    incarnation: int
    checkpoint: str
    rows: tuple[Row, ...]
    """What its workers had counted before, here or elsewhere."""


class Kill(msgspec.Struct, tag="kill", frozen=True, kw_only=True):
    """End a process at once."""

    process: str
    incarnation: int


class Leave(msgspec.Struct, tag="leave", frozen=True, kw_only=True):
    """Let a process finish by itself."""

    process: str
    incarnation: int


class Notice(msgspec.Struct, tag="notice", frozen=True, kw_only=True):
    """What the head's board says to all."""

    stop: bool
    checkpoint: int
    folder: str
    """Where the checkpoint is written."""


class Book(msgspec.Struct, tag="book", frozen=True, kw_only=True):
    """The address book, or what has changed in it: with thousands of processes it is long, and
    seldom changes but for one host."""

    epoch: int
    hosts: tuple[str, ...]
    """All that are in it, in order."""
    peers: tuple[Peer, ...]
    """Those that are new, or not as they were."""

    def after(self, before: Peers) -> Peers:
        """The whole book, from the one before it."""
        known = before.by_host | {peer.host: peer for peer in self.peers}
        peers = tuple(known[host] for host in self.hosts)
        return Peers(own=before.own, epoch=self.epoch, peers=peers)


class Finish(msgspec.Struct, tag="finish", frozen=True):
    """The run is over: end what is left, and leave."""


class Pulse(msgspec.Struct, tag="pulse", frozen=True):
    """The head is alive."""


Message = (
    Join | Beat | Ready | Started | Exited | GateIs | Reports | Output | LastBooks | Trouble | Left
    | Welcome | Refusal | Unknown | Brief | Start | Order | Kill | Leave | Notice | Book | Finish
    | Pulse
)  # fmt: skip


class Packet(msgspec.Struct, frozen=True, array_like=True):
    """One message on its way."""

    session: str
    number: int
    """From 1 on; 0 for what needs not arrive."""
    acknowledges: int
    """All of the other side's messages up to this one have come."""
    message: Message


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Packet)


def encode(packet: Packet) -> bytes:
    """A packet as bytes."""
    return _encoder.encode(packet)


def decode(data: bytes) -> Packet:
    """The packet in `data`; anything else is a SpecError."""
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError) as error:
        raise SpecError(f"control packet: expected one, got {len(data)} bytes ({error}).") from None


class Channel:
    """One side of a session: messages arrive once and in order, whatever the network does."""

    def __init__(self, session: str) -> None:
        self.session = session
        self._sent: deque[tuple[int, Message]] = deque()
        """Not acknowledged yet."""
        self._fresh = 0
        """How many of those at the end were never sent."""
        self._next = 1
        self._received = 0
        self._now = 0.0
        self._resend_at = 0.0

    @property
    def backlog(self) -> int:
        """Messages that have not been acknowledged."""
        return len(self._sent)

    def post(self, message: Message) -> None:
        """Queues a message that must arrive."""
        self._sent.append((self._next, message))
        self._next += 1
        self._fresh += 1

    def packets(self, now: float) -> list[Packet]:
        """What is to be sent now: what is new, or all that was not acknowledged in time."""
        self._now = now
        due = list(self._sent)
        if self._fresh < len(due) and now < self._resend_at:
            due = due[len(due) - self._fresh :]
        elif due:
            self._resend_at = now + RESEND_SECONDS
        self._fresh = 0
        return [Packet(self.session, number, self._received, message) for number, message in due]

    def state(self, message: Message) -> Packet:
        """A packet for what needs not arrive."""
        return Packet(self.session, 0, self._received, message)

    def receive(self, packet: Packet) -> Message | None:
        """The packet's message, unless it came before or too early."""
        while self._sent and self._sent[0][0] <= packet.acknowledges:
            self._sent.popleft()
            self._resend_at = self._now + RESEND_SECONDS
        self._fresh = min(self._fresh, len(self._sent))
        if packet.number == 0:
            return packet.message
        if packet.number != self._received + 1:
            return None
        self._received += 1
        return packet.message
