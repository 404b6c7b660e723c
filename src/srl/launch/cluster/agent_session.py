"""An agent session: what a host agent owns while it belongs to a run."""

from __future__ import annotations

import time
import zlib
from contextlib import suppress
from pathlib import Path

import msgspec

from srl.arena.shm import BRIDGE, CONTROLLER, LockHeld, RunFolder, ShmArena
from srl.bridge.counters import BridgeCounters
from srl.launch.cluster.bridge_supervisor import BridgeSupervisor
from srl.launch.cluster.local_node import LocalNode
from srl.launch.cluster.protocol import (
    BridgeAddress,
    Brief,
    Channel,
    Exited,
    FinalAccounts,
    GiveOrders,
    Heartbeat,
    Kill,
    Leave,
    Message,
    Notice,
    Output,
    PeerList,
    Ready,
    Reports,
    Start,
    Started,
    StatsRow,
    Welcome,
)
from srl.launch.process.children import EXIT_SECONDS
from srl.launch.process.process_state import Condition
from srl.launch.process.worker import write_checkpoint_path
from srl.launch.run.liveness import SILENT_SECONDS
from srl.net.peers import Peers
from srl.plan import Plan, WorkerPlan
from srl.services.metrics_client import MetricsServer
from srl.services.worker_stats import StatsTable
from srl.streams.admission import open_queue
from srl.streams.inference import create_inference
from srl.streams.sample import create_sample
from srl.streams.sample_accounting import StreamAccount, read_account
from srl.streams.sample_queue import SampleQueue

BEAT_SECONDS = 0.25
"""Time between two heartbeats."""
MAX_BACKLOG = 10_000
"""Unacknowledged messages to the head. Beyond this number, reports and output are dropped."""
SESSION_FILE = ".session"
"""A file in the run directory, by which an agent sees whether it shares the head's directory."""


class AgentSession:
    """The folder, processes, bridge and reports of one host, from its welcome until it leaves."""

    def __init__(self, welcome: Welcome, session: str, bind: str, port: int = 0) -> None:
        """Makes the host's folder. Its bridge will listen at `bind`; port 0 means any free port."""
        self.channel = Channel(session)
        self.folder = RunFolder()
        self._bind, self._port = bind, port
        self._arena = ShmArena(self.folder.path, CONTROLLER, bridged=True, lazy=True)
        self._node = LocalNode(welcome.name, self._arena, logs=None, bridged=True)
        self._supervisor = BridgeSupervisor(
            self._node.children, self._arena, welcome.name, welcome.incarnation
        )
        self._peers = Peers(own=welcome.name)
        self._bridge_counters = BridgeCounters(self._arena)
        self._server = MetricsServer(self.folder.path)
        self._stats_table: StatsTable | None = None
        self._members: dict[str, list[WorkerPlan]] = {}
        self._samples: dict[str, SampleQueue] = {}
        self._next_beat = 0.0
        self._beats_at_once = False
        self._ending = False
        self._bridge_end = ""
        """How the bridge ended, until it is replaced."""
        self._unreported: set[str] = set()
        """Started processes whose process id was not reported yet."""

    def fileno(self) -> int:
        """The descriptor of the socket that this host's workers report to."""
        return self._server.fileno()

    # -- messages of the head ----------------------------------------------------------------------

    def handle(self, message: Message) -> None:
        """Carries out a message of the head."""
        match message:
            case Brief():
                self._take_brief(message)
            case Start():
                self._start(message)
            case GiveOrders():
                self._order(message)
            case Kill() if self._is_running(message):
                self._node.kill(message.process)
            case Leave() if self._is_running(message):
                self._node.leave(message.process)
            case Notice():
                self._notice(message)
            case PeerList():
                self._peers = message.after(self._peers)
                self._supervisor.publish(self._peers)
            case _:
                pass

    def _take_brief(self, brief: Brief) -> None:
        plan = msgspec.json.decode(zlib.decompress(brief.plan), type=Plan)
        self._stats_table = StatsTable(self._arena, tuple(worker.name for worker in plan.workers))
        self._members = plan.processes
        for asked in plan.inference.values():
            if asked.carrier != "inline":
                create_inference(asked.spec, self._arena, clients=())
        for name, stream in plan.samples.items():
            # Another host grants the slots, until the bridge learns that the readers are here.
            create_sample(stream.spec, self._arena, owned_elsewhere=True)
            self._samples[name] = open_queue(stream.spec, self._arena).queue
        self._node.attach(plan, brief.run_dir, lazy=True, address=self._bind)
        self._supervisor.start(plan, self._bind, self._port)
        probe = ""
        with suppress(OSError):
            probe = (Path(brief.run_dir) / SESSION_FILE).read_text()
        self.channel.post(Ready(sees_run_dir=probe == brief.probe))

    def _is_running(self, message: Kill | Leave | GiveOrders) -> bool:
        child = self._node.children.living.get(message.process)
        return child is not None and child.incarnation == message.incarnation

    def _start(self, message: Start) -> None:
        self._node.start(message.process, message.incarnation, message.modules)
        self._unreported.add(message.process)

    def _order(self, message: GiveOrders) -> None:
        if not self._is_running(message):
            return
        assert self._stats_table is not None
        for row in message.rows:
            self._stats_table.rows[row.worker].load(row.cells, 0)
            self._stats_table.rows[row.worker].enter("starting")
        for member in self._members[message.process]:
            for stream in self._samples.keys() & member.reads:
                # Readers use all slots. A lack of memory must show here, not later in a writer.
                self._arena.reserve(f"sample/{stream}", "sample.slots")
        self._node.order(message.process, message.checkpoint)

    def _notice(self, notice: Notice) -> None:
        assert self._stats_table is not None
        if notice.checkpoint:
            write_checkpoint_path(self.folder.path, notice.folder)
            self._stats_table.checkpoint = notice.checkpoint
        self._stats_table.stop = notice.stop
        # The head waits for the workers to stop, so heartbeats are sent at once.
        self._beats_at_once = notice.stop
        self._wake_all()

    def _wake_all(self) -> None:
        for process in self._node.processes:
            self._arena.wake(process)

    # -- reports to the head -----------------------------------------------------------------------

    def turn(self) -> None:
        """Watches the processes and queues messages to the head."""
        room = self.channel.backlog < MAX_BACKLOG
        reports = tuple(self._server.datagrams())
        if reports and room:
            self.channel.post(Reports(reports))
        ended = self._node.exits()
        self._report_started()
        for process, text in self._node.children.output():
            if room:
                self.channel.post(Output(process, text))
        for each in ended:
            if each.process == BRIDGE:
                self._bridge_end = each.how
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
        if self._bridge_end and not self._ending:
            with suppress(LockHeld):
                self._node.reclaim_relayed()
                self._supervisor.replace(self._bridge_end)
                self._bridge_end = ""
        self._supervisor.watch()
        endpoint = self._supervisor.news()
        if endpoint is not None:
            self.channel.post(
                BridgeAddress(
                    address=endpoint.address,
                    public_key=endpoint.public_key,
                    incarnation=endpoint.incarnation,
                )
            )

    def _report_started(self) -> None:
        """Reports the process ids that have become known."""
        for process in list(self._unreported):
            child = self._node.children.living.get(process)
            if child is None or child.pid:
                self._unreported.discard(process)
            if child is not None and child.pid:
                started = Started(process=process, incarnation=child.incarnation, pid=child.pid)
                self.channel.post(started)

    def beat(self, now: float) -> Heartbeat | None:
        """A heartbeat, if one is due."""
        if now < self._next_beat and not self._beats_at_once:
            return None
        self._next_beat = now + BEAT_SECONDS
        now_ns = time.monotonic_ns()
        rows: list[StatsRow] = []
        conditions: dict[str, Condition] = {}
        for name, child in self._node.children.living.items():
            rows += self._rows(name, child.incarnation)
            for member in self._members.get(name, ()):
                assert self._stats_table is not None
                silent = now_ns - self._stats_table.rows[member.name].get("heartbeat_ns")
                if silent > SILENT_SECONDS * 1e9:
                    conditions[name] = self._node.condition(name)
        return Heartbeat(
            now_ns=now_ns,
            rows=tuple(rows),
            conditions=conditions,
            accounts=self._accounts(),
            bridge=self._bridge_counters.reported(),
        )

    def _rows(self, process: str, incarnation: int) -> list[StatsRow]:
        """The worker stats of a process."""
        if self._stats_table is None:
            return []
        stats_table = self._stats_table.rows
        members = self._members.get(process, ())
        return [
            StatsRow(member.name, incarnation, stats_table[member.name].dump())
            for member in members
        ]

    def _accounts(self) -> dict[str, StreamAccount]:
        """The accounts of streams that were used on this host."""
        found = {name: read_account(memory) for name, memory in self._samples.items()}
        return {
            name: accounts for name, accounts in found.items() if accounts != StreamAccount.empty()
        }

    # -- the end -----------------------------------------------------------------------------------

    def end(self, seconds: float = EXIT_SECONDS) -> None:
        """Ends every process, after some `seconds` to finish by itself, and queues the reports."""
        if self._stats_table is not None:
            self._stats_table.stop = True
            self._wake_all()
        self._ending = True
        self._node.children.end(seconds)
        self.turn()
        self.channel.post(FinalAccounts(self._accounts()))

    def close(self) -> None:
        """Kills processes that still run and removes the folder."""
        self._node.close()
        self._server.close()
        self._arena.close()
        self.folder.remove()
