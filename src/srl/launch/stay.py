"""A host's stay in a run, from its agent's side: folder, processes, gate, reports."""

from __future__ import annotations

import time
import zlib
from contextlib import suppress
from pathlib import Path

import msgspec

from srl.arena.shm import CONTROLLER, GATE, LockHeld, RunFolder, ShmArena
from srl.gates.counters import GateCounters
from srl.launch.children import EXIT_SECONDS
from srl.launch.control import (
    Beat,
    Book,
    Brief,
    Channel,
    Exited,
    GateIs,
    Kill,
    LastBooks,
    Leave,
    Message,
    Notice,
    Order,
    Output,
    Ready,
    Reports,
    Row,
    Start,
    Started,
    Welcome,
)
from srl.launch.gatekeeper import GateKeeper
from srl.launch.local import LocalPlace
from srl.launch.worker import say_where
from srl.net.peers import Peers
from srl.services.board import Board
from srl.services.metrics_client import MetricsServer
from srl.streams.inference import create_inference
from srl.streams.sample import create_sample
from srl.streams.sample_books import Ledger, glance
from srl.streams.sample_memory import SampleMemory
from srl.workers.wiring import Plan, WorkerPlan

BEAT_SECONDS = 0.25
MAX_BACKLOG = 10_000
"""Messages kept for a head that does not answer; reports and output beyond that are dropped."""
SESSION_FILE = ".session"
"""By this file in the run directory an agent sees whether it has the head's own before it."""


class Stay:
    """What an agent has between its welcome and its goodbye."""

    def __init__(self, welcome: Welcome, session: str, bind: str, port: int = 0) -> None:
        """Its gate listens at `bind`; port 0 is any that is free."""
        self.channel = Channel(session)
        self.folder = RunFolder()
        self._bind, self._port = bind, port
        self._arena = ShmArena(self.folder.path, CONTROLLER, gated=True, lazy=True)
        self._place = LocalPlace(welcome.name, self._arena, logs=None, gated=True)
        self._keeper = GateKeeper(
            self._place.children, self._arena, welcome.name, welcome.incarnation
        )
        self._book = Peers(own=welcome.name)
        self._gate = GateCounters(self._arena)
        self._server = MetricsServer(self.folder.path)
        self._board: Board | None = None
        self._members: dict[str, list[WorkerPlan]] = {}
        self._samples: dict[str, SampleMemory] = {}
        self._next_beat = 0.0
        self._hurried = False
        self._ending = False
        self._gate_ended = ""
        """How the gate ended, until it is replaced."""

    def fileno(self) -> int:
        """Of the socket that its workers report to."""
        return self._server.fileno()

    # -- what the head asks for --------------------------------------------------------------------

    def handle(self, message: Message) -> None:
        """Does what the head asks for."""
        match message:
            case Brief():
                self._take_brief(message)
            case Start():
                self._start(message)
            case Order():
                self._order(message)
            case Kill() if self._runs(message):
                self._place.kill(message.process)
            case Leave() if self._runs(message):
                self._place.leave(message.process)
            case Notice():
                self._notice(message)
            case Book():
                self._book = message.after(self._book)
                self._keeper.publish(self._book)
            case _:
                pass

    def _take_brief(self, brief: Brief) -> None:
        plan = msgspec.json.decode(zlib.decompress(brief.plan), type=Plan)
        self._board = Board(self._arena, tuple(worker.name for worker in plan.workers))
        self._members = plan.processes
        for asked in plan.inference.values():
            if asked.carrier != "inline":
                create_inference(asked.spec, self._arena, clients=())
        for name, stream in plan.samples.items():
            if stream.carrier != "inline":
                # Until the gate knows that the readers are here, somebody else grants the slots.
                create_sample(stream.spec, self._arena, granted=True)
                self._samples[name] = SampleMemory(stream.spec, self._arena)
        self._place.attach(plan, brief.run_dir, lazy=True, address=self._bind)
        self._keeper.start(plan, self._bind, self._port)
        probe = ""
        with suppress(OSError):
            probe = (Path(brief.run_dir) / SESSION_FILE).read_text()
        self.channel.post(Ready(sees_run_dir=probe == brief.probe))

    def _runs(self, message: Kill | Leave | Order) -> bool:
        child = self._place.children.living.get(message.process)
        return child is not None and child.incarnation == message.incarnation

    def _start(self, message: Start) -> None:
        self._place.start(message.process, message.incarnation, message.modules)
        pid = self._place.pid(message.process)
        started = Started(process=message.process, incarnation=message.incarnation, pid=pid)
        self.channel.post(started)

    def _order(self, message: Order) -> None:
        if not self._runs(message):
            return
        assert self._board is not None
        for row in message.rows:
            self._board.rows[row.worker].load(row.cells, 0)
            self._board.rows[row.worker].enter("starting")
        for member in self._members[message.process]:
            for stream in self._samples.keys() & member.reads:
                # Its slots are all used here, and running out later would end whoever writes one.
                self._arena.reserve(f"sample/{stream}", "sample.slots")
        self._place.order(message.process, message.checkpoint)

    def _notice(self, notice: Notice) -> None:
        assert self._board is not None
        if notice.checkpoint:
            say_where(self.folder.path, notice.folder)
            self._board.checkpoint = notice.checkpoint
        self._board.stop = notice.stop
        # Someone waits for what the workers do now.
        self._hurried = notice.stop
        self._ring_all()

    def _ring_all(self) -> None:
        for process in self._place.processes:
            self._arena.ring(process)

    # -- what the head is told ---------------------------------------------------------------------

    def turn(self) -> None:
        """Looks after the processes and queues what the head is to know."""
        room = self.channel.backlog < MAX_BACKLOG
        reports = tuple(self._server.datagrams())
        if reports and room:
            self.channel.post(Reports(reports))
        ended = self._place.exits()
        for process, text in self._place.children.output():
            if room:
                self.channel.post(Output(process, text))
        for each in ended:
            if each.process == GATE:
                self._gate_ended = each.how
                continue
            self.channel.post(
                Exited(
                    process=each.process,
                    incarnation=each.incarnation,
                    pid=each.pid,
                    code=each.code,
                    failure=each.failure,
                    now_ns=time.monotonic_ns(),
                    rows=tuple(self._rows(each.process, each.incarnation)),
                )
            )
        if self._gate_ended and not self._ending:
            with suppress(LockHeld):
                self._place.take_back_relayed()
                self._keeper.replace(self._gate_ended)
                self._gate_ended = ""
        up = self._keeper.news()
        if up is not None:
            self.channel.post(
                GateIs(address=up.address, public_key=up.public_key, incarnation=up.incarnation)
            )

    def beat(self, now: float) -> Beat | None:
        """A beat, when one is due."""
        if now < self._next_beat and not self._hurried:
            return None
        self._next_beat = now + BEAT_SECONDS
        now_ns = time.monotonic_ns()
        rows: list[Row] = []
        stopped = []
        for name, child in self._place.children.living.items():
            rows += self._rows(name, child.incarnation)
            for member in self._members.get(name, ()):
                assert self._board is not None
                silent = now_ns - self._board.rows[member.name].get("heartbeat_ns")
                if silent > 1e9 and self._place.is_stopped(name):
                    stopped.append(name)
        return Beat(
            now_ns=now_ns,
            rows=tuple(rows),
            stopped=tuple(stopped),
            books=self._books(),
            gate=self._gate.told(),
        )

    def _rows(self, process: str, incarnation: int) -> list[Row]:
        """What a process's workers say."""
        if self._board is None:
            return []
        board = self._board.rows
        members = self._members.get(process, ())
        return [Row(member.name, incarnation, board[member.name].dump()) for member in members]

    def _books(self) -> dict[str, Ledger]:
        """Of the streams that have been used here."""
        found = {name: glance(memory) for name, memory in self._samples.items()}
        return {name: books for name, books in found.items() if books != Ledger.empty()}

    # -- the end -----------------------------------------------------------------------------------

    def end(self, seconds: float = EXIT_SECONDS) -> None:
        """Ends every process, kindly at first, and tells of it."""
        if self._board is not None:
            self._board.stop = True
            self._ring_all()
        self._ending = True
        self._place.children.end(seconds)
        self.turn()
        self.channel.post(LastBooks(self._books()))

    def close(self) -> None:
        """Ends what still runs and removes the folder."""
        self._place.close()
        self._server.close()
        self._arena.close()
        self.folder.remove()
