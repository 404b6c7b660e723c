"""Two hosts on one machine: a folder and a bridge each, joined over loopback.

The bridges of a `TcpCarrier` take their turns whenever a process wakes, until nothing is under way
any more: what one end did has reached the other when the call that did it returns.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from carriers import Carrier, _create

from srl.arena.shm import RunFolder, ShmArena, WakePipe, bump_placement, make_wake_pipe
from srl.bridge.bridge import Bridge, message_limits
from srl.bridge.messenger import BridgePlan, SampleRoute, WeightsRoute
from srl.data.records import Snapshot
from srl.net.links import Links
from srl.net.peers import Peer, Peers
from srl.services.parameters import ParameterReader, ParameterSpec, ParameterWriter
from srl.streams.inference import InferenceSpec
from srl.streams.sample import SampleSpec

DEADLINE_SECONDS = 120.0
LOST_SECONDS = 0.5
"""Messages take less on loopback, if they arrive at all."""
NEWEST = ParameterSpec(policy="newest", shapes={"w": ((4,), "float32")}, readers=("actor",))
"""Weights that only say which version is the newest."""


class Side:
    """One host: its folder, its bridge, and the processes that are there."""

    def __init__(
        self,
        name: str,
        plan: BridgePlan,
        folder: Path,
        processes: tuple[str, ...],
        clock: Callable[[], float],
        links: type[Links] = Links,
        **options: bool,
    ) -> None:
        self.name = name
        self.folder = folder
        self.processes = processes
        self.incarnation = 0
        for process in processes:
            make_wake_pipe(folder, process)
        bump_placement(folder)
        self.arena = ShmArena(folder, "bridge", bridged=True, lazy=True)
        self.wake_pipe = WakePipe(folder, "bridge")
        self.links = links(name, limits=message_limits(plan, self.arena))
        self.bridge = Bridge(plan, folder, self.arena, self.links, clock=clock, **options)

    def peer(self) -> Peer:
        return Peer(
            host=self.name,
            incarnation=self.incarnation,
            address=self.links.address,
            public_key=self.links.keys.public,
            processes=self.processes,
        )

    def close(self) -> None:
        self.bridge.close()
        self.wake_pipe.close()
        self.arena.close()


class PumpedArena(ShmArena):
    """Whoever wakes waits until the bridges have done all that follows from it."""

    pump: Callable[[], None]

    def wake(self, *processes: str) -> None:
        super().wake(*processes)
        self.pump()


class TcpCarrier(Carrier):
    """Clients, writers, actors and a second trainer on the host `left`; servers, readers and the
    first trainer on `right`."""

    def __init__(self, links: type[Links] = Links, **options: bool) -> None:
        self._runs = {name: RunFolder() for name in ("left", "right")}
        self._arenas: list[ShmArena] = []
        self._links = links
        self._options = options
        self._offset = 0.0
        self._pumping = False
        self._lost: dict[str, int] = {}
        self.sides: dict[str, Side] = {}
        super().__init__("tcp", self._runs["right"].path, self._open)

    def clock(self) -> float:
        return time.monotonic() + self._offset

    def advance(self, seconds: float) -> None:
        """Lets time pass for the bridges."""
        self._offset += seconds

    def create(self, *specs: SampleSpec | InferenceSpec | ParameterSpec) -> None:
        inference = tuple(spec for spec in specs if isinstance(spec, InferenceSpec))
        samples = tuple(spec for spec in specs if isinstance(spec, SampleSpec))
        weights = (NEWEST, *(spec for spec in specs if isinstance(spec, ParameterSpec)))
        plan = BridgePlan(
            inference=inference,
            samples=tuple(SampleRoute(spec=spec, policy="newest") for spec in samples),
            weights=tuple(
                WeightsRoute(spec=spec, trainers=("trainer", "second")) for spec in weights
            ),
        )
        left, right = ["actor", "second"], ["controller", "trainer", "writer"]
        for one in inference:
            left += one.clients
            right += one.servers
        for stream in samples:
            left += stream.writers
            right += stream.readers
        for published in weights:
            left += published.readers
        self.places = {**dict.fromkeys(left, "left"), **dict.fromkeys(right, "right")}
        for name, processes in (("left", left), ("right", right)):
            folder = self._runs[name].path
            arena = ShmArena(folder, "agent", lazy=name == "left")
            for spec in specs:
                _create(spec, arena, owned_elsewhere=name == "left")
            arena.close()
            unique = tuple(dict.fromkeys(processes))
            self.sides[name] = Side(
                name, plan, folder, unique, self.clock, self._links, **self._options
            )
        self.tell()
        self.publish(max([0, *(spec.base_version for spec in samples)]))
        self.pump()

    def tell(self, without: str = "") -> None:
        """Gives both hosts the address book."""
        peers = tuple(side.peer() for name, side in self.sides.items() if name != without)
        # The one that is dialled first: it turns away a bridge that it does not expect yet.
        for name, side in reversed(self.sides.items()):
            side.bridge.follow(Peers(own=name, peers=peers))

    def publish(self, version: int) -> None:
        arena = self._open("trainer")
        if ParameterReader(NEWEST, arena).version < version:
            weights = {"w": np.full(4, version, np.float32)}
            ParameterWriter(NEWEST, arena).publish(Snapshot(version, weights))

    def _open(self, process: str) -> ShmArena:
        arena = PumpedArena(self._runs[self.places[process]].path, process, bridged=True)
        arena.pump = self.pump
        self._arenas.append(arena)
        return arena

    def agent(self, process: str) -> ShmArena:
        arena = PumpedArena(self._runs[self.places[process]].path, "agent", bridged=True)
        arena.pump = self.pump
        self._arenas.append(arena)
        return arena

    def wake_pipe(self, process: str) -> WakePipe:
        return WakePipe(self._runs[self.places[process]].path, process)

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """The bridges take no turns by themselves."""
        self._pumping = True
        yield
        self._pumping = False

    def pump(self) -> None:
        """Lets the bridges take turns until nothing is under way."""
        if self._pumping or len(self.sides) < 2:
            return
        self._pumping = True
        try:
            end = time.monotonic() + DEADLINE_SECONDS
            while self._turn():
                assert time.monotonic() < end, "the bridges never come to rest"
        finally:
            self._pumping = False

    def _turn(self) -> bool:
        left, right = self.sides["left"], self.sides["right"]
        before = (left.links.sent_messages, right.links.sent_messages)
        came = left.bridge.turn() + right.bridge.turn()
        if came or before != (left.links.sent_messages, right.links.sent_messages):
            return True
        for one, other in ((left, right), (right, left)):
            if not one.bridge.messenger.greeted(other.name):
                other.bridge.wait(other.wake_pipe, 0.01)
                return True
            if self.missing(one, other):
                came = other.links.received_messages
                end = time.monotonic() + LOST_SECONDS
                while time.monotonic() < end and came == other.links.received_messages:
                    other.bridge.wait(other.wake_pipe, 0.01)
                    other.bridge.turn()
                if came == other.links.received_messages:
                    # A connection that was given up took them with it.
                    self._lost[one.name] = one.links.sent_messages - came
                return True
        return False

    def missing(self, one: Side, other: Side) -> bool:
        """Whether messages are on their way from one to the other."""
        lost = self._lost.get(one.name, 0)
        return one.links.sent_messages - other.links.received_messages > lost

    def close(self) -> None:
        for side in self.sides.values():
            side.close()
        for arena in self._arenas:
            arena.close()
        for run in self._runs.values():
            run.remove()
