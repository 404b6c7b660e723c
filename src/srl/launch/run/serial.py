"""The serial layout: all workers run in one thread, in a fixed order. A debugger can follow it.

The workers are the same as in other layouts, with plain memory in place of shared memory. Two runs
with the same seed are equal bit for bit. A checkpoint holds every worker's state, so that a resumed
run continues exactly.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from srl.arena.arena import HeapArena
from srl.arena.shm import NoWakePipe
from srl.errors import ConfigError, EnvError, MissingDependency, RunError, SrlError, WorkerError
from srl.launch.process.build import build_workers, close_workers, restore_worker, write_worker
from srl.launch.run.controller import Controller, Ending
from srl.launch.run.requests import STOP_REASON, Requests
from srl.launch.run.restarts import Restarts
from srl.launch.run.signals import StopSignals
from srl.launch.run.stall import stall_text
from srl.launch.run.status_file import OneThread, StatusFile
from srl.services.checkpoints import Checkpoint, read_part, write_part
from srl.services.messages import Note
from srl.services.metrics_client import InlineMetrics
from srl.streams.inference import create_inference
from srl.streams.sample import create_sample
from srl.tracebacks import USER_ERRORS, described, in_user_code
from srl.workers.worker import CurrentWorker, ProcessLoop, Worker

ARENA_PART = "arena"
PROCESS_LOOP_PART = "process_loop"
"""Name of the checkpoint part that holds the state of the process loop."""
WATCH_SECONDS = 0.25
PATIENCE_SECONDS = 1.5
"""How long a run that has to stop waits for an environment call."""


class _Overdue(BaseException):
    """Interrupts an environment call. Not an Exception, so that no environment catches it."""


class SerialRun:
    """A run whose workers all run in this thread."""

    def __init__(
        self,
        controller: Controller,
        arena: HeapArena,
        checkpoint: Checkpoint | None,
        signals: StopSignals,
    ) -> None:
        self._controller = controller
        self._arena = arena
        self._signals = signals
        self._plan = controller.plan
        self._stats_table = controller.stats_table
        self._current = CurrentWorker("serial")
        self._checkpoint = checkpoint
        self._folder: Path | None = None
        for inference in self._plan.inference.values():
            create_inference(inference.spec, arena)
        for sample in self._plan.samples.values():
            create_sample(sample.spec, arena)
        self._status = StatusFile(
            controller.run_dir, controller, OneThread(self._plan), Restarts(0.0)
        )
        self._asked_for_checkpoint = False
        self._requests = Requests(
            controller.run_dir,
            scale=_refuse_to_scale,
            checkpoint=self._ask_for_checkpoint,
            stop=self._stop_as_asked,
            refuse=lambda why: self._add(Note("controller", "warning", why)),
        )
        self._metrics = InlineMetrics(self._add)
        self._workers: list[Worker] = []

    def _add(self, message) -> None:  # type: ignore[no-untyped-def]
        self._controller.collector.add(message)
        self._controller.check_until()

    def run(self) -> Ending:
        """Trains until a goal is reached or a signal asks to stop."""
        controller = self._controller
        try:
            with _watch(controller), self._signals.calling(self._ask_to_stop):
                self._train()
        except _Overdue as overdue:
            # Stopped while the environments were made: there is nothing to save yet.
            if controller.ending is None:
                raise EnvError(str(overdue)) from None
        except MissingDependency:
            raise
        except SrlError as error:
            raise type(error)(f"{self._current.name}: {error}") from error
        except USER_ERRORS as error:
            if isinstance(error, OSError) and not in_user_code(error):
                # Not from user code: for example a full disk.
                raise
            raise WorkerError(f"{self._current.name}: {described(error)}") from error
        finally:
            close_workers(self._workers)
        assert controller.ending is not None
        return controller.ending

    def end(self) -> None:
        """Does nothing: a run in one thread has no other process to end."""

    def _ask_to_stop(self) -> None:
        """Ends the run at the next safe point."""
        controller = self._controller
        controller.ending = controller.ending or Ending("stopped", self._signals.reason)
        controller.stats_table.stop = True

    def _stop_as_asked(self) -> None:
        self._controller.ending = self._controller.ending or Ending("stopped", STOP_REASON)

    def _ask_for_checkpoint(self) -> None:
        self._asked_for_checkpoint = True

    def _train(self) -> None:
        controller = self._controller
        self._workers = build_workers(
            list(self._plan.workers),
            self._plan,
            stats_table=self._stats_table,
            metrics=self._metrics,
            shared=self._arena,
            local=self._arena,
            run_dir=controller.run_dir,
            current=self._current,
        )
        process_loop = ProcessLoop(
            self._workers, self._stats_table, NoWakePipe(), self._write, self._current
        )
        # During a long update only the worker itself can check the time.
        process_loop.leaving = controller.check_seconds
        self._restore(process_loop)
        try:
            try:
                self._run_loop(process_loop)
            except BaseException:
                # The environment call that raised is over: it must not time out during the rest.
                for row in self._stats_table.rows.values():
                    row.enter("failed")
                raise
            self._save(process_loop)
        except _Overdue:
            # An environment was interrupted in a call, so its state cannot be saved.
            if controller.ending is None:
                self._save_after_failure(process_loop)
                raise
            self._save(process_loop, exact=False)
        except USER_ERRORS:
            self._save_after_failure(process_loop)
            raise

    def _save_after_failure(self, process_loop: ProcessLoop) -> None:
        """Writes a checkpoint after a failure, unless a trainer or a checkpoint failed."""
        failed = self._current.name
        trains = {worker.name for worker in self._plan.workers if worker.trains}
        if failed not in trains and self._folder is None:
            with suppress(SrlError, OSError):
                self._save(process_loop, exact=False)
        self._current.name = failed

    def _run_loop(self, process_loop: ProcessLoop) -> None:
        controller = self._controller
        moved = time.monotonic()
        while True:
            wait = process_loop.round()
            if wait is None:
                moved = time.monotonic()
            elif self._is_stalled(process_loop, wait, moved):
                if not self._stats_table.stop:
                    self._current.name = "controller"
                    stalled = time.monotonic() - moved
                    text = stall_text(
                        self._plan, process_loop.waiting(), controller.accounts(), stalled
                    )
                    raise RunError(text)
            else:
                time.sleep(wait)
            self._current.name = "controller"
            controller.poll()
            self._requests.step()
            self._status.step()
            if controller.ending is not None:
                return
            if controller.checkpoint_due() or self._asked_for_checkpoint:
                self._asked_for_checkpoint = False
                self._save(process_loop)

    def _is_stalled(self, process_loop: ProcessLoop, wait: float, moved: float) -> bool:
        """Whether all workers wait for each other, or have waited for too long for a timeout or for
        something outside of the run."""
        if process_loop.done or (wait >= 1.0 and not process_loop.waits_outside):
            return True
        limit = self._controller.experiment.stall_seconds
        return bool(limit) and time.monotonic() - moved >= limit

    def _save(self, process_loop: ProcessLoop, *, exact: bool = True) -> None:
        controller = self._controller
        self._current.name = "controller"
        number, self._folder = controller.begin_checkpoint()
        try:
            self._exact = exact and all(worker.restorable for worker in self._workers)
            if self._exact:
                write_part(self._folder, ARENA_PART, self._arena.state())
                write_part(self._folder, PROCESS_LOOP_PART, {"next": process_loop.next})
            self._stats_table.checkpoint = number
            process_loop.checkpoint()
            controller.commit_checkpoint(number, self._folder, exact=self._exact)
        except BaseException:
            controller.store.abort(self._folder)
            raise
        self._folder = None

    def _write(self, worker: Worker, number: int) -> None:
        assert self._folder is not None
        write_worker(worker, self._folder, self._exact)

    def _restore(self, process_loop: ProcessLoop) -> None:
        checkpoint = self._checkpoint
        if checkpoint is None:
            return
        exact = checkpoint.manifest.exact and self._restore_arena(checkpoint)
        if exact:
            process_loop.next = read_part(checkpoint, PROCESS_LOOP_PART)["next"]
        for worker in self._workers:
            if exact or worker.in_every_checkpoint:
                restore_worker(worker, checkpoint, exact=exact)

    def _restore_arena(self, checkpoint: Checkpoint) -> bool:
        """Restores the memory of streams and services from a checkpoint. Returns False if the
        regions of this run are others."""
        saved = read_part(checkpoint, ARENA_PART)
        expected = {name: region.size for name, region in self._arena.regions.items()}
        if expected != {name: content.size for name, content in saved.items()}:
            return False
        self._arena.restore(saved)
        self._stats_table.stop = False
        return True


def _refuse_to_scale(counts: dict[str, int]) -> None:
    raise ConfigError(
        "scale: expected a run in processes of its own, got layout serial, where all workers take "
        "turns in one thread. Train with --layout inline or shared."
    )


@contextmanager
def _watch(controller: Controller) -> Iterator[None]:
    """Interrupts an environment call that takes too long; a thread watches the stats table."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    over = threading.Event()
    main = threading.main_thread().ident
    assert main is not None

    def interrupt(number: int, frame: object) -> None:
        text = controller.overdue_call(_patience(controller))
        if text and not over.is_set():
            over.set()
            raise _Overdue(text)

    def watch() -> None:
        while not over.wait(WATCH_SECONDS):
            if controller.overdue_call(_patience(controller)):
                signal.pthread_kill(main, signal.SIGALRM)

    before = signal.signal(signal.SIGALRM, interrupt)
    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        signal.signal(signal.SIGALRM, before)


def _patience(controller: Controller) -> float | None:
    return PATIENCE_SECONDS if controller.ending is not None else None
