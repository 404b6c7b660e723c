"""Membership: which hosts have joined a run, are silent or are gone.

Each joined host is a `RemoteNode`, through which the head controls the processes there. The head
gives up a host that is silent for too long, or that leaves. If its agent sends messages afterwards,
the head answers that the session is over. The agent then ends its processes and joins again.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from pathlib import Path

import zmq

from srl.arena.shm import BRIDGE
from srl.errors import SpecError
from srl.experiment import NAME
from srl.launch.cluster.node import HEAD_HOST
from srl.launch.cluster.protocol import (
    PROTOCOL,
    AgentLeft,
    AgentProblem,
    BridgeAddress,
    Brief,
    Exited,
    FinalAccounts,
    Finish,
    Heartbeat,
    JoinRequest,
    KeepAlive,
    Message,
    Notice,
    Output,
    Packet,
    PeerList,
    Ready,
    Refusal,
    Reports,
    Started,
    StatsRow,
    Unknown,
    Welcome,
    decode,
    encode,
)
from srl.launch.cluster.remote_node import RemoteNode
from srl.net.peers import Peer
from srl.net.sockets import Listener
from srl.plan import Plan, WorkerPlan
from srl.services.messages import Message as Report
from srl.services.messages import decode as read_report
from srl.services.worker_stats import StatsTable, WorkerStats

log = logging.getLogger("srl")

KEEP_ALIVE_SECONDS = 0.25
"""Time between two keep-alive messages to an agent."""
HEAR_SECONDS = 0.1
"""How long the head receives at a time. If messages come faster than it can handle them, its own
messages must still be sent."""
SILENT_SECONDS = 2.0
"""After this long without a message a host is silent: another of the same name may replace it."""
PRESENT_SECONDS = 5.0
"""A connection that closes this soon after a message was closed because the agent has ended. One
that a broken network has cut closes later."""
CLOSED_SECONDS = 2.0
"""How long an agent may take to connect again after its connection closed."""


class Membership:
    """The control socket of the head, and the hosts that have joined through it."""

    def __init__(
        self,
        listener: Listener,
        *,
        wanted: tuple[str, ...],
        silence_seconds: float,
        logs: Path,
        return_seconds: float = 0.0,
    ) -> None:
        """An agent without a name gets the name of a missing `wanted` host.

        An agent that has ended may take `return_seconds` to be started again and to join.
        """
        self.wanted = wanted
        self.nodes: dict[str, RemoteNode] = {}
        """The hosts that have joined, by name."""
        self.joined: deque[RemoteNode] = deque()
        """Hosts that have joined; the caller takes them out."""
        self.lost: deque[RemoteNode] = deque()
        """Hosts that are gone; the caller takes them out."""
        self.reports: deque[Report] = deque()
        """Reports of workers; the caller takes them out."""
        self.book_changed = False
        """Whether a host or a bridge has come or gone since the address book was published."""
        self.refused = 0
        """How many packets, or parts of packets, were invalid."""
        self._cannot_log = False
        self.stats_table: StatsTable | None = None
        self.is_behind = False
        """Whether `poll` returned before all messages were read."""
        self._listener = listener
        self._socket = listener.socket
        self._silence_seconds = silence_seconds
        self._closed_seconds = max(CLOSED_SECONDS, return_seconds)
        self._logs = logs
        self._sessions: dict[str, RemoteNode] = {}
        self._identities: dict[str, bytes] = {}
        self._incarnations: dict[str, int] = {}
        self._brief: Brief | None = None
        self._notice: Notice | None = None
        self._slots: dict[str, str] = {}
        self._members: dict[str, list[WorkerPlan]] = {}
        self._published: dict[str, Peer] = {}
        self._beats: dict[RemoteNode, tuple[Heartbeat, int]] = {}
        """By host: a heartbeat whose rows are not stored yet, and how far its clock is behind."""
        self._next_keep_alive = 0.0

    def fileno(self) -> int:
        """The descriptor to wait on."""
        return int(self._socket.getsockopt(zmq.FD))

    def stop_listening(self) -> None:
        """Accepts no new connections; connections of hosts that are here stay."""
        self._listener.stop_listening()

    def turned_away(self) -> int:
        """The number of refused connections and invalid packets."""
        return self._listener.refused + self.refused

    def missing(self) -> list[str]:
        """Wanted hosts that are not here."""
        return [name for name in self.wanted if name not in self.nodes]

    def is_silent(self, name: str) -> bool:
        """Whether a host is here, but no message has come for `SILENT_SECONDS`."""
        node = self.nodes.get(name)
        return node is not None and time.monotonic() - node.heard > SILENT_SECONDS

    def brief(self, brief: Brief, plan: Plan, stats_table: StatsTable) -> None:
        """Sends the plan to every host that is here, and to every host that joins later."""
        self._brief, self.stats_table = brief, stats_table
        self._slots = {worker.name: worker.process for worker in plan.workers}
        self._members = plan.processes
        for node in self.nodes.values():
            self._send_brief(node)

    def _send_brief(self, node: RemoteNode) -> None:
        node.rows_of = self._rows_of
        if self._brief is not None:
            node.channel.post(self._brief)
        if self._notice is not None:
            node.channel.post(self._notice)

    def notify(self, notice: Notice) -> None:
        """Sends the orders for all workers (stop, checkpoint) to every host, and to later ones."""
        self._notice = notice
        self.post(notice)

    def post(self, message: Message) -> None:
        """Sends a message that must arrive to every host."""
        for node in self.nodes.values():
            node.channel.post(message)
        self.send(time.monotonic())

    def publish(self, peers: tuple[Peer, ...], epoch: int) -> None:
        """Sends the address book to every host: all of it once, later only the changes."""
        self.book_changed = False
        changed = tuple(peer for peer in peers if self._published.get(peer.host) != peer)
        self._published = {peer.host: peer for peer in peers}
        for node in self.nodes.values():
            new = changed if node.has_book else peers
            node.channel.post(PeerList(epoch=epoch, hosts=tuple(self._published), peers=new))
            node.has_book = True

    def _rows_of(self, process: str) -> tuple[StatsRow, ...]:
        assert self.stats_table is not None
        rows = self.stats_table.rows
        return tuple(StatsRow(w.name, 0, rows[w.name].dump()) for w in self._members[process])

    # -- the socket --------------------------------------------------------------------------------

    def poll(self) -> None:
        """Handles received messages, gives up hosts that are silent for too long, and sends."""
        now = time.monotonic()
        self.is_behind = False
        while not self.is_behind and (frames := self._listener.receive()) is not None:
            self._take([frame.bytes for frame in frames], now)
            self.is_behind = time.monotonic() > now + HEAR_SECONDS
        for node in list(self._beats):
            self._take_rows(node)
        for node in list(self.nodes.values()):
            if now - node.heard > self._silence_seconds:
                self._give_up(node, f"silent for {now - node.heard:.0f} s")
            elif node.closed is not None and now - node.closed > self._closed_seconds:
                self._give_up(node, "its agent has ended")
        self.send(now)

    def send(self, now: float) -> None:
        """Sends all messages that are due, and keep-alives."""
        keeps_alive = now >= self._next_keep_alive
        if keeps_alive:
            self._next_keep_alive = now + KEEP_ALIVE_SECONDS
        for node in self.nodes.values():
            packets = node.channel.packets(now)
            if keeps_alive and not packets:
                packets = [node.channel.state(KeepAlive())]
            for packet in packets:
                is_open = self._write(self._identities[node.channel.session], packet)
                was_here = now - node.heard < PRESENT_SECONDS and not self.is_behind
                if not is_open and was_here and node.closed is None:
                    node.closed = now

    def _write(self, identity: bytes, packet: Packet) -> bool:
        """Sends a packet; False if its connection is closed."""
        try:
            self._socket.send_multipart([identity, encode(packet)], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            # Closed connection or full queue: it is sent again, or the host is given up.
            return error.errno != zmq.EHOSTUNREACH
        return True

    def _take(self, frames: list[bytes], now: float) -> None:
        try:
            if len(frames) != 2:
                raise SpecError(f"control packet: expected 2 frames, got {len(frames)}.")
            packet = decode(frames[1])
        except SpecError as error:
            self._count_refused(error)
            return
        if isinstance(packet.message, JoinRequest):
            self._welcome(frames[0], packet.message, now)
            return
        node = self._sessions.get(packet.session)
        if node is None:
            self._write(frames[0], Packet(packet.session, 0, 0, Unknown()))
            return
        self._identities[packet.session] = frames[0]
        node.heard, node.closed = now, None
        message = node.channel.receive(packet)
        if message is not None:
            self._handle(node, message)

    def _count_refused(self, error: SpecError) -> None:
        self.refused += 1
        if self.refused in (1, 10, 100, 1000):
            log.warning("refused on the control socket (%d so far): %s", self.refused, error)

    def _handle(self, node: RemoteNode, message: Message) -> None:
        if not isinstance(message, Heartbeat):
            # Rows of an earlier heartbeat are stored before this message is handled.
            self._take_rows(node)
        match message:
            case Heartbeat():
                node.beat(message)
                self._beats[node] = (message, time.monotonic_ns() - message.now_ns)
            case Started():
                node.started(message)
            case Exited():
                self._load_rows(node, message.rows, time.monotonic_ns() - message.now_ns)
                node.exited(message)
            case Reports():
                self._take_reports(message)
            case Output():
                self._write_output(node, message)
            case BridgeAddress():
                if node.bridge is not None:
                    log.warning("the bridge of host %s ended; another one has started", node.name)
                node.bridge = message
                self.book_changed = True
            case Ready():
                node.sees_run_dir = message.sees_run_dir
            case FinalAccounts():
                node.accounts = message.accounts
            case AgentProblem():
                node.gone = message.text
            case AgentLeft():
                self._give_up(node, node.gone or "left")
            case _:
                self.refused += 1

    def _take_reports(self, reports: Reports) -> None:
        for data in reports.messages:
            try:
                self.reports.append(read_report(data))
            except SpecError as error:
                self._count_refused(error)

    def _take_rows(self, node: RemoteNode) -> None:
        """Stores the rows of a host's newest heartbeat. Older heartbeats have nothing to add."""
        beat, shift = self._beats.pop(node, (None, 0))
        if beat is not None:
            self._load_rows(node, beat.rows, shift)

    def _load_rows(self, node: RemoteNode, reported: tuple[StatsRow, ...], shift: int) -> None:
        """Stores rows of a host's processes. The host's clock is `shift` nanoseconds behind."""
        if self.stats_table is None:
            return
        rows, data = [], []
        for row in reported:
            stats = self.stats_table.rows.get(row.worker)
            if stats is None:
                self._count_refused(SpecError(f"row: there is no worker {row.worker!r}."))
            elif node.incarnation_of(self._slots[row.worker]) == row.incarnation:
                rows.append(stats)
                data.append(row.cells)
        if not WorkerStats.load_all(rows, data, shift):
            for stats, cells in zip(rows, data, strict=True):
                try:
                    stats.load(cells, shift)
                except SpecError as error:
                    self._count_refused(error)

    def _write_output(self, node: RemoteNode, message: Output) -> None:
        known = message.process == BRIDGE or node.is_alive(message.process)
        name = f"bridge-{node.name}" if message.process == BRIDGE else message.process
        if not known:
            return
        try:
            with (self._logs / f"{name}.log").open("ab") as file:
                file.write(message.text)
        except OSError as error:
            # The output of a worker is not important enough to end the run.
            if not self._cannot_log:
                log.warning("%s.log: cannot be written (%s)", name, error.strerror)
            self._cannot_log = True

    # -- hosts join and leave ----------------------------------------------------------------------

    def _welcome(self, identity: bytes, join: JoinRequest, now: float) -> None:
        node = next((n for n in self.nodes.values() if n.join.token == join.token), None)
        if node is None:
            name = join.name or self._new_name()
            refusal = self._refusal(name, join, now)
            if refusal is not None:
                self._write(identity, Packet("", 0, 0, refusal))
                return
            if name in self.nodes:
                self._give_up(self.nodes[name], "another agent took its place")
            node = self._add(name, join, now)
            self._identities[node.channel.session] = identity
            self._send_brief(node)
        welcome = Welcome(token=join.token, name=node.name, incarnation=node.incarnation)
        self._write(identity, Packet(node.channel.session, 0, 0, welcome))

    def _refusal(self, name: str, join: JoinRequest, now: float) -> Refusal | None:
        reason, final = "", True
        if join.version != PROTOCOL:
            reason = f"expected SRL {PROTOCOL} as on the head, got {join.version}"
        elif not NAME.fullmatch(name) or name == HEAD_HOST:
            reason = f"expected a name of letters, digits, '_', '.' and '-', got {name!r}"
        elif name in self.nodes and self._is_here(self.nodes[name], now):
            reason, final = f"a host named {name!r} has joined already", False
        return Refusal(token=join.token, reason=reason, final=final) if reason else None

    @staticmethod
    def _is_here(node: RemoteNode, now: float) -> bool:
        return node.closed is None and now - node.heard < SILENT_SECONDS

    def _new_name(self) -> str:
        missing = self.missing()
        if missing:
            return missing[0]
        number = 1
        while f"host-{number}" in self.nodes:
            number += 1
        return f"host-{number}"

    def _add(self, name: str, join: JoinRequest, now: float) -> RemoteNode:
        incarnation = self._incarnations.get(name, -1) + 1
        self._incarnations[name] = incarnation
        node = RemoteNode(name, incarnation, join, now)
        self.nodes[name] = node
        self._sessions[node.channel.session] = node
        self.joined.append(node)
        self.book_changed = True
        return node

    def _give_up(self, node: RemoteNode, why: str) -> None:
        node.gone = why
        del self.nodes[node.name]
        del self._sessions[node.channel.session]
        del self._identities[node.channel.session]
        self.lost.append(node)
        self.book_changed = True

    # -- the end -----------------------------------------------------------------------------------

    def finish(self, seconds: float) -> list[str]:
        """Tells every host that the run is over; returns the hosts that did not leave in time."""
        self.post(Finish())
        deadline = time.monotonic() + seconds
        while self.nodes and time.monotonic() < deadline:
            self._socket.poll(20)
            self.poll()
        return list(self.nodes)

    def close(self) -> None:
        """Stops listening."""
        self._socket.close(linger=0)
