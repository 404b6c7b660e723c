"""The gate of this host, kept running by the launcher or by an agent."""

from __future__ import annotations

import time
from collections import deque

from srl.arena.shm import GATE, ShmArena
from srl.errors import RunError
from srl.launch.children import Children
from srl.net.peers import GateUp, Peers, read_gate_up, write_peers
from srl.workers.wiring import Plan

GATE_MODULE = "srl.launch.gate"
MAX_FAILURES = 5
WINDOW_SECONDS = 60.0
GATES_PER_STAY = 1_000
"""Gates that one stay of a host may have; the numbers of the next stay begin above them."""


class GateKeeper:
    """Starts the gate, starts it again when it ends, and says where it listens."""

    def __init__(self, children: Children, arena: ShmArena, host: str, stay: int) -> None:
        """`stay` counts how often the host has joined."""
        self._children = children
        self._arena = arena
        self._host = host
        self._incarnation = stay * GATES_PER_STAY
        self._failures: deque[float] = deque(maxlen=MAX_FAILURES)
        self._told: GateUp | None = None
        self._plan: Plan | None = None
        self._address = ""

    def start(self, plan: Plan, bind: str, port: int = 0) -> None:
        """Starts the gate, listening at `bind`; port 0 is any that is free."""
        self._plan, self._address = plan, f"tcp://{bind}:{port or '*'}"
        self._start()

    def _start(self) -> None:
        # A run on one machine is spared the import of sockets.
        from srl.launch.gate import GateOrders, gate_plan

        assert self._plan is not None
        self._children.start(GATE, self._incarnation, GATE_MODULE)
        self._children.tell(
            GATE,
            GateOrders(
                plan=gate_plan(self._plan),
                host=self._host,
                incarnation=self._incarnation,
                folder=str(self._arena.folder),
                address=self._address,
                packs=bool(self._plan.experiment["pack_pixels"]),
            ),
        )

    def replace(self, how: str) -> None:
        """Starts another gate after one has ended."""
        now = time.monotonic()
        self._failures.append(now)
        if len(self._failures) == MAX_FAILURES and now - self._failures[0] < WINDOW_SECONDS:
            raise RunError(
                f"the gate of host {self._host!r} {how}, for the {MAX_FAILURES}th time within "
                f"{WINDOW_SECONDS:.0f} s. Look at logs/gate-{self._host}.log."
            )
        self._incarnation += 1
        self._start()

    def news(self) -> GateUp | None:
        """Where the gate listens, when that has changed."""
        if self._plan is None:
            return None
        up = read_gate_up(self._arena.folder)
        if up is None or up == self._told or up.incarnation != self._incarnation:
            return None
        self._told = up
        return up

    def publish(self, peers: Peers) -> None:
        """Gives the gate the address book."""
        write_peers(self._arena.folder, peers)
        self._arena.ring(GATE)
