"""The process table: where each process of a run is, and what is still to be started."""

from __future__ import annotations

import secrets
import shutil
import time
import zlib
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from srl.arena.shm import BRIDGE, CONTROLLER, LockHeld, RunFolder, ShmArena
from srl.errors import RunError
from srl.launch.cluster.agent_session import SESSION_FILE
from srl.launch.cluster.bridge_supervisor import BridgeSupervisor
from srl.launch.cluster.local_node import LocalNode
from srl.launch.cluster.node import HEAD_HOST, Exit, Node
from srl.launch.cluster.protocol import Brief, Notice
from srl.launch.cluster.remote_node import RemoteNode
from srl.launch.plan.placement import Placement
from srl.launch.process.worker import checkpoint_path
from srl.launch.run.accounting import RunAccounts
from srl.launch.run.throttle import Throttle
from srl.launch.run.traffic import Traffic
from srl.net.peers import BridgeEndpoint, Peer, Peers
from srl.plan import Plan, SamplePlan
from srl.services.trainer_table import RENDEZVOUS_FOLDER
from srl.services.worker_stats import StatsTable
from srl.streams.sample_accounting import StreamAccount

if TYPE_CHECKING:
    from srl.launch.cluster.head import Head

FINISH_SECONDS = 2.5
"""Time in which other hosts must end their processes and leave."""
REJOIN_SECONDS = 3.0
"""How long bound processes (trainers) wait for a lost host; rejoining takes an agent less."""


class ProcessTable:
    """Starts every process on its host, and on another host after a loss."""

    def __init__(
        self,
        modules: dict[str, tuple[str, ...]],
        placement: Placement,
        wanted: Iterable[str],
        run_dir: Path,
        head: Head | None,
    ) -> None:
        """Starts the `wanted` processes of this host at once. `modules` has what each process
        imports while it waits for its orders."""
        self.head = head
        self.folder = RunFolder()
        bridged = head is not None
        self.arena = ShmArena(self.folder.path, CONTROLLER, bridged=bridged)
        self.local_node = LocalNode(HEAD_HOST, self.arena, run_dir / "logs", bridged=bridged)
        self.news: list[str] = []
        """Notes for the user."""
        self.wanted = set(wanted)
        """Processes that are to run."""
        self.where: dict[str, str] = {}
        """The name of the host of each process that was started."""
        self._modules = modules
        self._placement = placement
        self._run_dir = run_dir
        self._incarnations: dict[str, int] = {}
        self._waiting: dict[str, float] = {}
        """Processes to be started, and the earliest time for it."""
        self._throttle = Throttle()
        self._moving: set[str] = set()
        """Processes that were told to finish and will then be started again."""
        self._lost_at: dict[str, float] = {}
        """Time at which each lost host was lost, by name."""
        self._accounts = RunAccounts(self.arena)
        self.traffic = None if head is None else Traffic(self.arena, head.hosts.turned_away)
        self._savers: set[str] = set()
        """Processes that write into checkpoints, and the trainers that learn with them."""
        self._plan: Plan | None = None
        self._supervisor = BridgeSupervisor(self.local_node.children, self.arena, HEAD_HOST, 0)
        self._bridge: BridgeEndpoint | None = None
        self._bridge_ended = ""
        """How this host's bridge ended; empty once it is replaced."""
        self._epoch = 0
        """Number of the last address book."""
        self._moved = False
        """Whether processes or this host's bridge have moved since the last address book."""
        self.checkpoint = ""
        """Path of the checkpoint from which started processes go on."""
        try:
            for process in modules:
                if process in self.wanted:
                    if placement.preferred[process] == HEAD_HOST:
                        self._start(process, self.local_node)
                    else:
                        self._waiting[process] = 0.0
        except BaseException:
            self.close()
            raise

    def attach(self, plan: Plan, stats_table: StatsTable) -> None:
        """Sets the plan for this host, for its bridge, and for all other hosts."""
        self._plan = plan
        self._accounts.attach(plan)
        self._savers = {w.process for w in plan.workers if w.in_every_checkpoint or w.trains}
        address = self.head.bind if self.head is not None else ""
        self.local_node.attach(plan, str(self._run_dir), address=address)
        if self.head is None:
            return
        self._supervisor.start(plan, self.head.bind, self.head.bridge_port)
        probe = secrets.token_hex(8)
        (self._run_dir / SESSION_FILE).write_text(probe)
        packed = zlib.compress(msgspec.json.encode(plan), level=1)
        brief = Brief(plan=packed, run_dir=str(self._run_dir.absolute()), probe=probe)
        self.head.hosts.brief(brief, plan, stats_table)

    def give_orders(self) -> None:
        """Gives each process of this host its part of the plan."""
        for process in self.local_node.processes:
            if process != BRIDGE:
                self.local_node.order(process, self.checkpoint)

    # -- where processes are -----------------------------------------------------------------------

    @property
    def nodes(self) -> dict[str, Node]:
        """The nodes of this host and of the hosts that have joined, by name."""
        others = self.head.hosts.nodes if self.head is not None else {}
        return {HEAD_HOST: self.local_node, **others}

    def node_of(self, process: str) -> Node | None:
        """The node of a process; None if it was not started, or its host is not here."""
        name = self.where.get(process, "")
        if name == HEAD_HOST or self.head is None:
            return self.local_node if name == HEAD_HOST else None
        return self.head.hosts.nodes.get(name)

    def is_alive(self, process: str) -> bool:
        """Whether a process was started and, as far as is known, has not ended."""
        node = self.node_of(process)
        return node is not None and node.is_alive(process)

    @property
    def all_ended(self) -> bool:
        """Whether no worker process is left, and none is to be started."""
        ended = all(name == BRIDGE for node in self.nodes.values() for name in node.processes)
        return ended and not self._waiting

    def is_cut_off(self, process: str) -> bool:
        """Whether the host of a process is silent now."""
        return self.head is not None and self.head.hosts.is_silent(self.where.get(process, ""))

    def incarnation(self, process: str) -> int:
        """How often a process was started again."""
        return max(0, self._incarnations.get(process, 0))

    def reads_here(self, stream: SamplePlan) -> bool:
        """Whether a stream's readers belong to this host, which then owns its slots."""
        preferred = self._placement.preferred
        return all(preferred[process] == HEAD_HOST for process in stream.spec.readers)

    def accounts(self) -> dict[str, StreamAccount]:
        """The accounts of every sample stream, summed over all hosts."""
        if self.head is None:
            return self._accounts.all(())
        hosts = self.head.hosts
        return self._accounts.all(p.accounts for p in (*hosts.nodes.values(), *hosts.lost))

    def between_hosts(self) -> dict[str, float]:
        """Metrics of what bridges waited for, sent again and refused; empty without other hosts."""
        if self.head is None or self.traffic is None:
            return {}
        hosts = self.head.hosts
        return self.traffic.all(p.traffic for p in (*hosts.nodes.values(), *hosts.lost))

    # -- while it runs -----------------------------------------------------------------------------

    def turn(self) -> None:
        """Takes the messages of other hosts, starts processes, and publishes address changes."""
        if self.head is not None:
            self.news += self.head.poll()
            self._take_joined()
        if self._waiting:
            self._throttle.step(self._start_waiting)
        if self.head is None:
            return
        self._supervisor.watch()
        up = self._supervisor.news()
        if up is not None:
            self._bridge = up
            self._moved = True
        self._publish()

    def _take_joined(self) -> None:
        assert self.head is not None
        hosts = self.head.hosts
        while hosts.joined:
            node = hosts.joined.popleft()
            again = " again" if node.incarnation else ""
            self.news.append(
                f"host {node.name} joined{again} ({node.join.machine}, {node.join.address}, "
                f"{node.join.cores} cores)"
            )
            self._move_back(node)

    def _move_back(self, node: RemoteNode) -> None:
        """Moves processes back to their host, if they ran on another one while it was away."""
        for process, where in self.where.items():
            if self._placement.preferred[process] == node.name != where:
                current = self.node_of(process)
                if current is not None and current.is_alive(process):
                    self._moving.add(process)
                    current.leave(process)

    def request(self, process: str, delay: float = 0.0) -> None:
        """Requests the start of a process, after `delay` seconds at the earliest."""
        self._waiting[process] = time.monotonic() + delay

    def _start_waiting(self) -> None:
        now = time.monotonic()
        load = Counter(self.where.values())
        nodes, here = self.nodes, self._able_hosts()
        awaited = [name for name, when in self._lost_at.items() if now < when + REJOIN_SECONDS]
        for process, due in list(self._waiting.items()):
            if now < due:
                continue
            able = self._able_hosts(process) if process in self._savers else here
            host = self._placement.choose(process, able, load, awaited)
            if host is None or not self._may_start(process, nodes[host]):
                continue
            del self._waiting[process]
            self._start(process, nodes[host])
            nodes[host].order(process, self.checkpoint)
            load[host] += 1

    def _able_hosts(self, saver: str = "") -> dict[str, tuple[str, ...]]:
        """The hosts that have joined, with the groups that each one offers to hold.

        For a process that writes into the run directory (`saver`): only hosts that see that
        directory, and the process's preferred host.
        """
        nodes = self.head.hosts.nodes if self.head is not None else {}
        preferred = self._placement.preferred.get(saver)
        return {
            name: node.join.holds
            for name, node in nodes.items()
            if not saver or name == preferred or node.sees_run_dir
        }

    def _may_start(self, process: str, node: Node) -> bool:
        """Whether a host is ready for a process; raises if it can never be."""
        if not isinstance(node, RemoteNode) or process not in self._savers:
            return True
        if node.sees_run_dir is False:
            raise RunError(
                f"host {node.name!r}: expected the run directory {self._run_dir.absolute()} "
                f"there too, because {process} writes checkpoints into it, got none. Put the run "
                "directory on a file system that both hosts share, or remove the process's group "
                "from the hosts setting: then it runs on the head's host."
            )
        return node.sees_run_dir is True

    def _start(self, process: str, node: Node) -> None:
        before = self.where.get(process, node.name)
        if before != node.name and self._placement.is_bound(process):
            self.news.append(f"{process} continues on host {node.name}: host {before} is gone")
        self._moving.discard(process)
        incarnation = self._incarnations.get(process, -1) + 1
        self._incarnations[process] = incarnation
        self._moved = self._moved or self.where.get(process) != node.name
        self.where[process] = node.name
        node.start(process, incarnation, self._modules[process])

    def exits(self) -> list[Exit]:
        """Processes that have ended since the last call, including processes of lost hosts."""
        found = []
        for ended in self.local_node.exits():
            if ended.process == BRIDGE:
                self._bridge_ended = ended.how
            else:
                found.append(ended)
        if self._bridge_ended:
            with suppress(LockHeld):
                self._replace_bridge(self._bridge_ended)
                self._bridge_ended = ""
        if self.head is not None:
            for node in self.head.hosts.nodes.values():
                found += node.exits()
            while self.head.hosts.lost:
                found += self._lose(self.head.hosts.lost.popleft())
        return found

    def _replace_bridge(self, how: str) -> None:
        """Starts another bridge on this host. Data under way is requested or sent again."""
        self.local_node.reclaim_relayed()
        self._supervisor.replace(how)
        self.news.append(f"the bridge of host {HEAD_HOST} {how}; starting another one")

    def _lose(self, node: RemoteNode) -> list[Exit]:
        self.news.append(f"host {node.name} is gone: {node.gone}")
        self._lost_at[node.name] = time.monotonic()
        self._accounts.lose(node.accounts)
        if self.traffic is not None:
            self.traffic.lose(node.traffic)
        found = node.exits()
        for process in node.processes:
            found.append(
                Exit(
                    process=process,
                    incarnation=node.incarnation_of(process),
                    pid=node.pid(process),
                    code=-9,
                    lost=f"{node.name}: {node.gone}",
                )
            )
        return found

    def is_sent_away(self, process: str) -> bool:
        """Whether a process has finished because its host leaves: no wanted one does by itself."""
        expected = process in self._moving or process not in self.wanted
        return self.head is not None and not expected

    def left(self, process: str) -> bool:
        """Records that a process has finished; says whether it is started again."""
        if process in self._moving:
            self._moving.discard(process)
            self.request(process)
            return True
        self._moved = self.where.pop(process, None) is not None or self._moved
        return False

    # -- coming and going --------------------------------------------------------------------------

    def add(self, process: str) -> None:
        """Requests the start of a process that the plan has room for."""
        if process not in self.wanted and self.is_alive(process):
            # It is still finishing; it starts again after that.
            self._moving.add(process)
        self.wanted.add(process)
        if self.is_alive(process) or process in self._waiting:
            return
        self._placement.add(process, self._able_hosts(), Counter(self.where.values()))
        self.request(process)

    def remove(self, process: str) -> None:
        """Tells a process to finish while the run goes on."""
        self.wanted.discard(process)
        self._moving.discard(process)
        self._waiting.pop(process, None)
        node = self.node_of(process)
        if node is not None:
            node.leave(process)

    # -- the address book --------------------------------------------------------------------------

    def _publish(self) -> None:
        """Gives the address book to all hosts and to this host's bridge, when it has changed."""
        assert self.head is not None
        hosts = self.head.hosts
        if self._bridge is None or not (self._moved or hosts.book_changed):
            return
        self._moved = False
        placed: dict[str, list[str]] = {}
        for process, host in self.where.items():
            placed.setdefault(host, []).append(process)
        home = Peer(
            host=HEAD_HOST,
            incarnation=self._bridge.incarnation,
            address=self._bridge.address,
            public_key=self._bridge.public_key,
            processes=tuple(placed.get(HEAD_HOST, ())),
        )
        peers = (home, *(p.peer(tuple(placed.get(n, ()))) for n, p in hosts.nodes.items()))
        self._epoch += 1
        hosts.publish(peers, self._epoch)
        self._supervisor.publish(Peers(own=HEAD_HOST, epoch=self._epoch, peers=peers))

    # -- orders for all ----------------------------------------------------------------------------

    def notify(self, stats_table: StatsTable) -> None:
        """Tells every process what the stats table says now about the stop and the checkpoint."""
        if self.head is not None:
            path = checkpoint_path(self.folder.path)
            folder = path.read_text() if stats_table.checkpoint else ""
            self.head.hosts.notify(
                Notice(stop=stats_table.stop, checkpoint=stats_table.checkpoint, folder=folder)
            )
        for process in self.local_node.processes:
            self.arena.wake(process)

    def hear(self) -> None:
        """Takes the messages of other hosts, and starts nothing."""
        if self.head is not None:
            self.head.hosts.poll()

    # -- the end -----------------------------------------------------------------------------------

    def end(self, seconds: float) -> None:
        """Waits for every process to end; kills processes of this host after `seconds`."""
        self._waiting.clear()
        self.local_node.children.release()
        if self.head is not None:
            for name in self.head.hosts.finish(FINISH_SECONDS):
                self.news.append(f"host {name} did not leave in time")
        self.local_node.children.end(seconds)

    def close(self) -> None:
        """Ends all processes and removes the shared memory."""
        self.local_node.close()
        if self.head is not None:
            self.head.close()
        self.arena.close()
        self.folder.remove()
        shutil.rmtree(self._run_dir / RENDEZVOUS_FOLDER, ignore_errors=True)
