"""The hosts of a run, as the head sees them: who has joined, who is silent, who is gone.

Each joined host is a `RemotePlace`: the launcher starts and watches processes there as it does at
home. A host is given up when it has been silent for too long or says that it leaves; should its
agent come back afterwards, it is told so, ends what it still runs, and joins anew.
"""

from __future__ import annotations

import logging
import re
import time
from collections import deque
from pathlib import Path

import zmq

from srl.arena.shm import GATE
from srl.errors import SpecError
from srl.launch.control import (
    PROTOCOL,
    Beat,
    Book,
    Brief,
    Exited,
    Finish,
    GateIs,
    Join,
    LastBooks,
    Left,
    Message,
    Notice,
    Output,
    Packet,
    Pulse,
    Ready,
    Refusal,
    Reports,
    Row,
    Started,
    Trouble,
    Unknown,
    Welcome,
    decode,
    encode,
)
from srl.launch.places import HOME
from srl.launch.remote_place import RemotePlace
from srl.net.peers import Peer
from srl.net.sockets import Listener
from srl.services.board import Board, BoardRow
from srl.services.messages import Message as Report
from srl.services.messages import decode as read_report
from srl.workers.wiring import Plan, WorkerPlan

log = logging.getLogger("srl")

PULSE_SECONDS = 0.25
HEAR_SECONDS = 0.1
"""How long the head listens at a time: where more is said than it can take, what it has to say
itself must not wait until all are silent."""
SILENT_SECONDS = 2.0
"""A host that was not heard of for so long is silent: another of its name may take its place."""
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class Hosts:
    """The control socket, and everyone who has joined through it."""

    def __init__(
        self,
        listener: Listener,
        *,
        wanted: tuple[str, ...],
        silence_seconds: float,
        logs: Path,
    ) -> None:
        """Names agents that have none after the `wanted` hosts that are missing."""
        self.wanted = wanted
        self.places: dict[str, RemotePlace] = {}
        """Those that are here, by name."""
        self.joined: deque[RemotePlace] = deque()
        """Those that have come since somebody looked."""
        self.lost: deque[RemotePlace] = deque()
        """Those that have gone since somebody looked."""
        self.reports: deque[Report] = deque()
        """What workers reported."""
        self.book_changed = False
        """Whether a host or its gate has come or gone."""
        self.refused = 0
        """Packets that were none, and what in them was none."""
        self._cannot_log = False
        self.board: Board | None = None
        self.is_behind = False
        """Whether there may be more to hear at once."""
        self._listener = listener
        self._socket = listener.socket
        self._silence_seconds = silence_seconds
        self._logs = logs
        self._sessions: dict[str, RemotePlace] = {}
        self._identities: dict[str, bytes] = {}
        self._incarnations: dict[str, int] = {}
        self._brief: Brief | None = None
        self._notice: Notice | None = None
        self._homes: dict[str, str] = {}
        self._members: dict[str, list[WorkerPlan]] = {}
        self._book: dict[str, Peer] = {}
        self._beats: dict[RemotePlace, tuple[Beat, int]] = {}
        """The last beat of each host whose rows were not taken over yet, and how far its clock is
        behind."""
        self._next_pulse = 0.0

    def fileno(self) -> int:
        """For waiting together with other things."""
        return int(self._socket.getsockopt(zmq.FD))

    def turned_away(self) -> int:
        """Connections of strangers, and packets that were none."""
        return self._listener.refused + self.refused

    def missing(self) -> list[str]:
        """Hosts that are wanted and not here."""
        return [name for name in self.wanted if name not in self.places]

    def is_silent(self, name: str) -> bool:
        """Whether a host has not been heard of for a moment."""
        place = self.places.get(name)
        return place is not None and time.monotonic() - place.heard > SILENT_SECONDS

    def brief(self, brief: Brief, plan: Plan, board: Board) -> None:
        """Tells everyone here, and everyone who comes, what the run is."""
        self._brief, self.board = brief, board
        self._homes = {worker.name: worker.process for worker in plan.workers}
        self._members = plan.processes
        for place in self.places.values():
            self._introduce(place)

    def _introduce(self, place: RemotePlace) -> None:
        place.rows_of = self._rows_of
        if self._brief is not None:
            place.channel.post(self._brief)
        if self._notice is not None:
            place.channel.post(self._notice)

    def notify(self, notice: Notice) -> None:
        """Tells everyone what the board says to all."""
        self._notice = notice
        self.post(notice)

    def post(self, message: Message) -> None:
        """Tells everyone something that must arrive."""
        for place in self.places.values():
            place.channel.post(message)
        self.send(time.monotonic())

    def publish(self, peers: tuple[Peer, ...], epoch: int) -> None:
        """Gives everyone the address book: all of it once, and then what has changed."""
        self.book_changed = False
        changed = tuple(peer for peer in peers if self._book.get(peer.host) != peer)
        self._book = {peer.host: peer for peer in peers}
        for place in self.places.values():
            new = changed if place.has_book else peers
            place.channel.post(Book(epoch=epoch, hosts=tuple(self._book), peers=new))
            place.has_book = True

    def _rows_of(self, process: str) -> tuple[Row, ...]:
        assert self.board is not None
        rows = self.board.rows
        return tuple(Row(w.name, 0, rows[w.name].dump()) for w in self._members[process])

    # -- the socket --------------------------------------------------------------------------------

    def poll(self) -> None:
        """Takes what has come, sends what is due, and gives up who was silent for too long."""
        now = time.monotonic()
        self.is_behind = False
        while not self.is_behind and (frames := self._listener.receive()) is not None:
            self._take([frame.bytes for frame in frames], now)
            self.is_behind = time.monotonic() > now + HEAR_SECONDS
        for place in list(self._beats):
            self._take_rows(place)
        for place in list(self.places.values()):
            if now - place.heard > self._silence_seconds:
                self._give_up(place, f"silent for {now - place.heard:.0f} s")
        self.send(now)

    def send(self, now: float) -> None:
        """Sends what is due."""
        pulse = now >= self._next_pulse
        if pulse:
            self._next_pulse = now + PULSE_SECONDS
        for place in self.places.values():
            packets = place.channel.packets(now)
            if pulse and not packets:
                packets = [place.channel.state(Pulse())]
            for packet in packets:
                self._write(self._identities[place.channel.session], packet)

    def _write(self, identity: bytes, packet: Packet) -> None:
        try:
            self._socket.send_multipart([identity, encode(packet)], zmq.NOBLOCK)
        except zmq.ZMQError:
            # Nobody there, or a full queue: it is sent again, or the host is given up.
            return

    def _take(self, frames: list[bytes], now: float) -> None:
        try:
            if len(frames) != 2:
                raise SpecError(f"control packet: expected 2 frames, got {len(frames)}.")
            packet = decode(frames[1])
        except SpecError as error:
            self._refuse_part(error)
            return
        if isinstance(packet.message, Join):
            self._welcome(frames[0], packet.message, now)
            return
        place = self._sessions.get(packet.session)
        if place is None:
            self._write(frames[0], Packet(packet.session, 0, 0, Unknown()))
            return
        self._identities[packet.session] = frames[0]
        place.heard = now
        message = place.channel.receive(packet)
        if message is not None:
            self._handle(place, message)

    def _refuse_part(self, error: SpecError) -> None:
        self.refused += 1
        if self.refused in (1, 10, 100, 1000):
            log.warning("refused on the control socket (%d so far): %s", self.refused, error)

    def _handle(self, place: RemotePlace, message: Message) -> None:
        if not isinstance(message, Beat):
            # What its workers had counted by then.
            self._take_rows(place)
        match message:
            case Beat():
                place.beat(message)
                self._beats[place] = (message, time.monotonic_ns() - message.now_ns)
            case Started():
                place.started(message)
            case Exited():
                self._load_rows(place, message.rows, time.monotonic_ns() - message.now_ns)
                place.exited(message)
            case Reports():
                self._take_reports(message)
            case Output():
                self._log(place, message)
            case GateIs():
                if place.gate is not None:
                    log.warning("the gate of host %s ended; it has another one", place.name)
                place.gate = message
                self.book_changed = True
            case Ready():
                place.sees_run_dir = message.sees_run_dir
            case LastBooks():
                place.books = message.books
            case Trouble():
                place.gone = message.text
            case Left():
                self._give_up(place, place.gone or "left")
            case _:
                self.refused += 1

    def _take_reports(self, reports: Reports) -> None:
        for data in reports.messages:
            try:
                self.reports.append(read_report(data))
            except SpecError as error:
                self._refuse_part(error)

    def _take_rows(self, place: RemotePlace) -> None:
        """Takes over what a host's last beat says; those before it have nothing to add."""
        beat, shift = self._beats.pop(place, (None, 0))
        if beat is not None:
            self._load_rows(place, beat.rows, shift)

    def _load_rows(self, place: RemotePlace, told: tuple[Row, ...], shift: int) -> None:
        """Takes over rows of processes that are at a host, whose clock is so far behind."""
        if self.board is None:
            return
        rows, data = [], []
        for row in told:
            known = self.board.rows.get(row.worker)
            if known is None:
                self._refuse_part(SpecError(f"row: there is no worker {row.worker!r}."))
            elif place.incarnation_of(self._homes[row.worker]) == row.incarnation:
                rows.append(known)
                data.append(row.cells)
        if not BoardRow.load_all(rows, data, shift):
            for known, cells in zip(rows, data, strict=True):
                try:
                    known.load(cells, shift)
                except SpecError as error:
                    self._refuse_part(error)

    def _log(self, place: RemotePlace, message: Output) -> None:
        known = message.process == GATE or place.is_alive(message.process)
        name = f"gate-{place.name}" if message.process == GATE else message.process
        if not known:
            return
        try:
            with (self._logs / f"{name}.log").open("ab") as file:
                file.write(message.text)
        except OSError as error:
            # What a worker prints is not worth the run.
            if not self._cannot_log:
                log.warning("%s.log: cannot be written (%s)", name, error.strerror)
            self._cannot_log = True

    # -- coming and going --------------------------------------------------------------------------

    def _welcome(self, identity: bytes, join: Join, now: float) -> None:
        here = next((p for p in self.places.values() if p.join.token == join.token), None)
        if here is None:
            name = join.name or self._new_name()
            refusal = self._refuse(name, join, now)
            if refusal is not None:
                self._write(identity, Packet("", 0, 0, refusal))
                return
            if name in self.places:
                self._give_up(self.places[name], "another agent took its place")
            here = self._add(name, join, now)
            self._identities[here.channel.session] = identity
            self._introduce(here)
        welcome = Welcome(token=join.token, name=here.name, incarnation=here.incarnation)
        self._write(identity, Packet(here.channel.session, 0, 0, welcome))

    def _refuse(self, name: str, join: Join, now: float) -> Refusal | None:
        reason, final = "", True
        if join.version != PROTOCOL:
            reason = f"expected SRL {PROTOCOL} as on the head, got {join.version}"
        elif not _NAME.fullmatch(name) or name == HOME:
            reason = f"expected a name of letters, digits, '_', '.' and '-', got {name!r}"
        elif name in self.places and now - self.places[name].heard < SILENT_SECONDS:
            reason, final = f"a host named {name!r} is here already", False
        return Refusal(token=join.token, reason=reason, final=final) if reason else None

    def _new_name(self) -> str:
        missing = self.missing()
        if missing:
            return missing[0]
        number = 1
        while f"host-{number}" in self.places:
            number += 1
        return f"host-{number}"

    def _add(self, name: str, join: Join, now: float) -> RemotePlace:
        incarnation = self._incarnations.get(name, -1) + 1
        self._incarnations[name] = incarnation
        place = RemotePlace(name, incarnation, join, now)
        self.places[name] = place
        self._sessions[place.channel.session] = place
        self.joined.append(place)
        self.book_changed = True
        return place

    def _give_up(self, place: RemotePlace, why: str) -> None:
        place.gone = why
        del self.places[place.name]
        del self._sessions[place.channel.session]
        del self._identities[place.channel.session]
        self.lost.append(place)
        self.book_changed = True

    # -- the end -----------------------------------------------------------------------------------

    def finish(self, seconds: float) -> list[str]:
        """Sends everyone home, waits for them, and names those who did not say goodbye in time."""
        self.post(Finish())
        deadline = time.monotonic() + seconds
        while self.places and time.monotonic() < deadline:
            self._socket.poll(20)
            self.poll()
        return list(self.places)

    def close(self) -> None:
        """Stops listening."""
        self._socket.close(linger=0)
