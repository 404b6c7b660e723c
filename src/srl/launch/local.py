"""Worker processes on this host: the launcher's own at home, and an agent's on its host."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from srl.arena.shm import LockHeld, ShmArena, bump_placement, make_bell, remove_bell
from srl.launch.children import Children, is_stopped
from srl.launch.places import Exit
from srl.launch.planning import Draft
from srl.launch.reclaiming import reclaim, reclaim_relayed
from srl.launch.worker import LEAVE, Orders
from srl.services.board import BoardPart
from srl.workers.wiring import Plan

WORKER_MODULE = "srl.launch.worker"
PATIENCE_SECONDS = 0.1
"""How long a lock is waited for that a dead process's slots are under. Its holder may be stopped,
and then nobody but the launcher can end it, so the launcher does not wait with it."""


class LocalPlace:
    """This host's worker processes. A dead one's slots are taken back before its end is told."""

    def __init__(self, name: str, arena: ShmArena, logs: Path | None, *, gated: bool) -> None:
        """`gated` where the run has other hosts: then a process's bell says that it is here."""
        self.name = name
        self.children = Children(arena.folder, logs)
        self._arena = arena
        self._impatient = ShmArena(
            arena.folder, arena.process, gated=gated, patience_seconds=PATIENCE_SECONDS
        )
        self._ended: list[Exit] = []
        """Those that have ended and whose slots are still to be taken back."""
        self._gated = gated
        self._plan: Plan | None = None
        self._run_dir = ""
        self._lazy = False
        self._address = ""

    def attach(self, plan: Plan, run_dir: str, *, lazy: bool = False, address: str = "") -> None:
        """Says what the processes are to do; `lazy` where the host uses only part of the memory,
        with this host's `address` for others where there are any."""
        self._plan = plan
        self._members = plan.processes
        self._places = {worker.name: place for place, worker in enumerate(plan.workers)}
        self._run_dir = run_dir
        self._lazy = lazy
        self._address = address if plan.experiment["trainer"]["trust_network"] else ""

    @property
    def processes(self) -> Iterable[str]:
        """Those that run here, or whose end was not told yet."""
        return [*self.children.living, *(ended.process for ended in self._ended)]

    def start(self, process: str, incarnation: int, modules: tuple[str, ...]) -> None:
        """Starts a worker process."""
        if self._gated:
            make_bell(self._arena.folder, process)
            bump_placement(self._arena.folder)
        self.children.start(process, incarnation, WORKER_MODULE, process, *modules)

    def draft(self, process: str, draft: Draft) -> None:
        """Asks a process for a plan."""
        self.children.tell(process, draft)

    def order(self, process: str, checkpoint: str) -> None:
        """Gives a process its part of the plan."""
        child = self.children.living.get(process)
        if child is None:
            return
        assert self._plan is not None
        places = {worker.name: self._places[worker.name] for worker in self._members[process]}
        orders = Orders(
            plan=self._plan.part(process),
            board=BoardPart(count=len(self._places), places=places),
            process=process,
            folder=str(self._arena.folder),
            run_dir=self._run_dir,
            checkpoint=checkpoint,
            gated=self._gated,
            lazy=self._lazy,
            address=self._address,
        )
        self.children.tell(process, orders)

    def kill(self, process: str) -> None:
        """Ends a process at once."""
        child = self.children.living.get(process)
        if child is not None:
            child.process.kill()

    def leave(self, process: str) -> None:
        """Lets a process finish by itself."""
        child = self.children.living.get(process)
        if child is not None:
            child.say(LEAVE)

    def exits(self) -> list[Exit]:
        """Those that have ended since the last time, and whose slots were taken back."""
        for ended in self.children.exits():
            if self._gated:
                remove_bell(self._arena.folder, ended.process)
                bump_placement(self._arena.folder)
            self._ended.append(ended)
        told = []
        with suppress(LockHeld):
            while self._ended:
                self._forget(self._ended[0])
                told.append(self._ended.pop(0))
        return told

    def _forget(self, ended: Exit) -> None:
        """Gives back what a dead process held; doing it twice does no harm."""
        if ended.code == 0 or self._plan is None or ended.process not in self._members:
            return
        reclaim(self._plan, self._impatient, ended.process)

    def take_back_relayed(self) -> None:
        """Gives back the requests that a dead gate had taken; LockHeld if it is to be tried again.
        What it had lent or borrowed its successor finds by itself."""
        if self._plan is not None:
            reclaim_relayed(self._plan, self._impatient)

    def is_alive(self, process: str) -> bool:
        """Whether a process runs here."""
        return self.children.is_alive(process)

    def pid(self, process: str) -> int:
        """Its number, 0 if it does not run here."""
        child = self.children.living.get(process)
        return child.process.pid if child is not None else 0

    def is_stopped(self, process: str) -> bool:
        """Whether the system has stopped it."""
        pid = self.pid(process)
        return bool(pid) and is_stopped(pid)

    def close(self) -> None:
        """Ends what still runs."""
        self.children.end(0.0)
        self._impatient.close()
