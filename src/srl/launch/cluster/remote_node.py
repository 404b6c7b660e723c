"""The node of a host that has joined: orders to its agent, and what the agent has reported."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable

from srl.bridge.counters import REPORTED
from srl.launch.cluster.bridge_supervisor import BRIDGES_PER_SESSION
from srl.launch.cluster.node import Exit
from srl.launch.cluster.protocol import (
    BridgeAddress,
    Channel,
    Exited,
    GiveOrders,
    Heartbeat,
    JoinRequest,
    Kill,
    Leave,
    Start,
    Started,
    StatsRow,
)
from srl.launch.process.process_state import Condition
from srl.net.peers import Peer
from srl.streams.sample_accounting import StreamAccount


class RemoteNode:
    """The processes of one host that has joined, as the head knows them."""

    def __init__(self, name: str, incarnation: int, join: JoinRequest, now: float) -> None:
        self.name = name
        self.incarnation = incarnation
        self.join = join
        self.heard = now
        self.closed: float | None = None
        """When its connection was found closed; None again once a message comes."""
        self.since = time.time()
        self.bridge: BridgeAddress | None = None
        self.has_book = False
        """Whether it has the whole address book. Then it needs changes only."""
        self.sees_run_dir: bool | None = None
        """Whether it shares the head's run directory; None until it has reported that."""
        self.accounts: dict[str, StreamAccount] = {}
        """The accounts of its sample streams, as last reported."""
        self.traffic: dict[str, int] = dict.fromkeys(REPORTED, 0)
        """The counters of its bridge, as last reported."""
        self.gone = ""
        """Why it left; empty while it is here."""
        self.channel = Channel(secrets.token_hex(8))
        self.rows_of: Callable[[str], tuple[StatsRow, ...]] = lambda process: ()
        self._running: dict[str, int] = {}
        self._pids: dict[str, int] = {}
        self._conditions: dict[str, Condition] = {}
        self._exits: list[Exit] = []

    @property
    def processes(self) -> Iterable[str]:
        """Processes that were started here and whose end was not reported yet."""
        return list(self._running)

    def peer(self, processes: tuple[str, ...]) -> Peer:
        """Its entry in the address book."""
        if self.bridge is None:
            first = self.incarnation * BRIDGES_PER_SESSION
            return Peer(host=self.name, incarnation=first, processes=processes)
        return Peer(
            host=self.name,
            incarnation=self.bridge.incarnation,
            address=self.bridge.address,
            public_key=self.bridge.public_key,
            processes=processes,
        )

    def incarnation_of(self, process: str) -> int:
        """The incarnation of a process that runs here; -1 if none runs."""
        return self._running.get(process, -1)

    def start(self, process: str, incarnation: int, modules: tuple[str, ...]) -> None:
        """Orders the agent to start a process."""
        self._running[process] = incarnation
        self._pids.pop(process, None)
        message = Start(process=process, incarnation=incarnation, modules=modules)
        self.channel.post(message)

    def order(self, process: str, checkpoint: str) -> None:
        """Orders the agent to give a process its part of the plan."""
        self.channel.post(
            GiveOrders(
                process=process,
                incarnation=self._running[process],
                checkpoint=checkpoint,
                rows=self.rows_of(process),
            )
        )

    def kill(self, process: str) -> None:
        """Orders the agent to kill a process."""
        if process in self._running:
            self.channel.post(Kill(process=process, incarnation=self._running[process]))

    def leave(self, process: str) -> None:
        """Orders the agent to tell a process to finish by itself."""
        if process in self._running:
            self.channel.post(Leave(process=process, incarnation=self._running[process]))

    def exits(self) -> list[Exit]:
        """Processes whose end was reported since the last call."""
        found, self._exits = self._exits, []
        return found

    def is_alive(self, process: str) -> bool:
        """Whether a process was started here and no end was reported."""
        return process in self._running

    def pid(self, process: str) -> int:
        """The process id of a process on its host; 0 while it is not known."""
        return self._pids.get(process, 0)

    def condition(self, process: str) -> Condition:
        """What that host's system reports about a silent process."""
        return self._conditions.get(process, "working")

    def beat(self, beat: Heartbeat) -> None:
        """Stores what a heartbeat reports: process conditions, accounts and bridge counters."""
        self._conditions = beat.conditions
        self.accounts = beat.accounts
        self.traffic = {name: beat.bridge.get(name, 0) for name in REPORTED}

    def started(self, message: Started) -> None:
        """Stores the process id of a process that has started."""
        if self._running.get(message.process) == message.incarnation:
            self._pids[message.process] = message.pid

    def exited(self, message: Exited) -> None:
        """Notes that a process has ended."""
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
