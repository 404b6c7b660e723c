"""Messages between the head and the agents of a run: small, typed, encoded as msgpack.

An agent asks to join, and the head answers with a session. From then on both sides send packets of
that session. Most messages must arrive once and in order: `Channel` numbers them, and sends them
again until they are acknowledged. Heartbeats and keep-alives describe the present state. A lost one
is not sent again, because the next one replaces it.
"""

from __future__ import annotations

from collections import deque
from typing import Annotated

import msgspec

from srl.data.counts import Count
from srl.errors import SpecError
from srl.launch.process.failure_report import Failure
from srl.launch.process.process_state import Condition
from srl.net.limits import Limits
from srl.net.peers import Peer, Peers
from srl.streams.sample_accounting import StreamAccount
from srl.version import VERSION

PROTOCOL = f"{VERSION}+5"
"""Head and agents must have the same one. The number after the plus grows when these messages
change."""
PACKET_LIMITS = Limits(frame_bytes=64 << 20, frames=1, message_bytes=64 << 20)
"""Large enough for a plan of tens of thousands of workers. Larger packets are refused unread."""
RESEND_SECONDS = 1.0
_Text = Annotated[str, msgspec.Meta(max_length=1024)]
_Address = Annotated[str, msgspec.Meta(pattern=r"^tcp://[!-~]{1,256}:[0-9]{1,5}$")]
_Key = Annotated[str, msgspec.Meta(pattern=r"^[!-~]{40}$")]
_Clock = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]


# -- from an agent ---------------------------------------------------------------------------------


class JoinRequest(msgspec.Struct, tag="join", frozen=True, kw_only=True):
    """An agent asks to become a host of the run."""

    token: _Text
    """Random for each agent. It distinguishes agents of one name from an agent that asks again."""
    name: _Text
    machine: _Text
    pid: Count
    cores: Count
    address: _Text
    """The address where its bridge will listen."""
    holds: tuple[_Text, ...] = ()
    """Groups of workers that may run here, although the `hosts` setting does not name this host."""
    version: _Text
    """The agent's `PROTOCOL`."""


class StatsRow(msgspec.Struct, tag="row", frozen=True, array_like=True):
    """A worker's row of the stats table."""

    worker: str
    incarnation: int
    """The incarnation of its process."""
    cells: bytes


class Heartbeat(msgspec.Struct, tag="beat", frozen=True, kw_only=True):
    """An agent is alive; with the worker stats of its host."""

    now_ns: _Clock
    """The agent's clock. Times in its rows are by this clock."""
    rows: tuple[StatsRow, ...] = ()
    conditions: dict[str, Condition] = {}
    """What the system reports about silent processes."""
    accounts: dict[str, StreamAccount] = {}
    """The accounts of its sample streams, by name."""
    bridge: dict[str, Annotated[int, msgspec.Meta(ge=0, le=1 << 56)]] = {}
    """The counters of its bridge, by name."""


class Ready(msgspec.Struct, tag="ready", frozen=True, kw_only=True):
    """The agent has the plan."""

    sees_run_dir: bool
    """Whether this host shares the head's run directory, as on a shared file system."""


class Started(msgspec.Struct, tag="started", frozen=True, kw_only=True):
    """A process has started."""

    process: str
    incarnation: int
    pid: Count


class Exited(msgspec.Struct, tag="exited", frozen=True, kw_only=True):
    """A process has ended, and what it held was reclaimed."""

    process: str
    incarnation: int
    pid: Count
    code: int
    failure: Failure | None = None
    now_ns: _Clock
    """The agent's clock. Times in its rows are by this clock."""
    rows: tuple[StatsRow, ...] = ()
    """The last stats of its workers. They may be newer than the last heartbeat."""


class BridgeAddress(msgspec.Struct, tag="bridge", frozen=True, kw_only=True):
    """The host's bridge has started to listen."""

    address: _Address
    public_key: _Key
    incarnation: Count
    """Grows with every bridge of the host, and each time the host joins."""


class Reports(msgspec.Struct, tag="reports", frozen=True):
    """Messages of workers to the metrics collector, unchanged."""

    messages: tuple[bytes, ...]


class Output(msgspec.Struct, tag="output", frozen=True):
    """Text that a process has printed."""

    process: str
    text: bytes


class FinalAccounts(msgspec.Struct, tag="accounts", frozen=True):
    """The accounts of the host's sample streams after all its workers have ended."""

    accounts: dict[str, StreamAccount]


class AgentProblem(msgspec.Struct, tag="trouble", frozen=True):
    """The agent cannot go on, or was told to leave. It leaves after this."""

    text: str


class AgentLeft(msgspec.Struct, tag="left", frozen=True):
    """All processes have ended and the agent leaves."""


# -- from the head ---------------------------------------------------------------------------------


class Welcome(msgspec.Struct, tag="welcome", frozen=True, kw_only=True):
    """The agent has joined: its host belongs to the run now."""

    token: str
    name: str
    incarnation: int


class Refusal(msgspec.Struct, tag="refusal", frozen=True, kw_only=True):
    """The agent cannot join, or not yet."""

    token: str
    reason: str
    final: bool
    """Whether it is useless to ask again."""


class Unknown(msgspec.Struct, tag="unknown", frozen=True):
    """The session is over, because the host was given up. The agent may join again."""


class Brief(msgspec.Struct, tag="brief", frozen=True, kw_only=True):
    """The plan of the run; sent once to each host."""

    plan: bytes
    """JSON, compressed by zlib: it is mostly names, and all hosts get it at the same time."""
    run_dir: str
    probe: str
    """The content of the file `.session` in the head's run directory."""


class Start(msgspec.Struct, tag="start", frozen=True, kw_only=True):
    """Start a worker process."""

    process: str
    incarnation: int
    modules: tuple[str, ...]


class GiveOrders(msgspec.Struct, tag="order", frozen=True, kw_only=True):
    """Give a process its part of the plan."""

    process: str
    incarnation: int
    checkpoint: str
    rows: tuple[StatsRow, ...]
    """The stats of its workers from before, on this host or another one."""


class Kill(msgspec.Struct, tag="kill", frozen=True, kw_only=True):
    """Kill a process."""

    process: str
    incarnation: int


class Leave(msgspec.Struct, tag="leave", frozen=True, kw_only=True):
    """Tell a process to finish by itself."""

    process: str
    incarnation: int


class Notice(msgspec.Struct, tag="notice", frozen=True, kw_only=True):
    """Orders of the head to all workers."""

    stop: bool
    checkpoint: int
    """The number of the requested checkpoint; 0 is none."""
    folder: str
    """The folder of that checkpoint."""


class PeerList(msgspec.Struct, tag="book", frozen=True, kw_only=True):
    """The address book, or its changes.

    With thousands of processes the address book is long, and usually only one entry changes.
    """

    epoch: int
    hosts: tuple[str, ...]
    """All hosts in the address book, in order."""
    peers: tuple[Peer, ...]
    """The entries that are new or have changed."""

    def after(self, before: Peers) -> Peers:
        """The complete new address book, from the one before it."""
        known = before.by_host | {peer.host: peer for peer in self.peers}
        peers = tuple(known[host] for host in self.hosts)
        return Peers(own=before.own, epoch=self.epoch, peers=peers)


class Finish(msgspec.Struct, tag="finish", frozen=True):
    """The run is over: end all processes and leave."""


class KeepAlive(msgspec.Struct, tag="pulse", frozen=True):
    """The head is alive."""


Message = (
    JoinRequest | Heartbeat | Ready | Started | Exited | BridgeAddress | Reports | Output
    | FinalAccounts | AgentProblem | AgentLeft | Welcome | Refusal | Unknown | Brief | Start
    | GiveOrders | Kill | Leave | Notice | PeerList | Finish | KeepAlive
)  # fmt: skip


class Packet(msgspec.Struct, frozen=True, array_like=True):
    """One message with its session and numbers."""

    session: str
    number: int
    """Counts from 1; 0 for a message that need not arrive."""
    acknowledges: int
    """All messages of the other side up to this number have arrived."""
    message: Message


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Packet)


def encode(packet: Packet) -> bytes:
    """Encodes a packet."""
    return _encoder.encode(packet)


def decode(data: bytes) -> Packet:
    """Decodes a packet; SpecError if `data` is not one."""
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError) as error:
        raise SpecError(
            f"control packet: expected a valid one, got {len(data)} bytes ({error})."
        ) from None


class Channel:
    """One side of a session: messages arrive once and in order, also over a bad network."""

    def __init__(self, session: str) -> None:
        self.session = session
        self._unacknowledged: deque[tuple[int, Message]] = deque()
        """Messages that are not acknowledged yet, with their numbers."""
        self._num_new = 0
        """How many of them, at the end, were never sent."""
        self._next = 1
        self._received = 0
        self._sent_at = 0.0
        self._resend_at = 0.0

    @property
    def backlog(self) -> int:
        """The number of messages that are not acknowledged yet."""
        return len(self._unacknowledged)

    def post(self, message: Message) -> None:
        """Queues a message that must arrive."""
        self._unacknowledged.append((self._next, message))
        self._next += 1
        self._num_new += 1

    def packets(self, now: float) -> list[Packet]:
        """Packets to send now: new messages, or all of them if an acknowledgement is late."""
        self._sent_at = now
        due = list(self._unacknowledged)
        if self._num_new < len(due) and now < self._resend_at:
            due = due[len(due) - self._num_new :]
        elif due:
            self._resend_at = now + RESEND_SECONDS
        self._num_new = 0
        return [Packet(self.session, number, self._received, message) for number, message in due]

    def state(self, message: Message) -> Packet:
        """A packet for a message that need not arrive."""
        return Packet(self.session, 0, self._received, message)

    def receive(self, packet: Packet) -> Message | None:
        """The message of a packet; None if it came before, or if an earlier one is missing."""
        while self._unacknowledged and self._unacknowledged[0][0] <= packet.acknowledges:
            self._unacknowledged.popleft()
            self._resend_at = self._sent_at + RESEND_SECONDS
        self._num_new = min(self._num_new, len(self._unacknowledged))
        if packet.number == 0:
            return packet.message
        if packet.number != self._received + 1:
            return None
        self._received += 1
        return packet.message
