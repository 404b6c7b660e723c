"""Keeps the bridge of this host running; used by the head and by agents."""

from __future__ import annotations

import logging
import time
from collections import deque

from srl.arena.shm import BRIDGE, ShmArena
from srl.bridge.counters import BridgeCounters
from srl.errors import RunError
from srl.launch.process.children import Children
from srl.launch.process.process_state import ProcessStates
from srl.launch.run.liveness import Liveness
from srl.net.peers import BridgeEndpoint, Peers, read_bridge_endpoint, write_peers
from srl.plan import Plan

log = logging.getLogger("srl")

BRIDGE_MODULE = "srl.launch.process.bridge"
MAX_FAILURES = 5
"""The run fails when the bridge ends this often within the window."""
WINDOW_SECONDS = 60.0
BRIDGES_PER_SESSION = 1_000
"""Bridges that a host may have in one agent session; the next session counts from above them."""


class BridgeSupervisor:
    """Starts the bridge, starts it again when it ends, and reports its address."""

    def __init__(self, children: Children, arena: ShmArena, host: str, session: int) -> None:
        """`session` is how often the host had joined before this agent session."""
        self._children = children
        self._arena = arena
        self._host = host
        self._incarnation = session * BRIDGES_PER_SESSION
        self._failures: deque[float] = deque(maxlen=MAX_FAILURES)
        self._reported: BridgeEndpoint | None = None
        self._plan: Plan | None = None
        self._address = ""
        self._counters: BridgeCounters | None = None
        self._liveness: Liveness | None = None
        self._process_states = ProcessStates()
        self._started_ns = 0

    def start(self, plan: Plan, bind: str, port: int = 0) -> None:
        """Starts the bridge, which listens at `bind`; port 0 means any free port."""
        self._plan, self._address = plan, f"tcp://{bind}:{port or '*'}"
        self._counters = BridgeCounters(self._arena)
        settings = plan.experiment
        self._liveness = Liveness(settings["silence_seconds"], settings["stopped_seconds"])
        self._start()

    def _start(self) -> None:
        # Imported here, so that a run on one machine does not import sockets.
        from srl.launch.process.bridge import BridgeOrders, bridge_plan

        assert self._plan is not None
        self._started_ns = time.monotonic_ns()
        self._children.start(BRIDGE, self._incarnation, BRIDGE_MODULE)
        self._children.tell(
            BRIDGE,
            BridgeOrders(
                plan=bridge_plan(self._plan),
                host=self._host,
                incarnation=self._incarnation,
                folder=str(self._arena.folder),
                address=self._address,
                packs=bool(self._plan.experiment["pack_pixels"]),
            ),
        )

    def replace(self, how: str) -> None:
        """Starts another bridge after one has ended; RunError if bridges end too often."""
        now = time.monotonic()
        self._failures.append(now)
        if len(self._failures) == MAX_FAILURES and now - self._failures[0] < WINDOW_SECONDS:
            raise RunError(
                f"the bridge of host {self._host!r} {how}, for the {MAX_FAILURES}th time within "
                f"{WINDOW_SECONDS:.0f} s. Look at logs/bridge-{self._host}.log."
            )
        self._incarnation += 1
        self._start()

    def watch(self) -> None:
        """Kills a bridge that is stopped or silent for too long; its end is noticed as usual."""
        bridge = self._children.living.get(BRIDGE)
        liveness, counters = self._liveness, self._counters
        if bridge is None or liveness is None or counters is None:
            return
        liveness.begin(time.monotonic_ns())
        beat = counters.get("heartbeat_ns")
        heard = max(beat, self._started_ns)
        if not liveness.is_silent(BRIDGE, heard):
            return
        condition = self._process_states.of(bridge.pid)
        is_starting = beat < self._started_ns
        verdict = liveness.judge(BRIDGE, heard, condition, excused=is_starting)
        if verdict in ("stopped", "silent"):
            log.warning("the bridge of host %s is %s; killed", self._host, verdict)
            liveness.forget(BRIDGE)
            self._children.kill(BRIDGE)

    def news(self) -> BridgeEndpoint | None:
        """The new address and key of the bridge, if they have changed since the last call."""
        if self._plan is None:
            return None
        endpoint = read_bridge_endpoint(self._arena.folder)
        if endpoint is None or endpoint == self._reported:
            return None
        if endpoint.incarnation != self._incarnation:
            return None
        self._reported = endpoint
        return endpoint

    def publish(self, peers: Peers) -> None:
        """Writes the address book for the bridge and wakes it."""
        write_peers(self._arena.folder, peers)
        self._arena.wake(BRIDGE)
