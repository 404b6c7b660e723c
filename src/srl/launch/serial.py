"""The serial launcher: every worker in one thread, in a fixed order, under a debugger if you like.

It is the same code as everywhere else, with plain memory in place of shared memory. Two runs with the same seed are
equal bit for bit, and a checkpoint holds every worker's state, so that a resumed run goes on exactly.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from srl.arena.arena import HeapArena
from srl.arena.shm import NoBell
from srl.errors import EnvError, RunError, SrlError
from srl.launch.controller import Controller, Ending
from srl.launch.hosting import build_workers, restore_worker, write_worker
from srl.services.checkpoints import Checkpoint, read_part, write_part
from srl.services.metrics_client import InlineMetrics
from srl.streams.inference import create_inference
from srl.streams.sample import create_sample
from srl.workers.worker import Current, Host, Worker

ARENA_PART = "arena"
WATCH_SECONDS = 0.5


class SerialRun:
    """One run in this thread."""

    def __init__(
        self, controller: Controller, arena: HeapArena, checkpoint: Checkpoint | None
    ) -> None:
        self._controller = controller
        self._arena = arena
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
        with _watch(controller), _signals(controller):
            try:
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
                self._restore()
                self._loop(host)
                self._save(host)
            except SrlError as error:
                raise type(error)(f"{self._current.name}: {error}") from error
            finally:
                for worker in self._workers:
                    worker.close()
        assert controller.ending is not None
        return controller.ending

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

    def _save(self, host: Host) -> None:
        controller = self._controller
        number, self._folder = controller.begin_checkpoint()
        try:
            self._exact = all(worker.restorable for worker in self._workers)
            if self._exact:
                write_part(self._folder, ARENA_PART, self._arena.state())
            self._board.checkpoint = number
            host.checkpoint()
            controller.commit_checkpoint(number, self._folder, exact=self._exact)
        except BaseException:
            controller.store.abort(self._folder)
            raise

    def _write(self, worker: Worker, number: int) -> None:
        assert self._folder is not None
        write_worker(worker, self._folder, self._exact)

    def _restore(self) -> None:
        checkpoint = self._checkpoint
        if checkpoint is None:
            return
        exact = checkpoint.manifest.exact and self._restore_arena(checkpoint)
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
def _signals(controller: Controller) -> Iterator[None]:
    """Ctrl-C and SIGTERM end the run at the next safe point. Elsewhere than in the main thread they are not ours."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: object) -> None:
        controller.ending = controller.ending or Ending("stopped", signal.Signals(number).name)
        controller.board.stop = True

    before = {s: signal.signal(s, stop) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _watch(controller: Controller) -> Iterator[None]:
    """Interrupts an environment call that takes too long, from a thread that only looks at the board."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    over = threading.Event()
    main = threading.main_thread().ident
    assert main is not None

    def interrupt(number: int, frame: object) -> None:
        text = controller.overdue_call()
        if text:
            raise EnvError(text)

    def watch() -> None:
        while not over.wait(WATCH_SECONDS):
            if controller.overdue_call():
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
