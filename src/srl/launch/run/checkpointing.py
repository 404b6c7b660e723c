"""Checkpoints of a run in processes: requests them, waits for their parts, commits them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from srl.errors import ConfigError
from srl.launch.process.worker import write_checkpoint_path
from srl.launch.run.controller import Controller
from srl.launch.run.process_table import ProcessTable
from srl.plan import WorkerPlan
from srl.services.checkpoint_parts import copy_part
from srl.services.messages import Note
from srl.services.segments import copy_segments


class Checkpointing:
    """Asks workers for their parts of a checkpoint, and commits it when all parts are there."""

    def __init__(self, controller: Controller, process_table: ProcessTable) -> None:
        self._controller = controller
        self._process_table = process_table
        self._saved_workers = [w for w in controller.plan.workers if w.in_every_checkpoint]
        self._pending: tuple[int, Path] | None = None
        self._abandoned: list[Path] = []

    @property
    def pending(self) -> bool:
        """Whether a checkpoint still waits for parts."""
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
        """Commits the pending checkpoint, if there is one. All its parts must be written."""
        if self._pending is None:
            return
        (number, folder), self._pending = self._pending, None
        self._copy_old_parts(number, folder)
        made = self._controller.commit_checkpoint(number, folder, exact=False)
        # Workers that are started again continue from the newest checkpoint.
        self._process_table.checkpoint = str(made.path.absolute())
        self._remove_abandoned()

    def _copy_old_parts(self, number: int, folder: Path) -> None:
        """Copies parts of the last checkpoint for workers that are dead or not started yet.

        Their rows are marked, so that these workers are not asked for this checkpoint any more.
        """
        before, rows = self._controller.last_checkpoint, self._controller.stats_table.rows
        for worker in self._saved_workers:
            row = rows[worker.name]
            if row.get("checkpoint") >= number:
                continue
            row.set("checkpoint", number)
            part = before.manifest.parts.get(worker.name) if before is not None else None
            if before is not None and part is not None:
                copy_part(before.path / part.file, folder)
                if segments := before.manifest.segments.get(worker.name):
                    copy_segments(segments, worker.name, before.path, folder)

    def _remove_abandoned(self) -> None:
        while self._abandoned:
            self._controller.store.abort(self._abandoned.pop())

    def give_up(self) -> None:
        """Stops waiting for a checkpoint that is under way, because a host that writes parts of it
        is lost, or because the last checkpoint is next.

        Workers may still write parts of it, so the next checkpoint has another folder. The old
        folder stays until the next commit, for workers that are about to write there.
        """
        if self._pending is not None:
            self._abandoned.append(self._pending[1])
            self._pending = None

    def ask(self) -> None:
        """Asks for a checkpoint, unless one is under way or a trainer has not started: then there
        is nothing to write."""
        rows = self._controller.stats_table.rows
        ready = all(
            rows[w.name].activity in ("running", "waiting") for w in self._saved_workers if w.trains
        )
        if self._pending is not None or not ready:
            return
        number, folder = self._controller.begin_checkpoint()
        write_checkpoint_path(self._process_table.folder.path, str(folder.absolute()))
        self._controller.stats_table.checkpoint = number
        self._pending = (number, folder)
        self._process_table.notify(self._controller.stats_table)

    def ask_now(self) -> None:
        """Asks for a checkpoint because a user wants one; raises ConfigError if there is nothing to
        write yet."""
        self.ask()
        if self._pending is None:
            raise ConfigError(
                "checkpoint: expected trainers that have started, got a run that still starts. Ask "
                "again in a moment."
            )

    def _written(self, number: int) -> bool:
        rows = self._controller.stats_table.rows
        return all(rows[worker.name].get("checkpoint") >= number for worker in self._writers())

    def _writers(self) -> list[WorkerPlan]:
        """The saved workers that a checkpoint waits for: trainers, and others that are alive."""
        return [
            w for w in self._saved_workers if w.trains or self._process_table.is_alive(w.process)
        ]

    def finish(self, seconds: float, pause: Callable[[], None]) -> list[str]:
        """Waits for the parts of the last checkpoint; `commit` comes after it.

        Abandons the checkpoint if a worker ends without its part, or after `seconds`. Returns the
        processes of workers that ended without their part.
        """
        if self._pending is None:
            return []
        number, folder = self._pending
        deadline = time.monotonic() + seconds
        writers = self._writers()
        gone: list[str] = []
        while not self._written(number) and not gone and time.monotonic() < deadline:
            pause()
            gone = [w.process for w in writers if self._ended_without_part(w, number)]
        if not self._written(number):
            self._pending = None
            self._controller.store.abort(folder)
            self._remove_abandoned()
            text = "the last checkpoint was not written in time"
            self._controller.collector.add(Note("controller", "warning", text))
        return gone

    def _ended_without_part(self, worker: WorkerPlan, number: int) -> bool:
        """Whether a worker has ended without its part; it may leave once the part is written."""
        ended = not self._process_table.is_alive(worker.process)
        return ended and self._controller.stats_table.rows[worker.name].get("checkpoint") < number
