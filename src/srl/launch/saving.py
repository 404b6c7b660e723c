"""Checkpoints of a run in processes: asked for, waited for, and made whole."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from srl.launch.controller import Controller
from srl.launch.fleet import Fleet
from srl.launch.worker import say_where
from srl.services.messages import Note
from srl.services.parts import copy_part
from srl.workers.wiring import WorkerPlan


class Saving:
    """Asks the trainers for their parts, and commits when all are there."""

    def __init__(self, controller: Controller, fleet: Fleet) -> None:
        self._controller = controller
        self._fleet = fleet
        self._kept = [w for w in controller.plan.workers if w.in_every_checkpoint]
        self._pending: tuple[int, Path] | None = None
        self._given_up: list[Path] = []

    @property
    def pending(self) -> bool:
        """Whether parts are awaited."""
        return self._pending is not None

    def step(self) -> None:
        """Asks for a checkpoint when it is time, and commits one that is written."""
        if self._pending is None:
            if self._controller.checkpoint_due():
                self.ask()
            return
        if self._written(self._pending[0]):
            self.commit()

    def commit(self) -> None:
        """Makes the checkpoint whole that is pending, if one is; all its parts are written."""
        if self._pending is None:
            return
        (number, folder), self._pending = self._pending, None
        self._stand_in(number, folder)
        made = self._controller.commit_checkpoint(number, folder, exact=False)
        # Workers that are started again go on from the newest one.
        self._fleet.checkpoint = str(made.path.absolute())
        self._clear()

    def _stand_in(self, number: int, folder: Path) -> None:
        """Gives those that are dead or not started yet the part that they had before, if they had
        one; they are not asked any more."""
        before, rows = self._controller.last_checkpoint, self._controller.board.rows
        for worker in self._kept:
            row = rows[worker.name]
            if row.get("checkpoint") >= number:
                continue
            row.set("checkpoint", number)
            part = before.manifest.parts.get(worker.name) if before is not None else None
            if before is not None and part is not None:
                copy_part(before.path / part.file, folder)

    def _clear(self) -> None:
        while self._given_up:
            self._controller.store.abort(self._given_up.pop())

    def give_up(self) -> None:
        """Waits no more for a checkpoint that is under way: a lost host was to write parts of it,
        or there is to be a last one.

        Its parts may still be written, so the next checkpoint has a folder of its own. The old one
        stays until then, for those who are about to write there.
        """
        if self._pending is not None:
            self._given_up.append(self._pending[1])
            self._pending = None

    def ask(self) -> None:
        """Asks for a checkpoint, unless one is under way or trainers have not started: before that
        there is nothing to write."""
        rows = self._controller.board.rows
        ready = all(rows[w.name].activity in ("running", "waiting") for w in self._kept if w.trains)
        if self._pending is not None or not ready:
            return
        number, folder = self._controller.begin_checkpoint()
        say_where(self._fleet.folder.path, str(folder.absolute()))
        self._controller.board.checkpoint = number
        self._pending = (number, folder)
        self._fleet.notify(self._controller.board)

    def _written(self, number: int) -> bool:
        rows = self._controller.board.rows
        return all(rows[worker.name].get("checkpoint") >= number for worker in self._writers())

    def _writers(self) -> list[WorkerPlan]:
        """Workers whose parts make a checkpoint whole; one that has finished writes none."""
        return [w for w in self._kept if w.trains or self._fleet.is_alive(w.process)]

    def finish(self, seconds: float, pause: Callable[[], None]) -> list[str]:
        """Waits for the parts of the last checkpoint, and gives it up if a writer ends without its
        own or is slow; those that ended so are returned. `commit` makes it whole."""
        if self._pending is None:
            return []
        number, folder = self._pending
        deadline = time.monotonic() + seconds
        writers = self._writers()
        gone: list[str] = []
        while not self._written(number) and not gone and time.monotonic() < deadline:
            pause()
            gone = [w.process for w in writers if self._left_without(w, number)]
        if not self._written(number):
            self._pending = None
            self._controller.store.abort(folder)
            self._clear()
            text = "the last checkpoint was not written in time"
            self._controller.collector.add(Note("controller", "warning", text))
        return gone

    def _left_without(self, worker: WorkerPlan, number: int) -> bool:
        """Whether a writer has ended without its part; who has written is free to leave first."""
        ended = not self._fleet.is_alive(worker.process)
        return ended and self._controller.board.rows[worker.name].get("checkpoint") < number
