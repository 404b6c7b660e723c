"""A worker process: `python -m srl.launch.process.worker NAME MODULES`, or forked by a template.

It imports MODULES (names with commas between; a template has imported them before), and reads its
orders as JSON from standard input. It is started before the plan is ready, so that its imports run
while the plan is made. Standard input stays open for as long as the parent lives. When standard
input ends, this process finishes, and it tells all workers of the host to finish. A line `leave`
tells only this process to finish.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from pathlib import Path

import msgspec

from srl.arena.arena import HeapArena
from srl.arena.shm import ShmArena, WakePipe
from srl.errors import CheckpointError, SrlError
from srl.files import write_atomically
from srl.launch.process.allocator import keep_large_buffers
from srl.launch.process.build import build_workers, close_workers, restore_worker, write_worker
from srl.launch.process.cores import keep_to_one_core, take_turns
from srl.launch.process.failure_report import Failure, failure_path
from srl.launch.process.interpreter import exit_now, log_to_stderr, preload
from srl.launch.run.signals import leave_to_parent
from srl.plan import Plan
from srl.services.checkpoints import Checkpoint, open_checkpoint
from srl.services.metrics_client import SocketMetrics
from srl.services.worker_stats import StatsTable, StatsTablePart
from srl.tracebacks import USER_ERRORS, message_of, raised_at
from srl.workers.worker import CurrentWorker, ProcessLoop, Worker

FINISH_SECONDS = 5.0
"""How long a process without a parent may take to finish by itself before it exits."""
LEAVE = b"leave\n"
"""The input line that makes a process finish while the run goes on."""


class WorkerOrders(msgspec.Struct, kw_only=True):
    """The orders that a worker process gets from its parent, one line of JSON."""

    plan: Plan
    """This process's part of the plan."""
    stats_table: StatsTablePart
    """The rows of its workers."""
    process: str
    incarnation: int = 0
    """How often the process was started before, on any host."""
    folder: str
    run_dir: str
    checkpoint: str = ""
    bridged: bool = False
    """Whether the run has other hosts. Then processes there are woken through the bridge."""
    lazy: bool = False
    """Whether regions take memory only as it is used: for a host that uses a part of them."""
    address: str = ""
    """This host's address for trainers on other hosts; empty if there are none."""


class _InputLines:
    """Standard input as lines.

    It is read without Python's own buffers: a thread that waits in them prevents a clean end of
    the interpreter.
    """

    def __init__(self) -> None:
        self._lines: deque[bytes] = deque()
        self._part = bytearray()

    def line(self) -> bytes:
        """Waits for the next line; empty when the parent is gone."""
        while not self._lines:
            data = os.read(0, 1 << 16)
            if not data:
                return b""
            *complete, rest = data.split(b"\n")
            for piece in complete:
                self._lines.append(bytes(self._part) + piece + b"\n")
                self._part.clear()
            self._part += rest
        return self._lines.popleft()


def checkpoint_path(folder: Path) -> Path:
    """The file that names the folder of the requested checkpoint."""
    return folder / "checkpoint"


def write_checkpoint_path(folder: Path, checkpoint: str) -> None:
    """Writes the folder of the requested checkpoint into that file, in one move."""
    write_atomically(checkpoint_path(folder), checkpoint.encode())


def main() -> int:
    """Runs one worker process and returns its exit code."""
    leave_to_parent()
    faulthandler.enable()
    log_to_stderr()
    name, *modules = sys.argv[1:]
    preload(module for names in modules for module in names.split(","))
    current = CurrentWorker(name)
    source = _InputLines()
    line = source.line()
    if not line:
        return 0
    orders = msgspec.json.decode(line, type=WorkerOrders)
    folder = Path(orders.folder)
    try:
        _run(orders, folder, current, source)
    except SrlError as error:
        _write_failure(folder, name, current.name, error, "")
        return 3
    except USER_ERRORS as error:
        # Includes SystemExit: a worker whose user code exits must not count as finished.
        traceback.print_exc()
        _write_failure(folder, name, current.name, error, raised_at(error))
        return 1
    return 0


def _write_failure(
    folder: Path, process: str, worker: str, error: BaseException, where: str
) -> None:
    logging.getLogger("srl").error("%s failed: %s", worker, error)
    expected = isinstance(error, SrlError)
    text = str(error) if expected else message_of(error)
    failure = Failure(worker, type(error).__name__, text, expected, where)
    if folder.exists():
        failure_path(folder, process).write_bytes(msgspec.json.encode(failure))


def _run(orders: WorkerOrders, folder: Path, current: CurrentWorker, source: _InputLines) -> None:
    plan = orders.plan
    members = plan.processes[orders.process]
    shared = ShmArena(folder, orders.process, bridged=orders.bridged, lazy=orders.lazy)
    stats_table = StatsTable(shared, orders.stats_table)
    wake_pipe = WakePipe(folder, orders.process)
    leaving = threading.Event()
    threading.Thread(
        target=_watch_input, args=(source, stats_table, leaving, shared), daemon=True
    ).start()
    _prepare_torch(max(member.threads for member in members))
    on_one_core = plan.experiment["actor"]["keep_core"] and take_turns(members, plan)
    core = keep_to_one_core() if on_one_core else None
    metrics = SocketMetrics(folder)
    workers: list[Worker] = []
    try:
        workers = build_workers(
            members,
            plan,
            stats_table=stats_table,
            metrics=metrics,
            shared=shared,
            local=HeapArena(),
            run_dir=Path(orders.run_dir),
            address=orders.address,
            incarnation=orders.incarnation,
            current=current,
        )
        loop = ProcessLoop(
            workers,
            stats_table,
            _FlushingWakePipe(wake_pipe, metrics),
            _checkpoint_writer(folder),
            current,
        )
        loop.leaving = leaving.is_set
        loop.waits_for_return = orders.bridged
        _restore(orders, [worker for worker in workers if worker.in_every_checkpoint])
        loop.run()
    except BaseException:
        # The environment call that raised is over, so its time limit must not count any more.
        for member in members:
            stats_table.rows[member.name].enter("failed")
        raise
    finally:
        close_workers(workers)
        metrics.close()
        wake_pipe.close()
        shared.close()
        if core is not None:
            core.close()


def _restore(orders: WorkerOrders, workers: list[Worker]) -> None:
    """Restores the given workers from the checkpoint that the orders name."""
    if not orders.checkpoint or not workers:
        return
    path = Path(orders.checkpoint)
    if not path.exists():
        # Newer checkpoints have replaced it while this process was starting.
        path = max(p for p in path.parent.iterdir() if p.name.isdecimal())
    checkpoint: Checkpoint = open_checkpoint(path)
    for worker in workers:
        restore_worker(worker, checkpoint, exact=False)


class _FlushingWakePipe:
    """A wake pipe that sends the buffered metrics before the process sleeps."""

    def __init__(self, wake_pipe: WakePipe, metrics: SocketMetrics) -> None:
        self._wake_pipe = wake_pipe
        self._metrics = metrics

    def wait(self, timeout_seconds: float) -> bool:
        self._metrics.flush()
        return self._wake_pipe.wait(timeout_seconds)


def _checkpoint_writer(folder: Path) -> Callable[[Worker, int], None]:
    def write(worker: Worker, number: int) -> None:
        where = Path(checkpoint_path(folder).read_text())
        try:
            write_worker(worker, where, exact=False)
        except CheckpointError as error:
            if where.is_dir() or not worker.stopping():
                raise
            # The run has ended without this checkpoint. The head reports that.
            logging.getLogger("srl").warning("%s", error)

    return write


def _prepare_torch(threads: int) -> None:
    """Sets torch's threads and the allocator. Does nothing if torch is not imported."""
    if "torch" in sys.modules:
        import torch

        torch.set_num_threads(threads)
        keep_large_buffers()


def _watch_input(
    source: _InputLines, stats_table: StatsTable, leaving: threading.Event, shared: ShmArena
) -> None:
    """Reads standard input: a line `leave` makes this process finish.

    When the parent is gone, it tells all workers of the host to stop. This process exits soon
    after in any case.
    """
    while line := source.line():
        if line == LEAVE:
            leaving.set()
            arena = ShmArena(shared.folder, "")
            arena.wake(shared.process)
            arena.close()
    stats_table.stop = True
    time.sleep(FINISH_SECONDS)
    os._exit(4)


if __name__ == "__main__":
    exit_now(main())
