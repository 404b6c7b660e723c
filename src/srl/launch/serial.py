"""The serial launcher: every worker in one thread, in a fixed order, under a debugger if you like.

It is the same code as everywhere else, with plain memory in place of shared memory. Two runs with
the same seed are equal bit for bit, and a checkpoint holds every worker's state, so that a resumed
run goes on exactly.
"""

from __future__ import annotations

import signal
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from srl.arena.arena import HeapArena
from srl.arena.shm import NoBell
from srl.errors import EnvError, MissingDependency, RunError, SrlError, WorkerError
from srl.launch.controller import Controller, Ending
from srl.launch.hosting import build_workers, close_workers, restore_worker, write_worker
from srl.launch.signals import StopSignals
from srl.services.checkpoints import Checkpoint, read_part, write_part
from srl.services.metrics_client import InlineMetrics
from srl.streams.inference import create_inference
from srl.streams.sample import create_sample
from srl.workers.worker import Current, Host, Worker

ARENA_PART = "arena"
HOST_PART = "host"
WATCH_SECONDS = 0.25
PATIENCE_SECONDS = 1.5
"""How long a run that is to stop waits for an environment call."""


class _Overdue(BaseException):
    """Interrupts an environment call. Not an Exception, so that no environment keeps it."""


class SerialRun:
    """One run in this thread."""

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
        self._board = controller.board
        self._current = Current("serial")
        self._checkpoint = checkpoint
        self._folder: Path | None = None
        for inference in self._plan.inference.values():
            create_inference(inference.spec, arena)
        for sample in self._plan.samples.values():
            create_sample(sample.spec, arena)
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
            # Stopped while the environments were made: there is nothing to keep yet.
            if controller.ending is None:
                raise EnvError(str(overdue)) from None
        except MissingDependency:
            raise
        except SrlError as error:
            raise type(error)(f"{self._current.name}: {error}") from error
        except OSError:
            raise
        except Exception as error:
            lines = "".join(traceback.format_exception(error)).splitlines()[-15:]
            tail = "\n".join(f"    {line}" for line in lines)
            text = f"{self._current.name}: {type(error).__name__}: {error}\n{tail}"
            raise WorkerError(text) from error
        finally:
            close_workers(self._workers)
        assert controller.ending is not None
        return controller.ending

    def end(self) -> None:
        """One thread has nobody else to end."""

    def _ask_to_stop(self) -> None:
        """Ends the run at the next safe point."""
        controller = self._controller
        controller.ending = controller.ending or Ending("stopped", self._signals.reason)
        controller.board.stop = True

    def _train(self) -> None:
        controller = self._controller
        self._workers = build_workers(
            list(self._plan.workers),
            self._plan,
            board=self._board,
            metrics=self._metrics,
            shared=self._arena,
            local=self._arena,
            run_dir=controller.run_dir,
            current=self._current,
        )
        host = Host(self._workers, self._board, NoBell(), self._write, self._current)
        self._restore(host)
        try:
            try:
                self._loop(host)
            except BaseException:
                # The environment call that raised is over, however long the rest takes.
                for row in self._board.rows.values():
                    row.enter("failed")
                raise
            self._save(host)
        except _Overdue:
            # An environment was left in the middle of a call, so its state is not to be had.
            if controller.ending is None:
                self._rescue(host)
                raise
            self._save(host, exact=False)
        except Exception:
            self._rescue(host)
            raise

    def _rescue(self, host: Host) -> None:
        """Keeps what was learned, where what failed is not the learning itself."""
        failed = self._current.name
        trains = {worker.name for worker in self._plan.workers if worker.trains}
        if failed not in trains and self._folder is None:
            with suppress(SrlError, OSError):
                self._save(host, exact=False)
        self._current.name = failed

    def _loop(self, host: Host) -> None:
        controller = self._controller
        while True:
            wait = host.round()
            if wait is not None:
                if not host.done and wait < 1.0:
                    time.sleep(wait)
                elif not self._board.stop:
                    waiting = ", ".join(f"{w} for {x}" for w, x in host.waiting().items())
                    raise RunError(f"nothing makes progress: {waiting or 'all workers are done'}.")
            controller.poll()
            if controller.ending is not None:
                return
            if controller.checkpoint_due():
                self._save(host)

    def _save(self, host: Host, *, exact: bool = True) -> None:
        controller = self._controller
        self._current.name = "controller"
        number, self._folder = controller.begin_checkpoint()
        try:
            self._exact = exact and all(worker.restorable for worker in self._workers)
            if self._exact:
                write_part(self._folder, ARENA_PART, self._arena.state())
                write_part(self._folder, HOST_PART, {"next": host.next})
            self._board.checkpoint = number
            host.checkpoint()
            controller.commit_checkpoint(number, self._folder, exact=self._exact)
        except BaseException:
            controller.store.abort(self._folder)
            raise
        self._folder = None

    def _write(self, worker: Worker, number: int) -> None:
        assert self._folder is not None
        write_worker(worker, self._folder, self._exact)

    def _restore(self, host: Host) -> None:
        checkpoint = self._checkpoint
        if checkpoint is None:
            return
        exact = checkpoint.manifest.exact and self._restore_arena(checkpoint)
        if exact:
            host.next = read_part(checkpoint, HOST_PART)["next"]
        for worker in self._workers:
            if exact or worker.in_every_checkpoint:
                restore_worker(worker, checkpoint, exact=exact)

    def _restore_arena(self, checkpoint: Checkpoint) -> bool:
        """Puts the streams' memory back, if this run's streams are the same."""
        saved = read_part(checkpoint, ARENA_PART)
        mine = {name: region.size for name, region in self._arena.regions.items()}
        if mine != {name: content.size for name, content in saved.items()}:
            return False
        self._arena.restore(saved)
        self._board.stop = False
        return True


@contextmanager
def _watch(controller: Controller) -> Iterator[None]:
    """Interrupts an environment call that takes too long, from a thread that looks at the board."""
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
