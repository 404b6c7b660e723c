"""The worker processes of this host, under the control of the head or of an agent."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from srl.arena.shm import LockHeld, ShmArena, bump_placement, make_wake_pipe, remove_wake_pipe
from srl.launch.cluster.node import Exit
from srl.launch.process.children import Children
from srl.launch.process.process_state import Condition, ProcessStates
from srl.launch.process.reclaim import reclaim, reclaim_relayed
from srl.launch.process.worker import LEAVE, WorkerOrders
from srl.plan import Plan
from srl.services.worker_stats import StatsTablePart

WORKER_MODULE = "srl.launch.process.worker"
LOCK_SECONDS = 0.1
"""Timeout for a stream's lock while a dead process's slots are reclaimed. Its holder may be
stopped. Only this process can kill the holder, so it must not wait for long."""


class LocalNode:
    """This host's worker processes. A dead one's slots are reclaimed before its end is reported."""

    def __init__(self, name: str, arena: ShmArena, logs: Path | None, *, bridged: bool) -> None:
        """`bridged` if the run has other hosts. Then a process here is known by its wake pipe."""
        self.name = name
        self.children = Children(arena.folder, logs)
        self._arena = arena
        self._reclaim_arena = ShmArena(
            arena.folder, arena.process, bridged=bridged, patience_seconds=LOCK_SECONDS
        )
        self._unreclaimed: list[Exit] = []
        """Ended processes whose slots are not reclaimed yet."""
        self._process_states = ProcessStates()
        self._bridged = bridged
        self._plan: Plan | None = None
        self._run_dir = ""
        self._lazy = False
        self._address = ""

    def attach(self, plan: Plan, run_dir: str, *, lazy: bool = False, address: str = "") -> None:
        """Gives the plan to this node, before any orders.

        `lazy` if this host uses only a part of the memory. `address` is this host's address for
        trainers on other hosts.
        """
        self._plan = plan
        self._members = plan.processes
        self._indices = {worker.name: index for index, worker in enumerate(plan.workers)}
        self._run_dir = run_dir
        self._lazy = lazy
        self._address = address if plan.experiment["trainer"]["trust_network"] else ""

    @property
    def processes(self) -> Iterable[str]:
        """Processes that run here, or whose end was not reported yet."""
        return [*self.children.living, *(ended.process for ended in self._unreclaimed)]

    def start(self, process: str, incarnation: int, modules: tuple[str, ...]) -> None:
        """Starts a worker process."""
        if self._bridged:
            make_wake_pipe(self._arena.folder, process)
            bump_placement(self._arena.folder)
        self.children.start(process, incarnation, WORKER_MODULE, process, modules=modules)

    def order(self, process: str, checkpoint: str) -> None:
        """Gives a process its part of the plan."""
        child = self.children.living.get(process)
        if child is None:
            return
        assert self._plan is not None
        indices = {worker.name: self._indices[worker.name] for worker in self._members[process]}
        orders = WorkerOrders(
            plan=self._plan.part(process),
            stats_table=StatsTablePart(count=len(self._indices), indices=indices),
            process=process,
            incarnation=child.incarnation,
            folder=str(self._arena.folder),
            run_dir=self._run_dir,
            checkpoint=checkpoint,
            bridged=self._bridged,
            lazy=self._lazy,
            address=self._address,
        )
        self.children.tell(process, orders)

    def kill(self, process: str) -> None:
        """Kills a process."""
        self.children.kill(process)

    def leave(self, process: str) -> None:
        """Tells a process to finish by itself."""
        child = self.children.living.get(process)
        if child is not None:
            child.say(LEAVE)

    def exits(self) -> list[Exit]:
        """Processes that have ended, each reported once, after its slots were reclaimed."""
        for ended in self.children.exits():
            self._process_states.forget(ended.pid)
            if self._bridged:
                remove_wake_pipe(self._arena.folder, ended.process)
                bump_placement(self._arena.folder)
            self._unreclaimed.append(ended)
        reclaimed = []
        with suppress(LockHeld):
            while self._unreclaimed:
                self._reclaim(self._unreclaimed[0])
                reclaimed.append(self._unreclaimed.pop(0))
        return reclaimed

    def _reclaim(self, ended: Exit) -> None:
        """Frees what a dead process held; safe to call twice."""
        if ended.code == 0 or self._plan is None or ended.process not in self._members:
            return
        reclaim(self._plan, self._reclaim_arena, ended.process)

    def reclaim_relayed(self) -> None:
        """Frees the requests that a dead bridge had taken; LockHeld if the caller must try again.

        The next bridge finds granted and remote slots by itself.
        """
        if self._plan is not None:
            reclaim_relayed(self._plan, self._reclaim_arena)

    def is_alive(self, process: str) -> bool:
        """Whether a process runs here."""
        return self.children.is_alive(process)

    def pid(self, process: str) -> int:
        """The process id of a process; 0 if it does not run here, or is not known yet."""
        child = self.children.living.get(process)
        return child.pid if child is not None else 0

    def condition(self, process: str) -> Condition:
        """What the system reports about a silent process."""
        pid = self.pid(process)
        return self._process_states.of(pid) if pid else "working"

    def close(self) -> None:
        """Kills all processes that still run."""
        self.children.end(0.0)
        self._reclaim_arena.close()
