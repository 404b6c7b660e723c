"""A host that has joined, as a place for processes: what is asked of it, and what it has told."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable

from srl.gates.counters import TOLD
from srl.launch.control import (
    Beat,
    Channel,
    Exited,
    GateIs,
    Join,
    Kill,
    Leave,
    Order,
    Row,
    Start,
    Started,
)
from srl.launch.gatekeeper import GATES_PER_STAY
from srl.launch.places import Exit
from srl.net.peers import Peer
from srl.streams.sample_books import Ledger


class RemotePlace:
    """One host that has joined."""

    def __init__(self, name: str, incarnation: int, join: Join, now: float) -> None:
        self.name = name
        self.incarnation = incarnation
        self.join = join
        self.heard = now
        self.since = time.time()
        self.gate: GateIs | None = None
        self.has_book = False
        """Whether it was given the address book, and needs but what changes in it."""
        self.sees_run_dir: bool | None = None
        """Whether the head's run directory is there too; None until it has said so."""
        self.books: dict[str, Ledger] = {}
        """Of its sample streams, as it last said."""
        self.traffic: dict[str, int] = dict.fromkeys(TOLD, 0)
        """What its gate has counted, as it last said."""
        self.gone = ""
        """Why it left."""
        self.channel = Channel(secrets.token_hex(8))
        self.rows_of: Callable[[str], tuple[Row, ...]] = lambda process: ()
        self._running: dict[str, int] = {}
        self._pids: dict[str, int] = {}
        self._stopped: frozenset[str] = frozenset()
        self._exits: list[Exit] = []

    @property
    def processes(self) -> Iterable[str]:
        """Those that were started here and whose end was not told yet."""
        return list(self._running)

    def peer(self, processes: tuple[str, ...]) -> Peer:
        """Its entry in the address book."""
        if self.gate is None:
            first = self.incarnation * GATES_PER_STAY
            return Peer(host=self.name, incarnation=first, processes=processes)
        return Peer(
            host=self.name,
            incarnation=self.gate.incarnation,
            address=self.gate.address,
            public_key=self.gate.public_key,
            processes=processes,
        )

    def incarnation_of(self, process: str) -> int:
        """Which life of a process runs here; -1 if none."""
        return self._running.get(process, -1)

    def start(self, process: str, incarnation: int, modules: tuple[str, ...]) -> None:
        """Has a process started."""
        self._running[process] = incarnation
        self._pids.pop(process, None)
        message = Start(process=process, incarnation=incarnation, modules=modules)
        self.channel.post(message)

    def order(self, process: str, checkpoint: str) -> None:
        """Has a process given its part of the plan."""
        self.channel.post(
            Order(
                process=process,
                incarnation=self._running[process],
                checkpoint=checkpoint,
                rows=self.rows_of(process),
            )
        )

    def kill(self, process: str) -> None:
        """Has a process ended at once."""
        if process in self._running:
            self.channel.post(Kill(process=process, incarnation=self._running[process]))

    def leave(self, process: str) -> None:
        """Has a process told to finish by itself."""
        if process in self._running:
            self.channel.post(Leave(process=process, incarnation=self._running[process]))

    def exits(self) -> list[Exit]:
        """Processes whose end was told since the last time."""
        found, self._exits = self._exits, []
        return found

    def is_alive(self, process: str) -> bool:
        """Whether a process was started here and has not ended, as far as is known."""
        return process in self._running

    def pid(self, process: str) -> int:
        """A process's number there; 0 while it is not known."""
        return self._pids.get(process, 0)

    def is_stopped(self, process: str) -> bool:
        """Whether the system there has stopped it."""
        return process in self._stopped

    def beat(self, beat: Beat) -> None:
        """Takes over which processes are stopped, the books, and what the gate has counted."""
        self._stopped = frozenset(beat.stopped)
        self.books = beat.books
        self.traffic = {name: beat.gate.get(name, 0) for name in TOLD}

    def started(self, message: Started) -> None:
        """A process has its number."""
        if self._running.get(message.process) == message.incarnation:
            self._pids[message.process] = message.pid

    def exited(self, message: Exited) -> None:
        """A process has ended."""
        if self._running.get(message.process) != message.incarnation:
            return
        del self._running[message.process]
        self._exits.append(
            Exit(
                process=message.process,
                incarnation=message.incarnation,
                pid=message.pid,
                code=message.code,
                failure=message.failure,
            )
        )
