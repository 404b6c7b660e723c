"""A worker process: `python -m srl.launch.worker NAME`, with its orders as JSON on standard input.

It is started before the plan is ready, so that imports run beside planning. Standard input stays
open for as long as the parent lives: its end tells the process to finish by itself, and everyone
else on the host too. A line `leave` tells the process alone to finish.
"""

from __future__ import annotations

import atexit
import faulthandler
import gc
import importlib
import logging
import os
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import msgspec

from srl.arena.arena import HeapArena
from srl.arena.shm import Bell, ShmArena
from srl.errors import SrlError
from srl.files import write_whole
from srl.launch.allocator import keep_large_buffers
from srl.launch.cores import keep_to_one_core, take_turns
from srl.launch.hosting import build_workers, close_workers, restore_worker, write_worker
from srl.launch.last_words import Failure, failure_path
from srl.launch.planning import Draft, write_answer
from srl.launch.signals import leave_to_parent
from srl.services.board import Board, BoardPart
from srl.services.checkpoints import Checkpoint, open_checkpoint
from srl.services.metrics_client import SocketMetrics
from srl.workers.wiring import Plan
from srl.workers.worker import Current, Host, Worker

ORPHAN_SECONDS = 5.0
"""How long a process without a parent may take to finish by itself."""
LEAVE = b"leave\n"
"""What makes a process finish by itself while the run goes on."""


class Orders(msgspec.Struct, tag=True, kw_only=True):
    """What the launcher writes to a worker process, one line of JSON."""

    plan: Plan
    """The process's part of it."""
    board: BoardPart
    """Its workers' rows."""
    process: str
    folder: str
    run_dir: str
    checkpoint: str = ""
    gated: bool = False
    """Whether the run has other hosts, so that some processes are reached through the gate."""
    lazy: bool = False
    """Whether memory is taken as it is used, on a host that uses only part of it."""
    address: str = ""
    """Where trainers of other hosts may reach this host's; empty if none do."""


class _Input:
    """Standard input as lines. Read without Python's own buffers: a thread that waits in those
    keeps the interpreter from ending well."""

    def __init__(self) -> None:
        self._lines: deque[bytes] = deque()
        self._part = bytearray()

    def line(self) -> bytes:
        """The next line, or nothing when the parent is gone."""
        while not self._lines:
            data = os.read(0, 1 << 16)
            if not data:
                return b""
            *whole, rest = data.split(b"\n")
            for piece in whole:
                self._lines.append(bytes(self._part) + piece + b"\n")
                self._part.clear()
            self._part += rest
        return self._lines.popleft()


def checkpoint_path(folder: Path) -> Path:
    """Where the controller says in which folder the asked-for checkpoint is written."""
    return folder / "checkpoint"


def say_where(folder: Path, checkpoint: str) -> None:
    """Says in which folder the asked-for checkpoint is written; at no moment half of it."""
    write_whole(checkpoint_path(folder), checkpoint.encode())


def main() -> int:
    """Runs one worker process and returns its exit code."""
    leave_to_parent()
    faulthandler.enable()
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True
    )
    # What is imported stays; to look for garbage in it costs a tenth of the start.
    gc.disable()
    for module in sys.argv[2:]:
        importlib.import_module(module)
    gc.freeze()
    gc.enable()
    current = Current(sys.argv[1])
    source = _Input()
    while line := source.line():
        message = msgspec.json.decode(line, type=Draft | Orders)
        folder = Path(message.folder)
        try:
            if isinstance(message, Orders):
                _run(message, folder, current, source)
                break
            write_answer(message)
        except SrlError as error:
            _leave(folder, sys.argv[1], current.name, error, expected=True)
            return 3
        except Exception as error:
            traceback.print_exc()
            _leave(folder, sys.argv[1], current.name, error, expected=False)
            return 1
    return 0


def _leave(folder: Path, process: str, worker: str, error: Exception, *, expected: bool) -> None:
    logging.getLogger("srl").error("%s failed: %s", worker, error)
    failure = Failure(worker, type(error).__name__, str(error), expected)
    if folder.exists():
        failure_path(folder, process).write_bytes(msgspec.json.encode(failure))


def _run(orders: Orders, folder: Path, current: Current, source: _Input) -> None:
    plan = orders.plan
    members = plan.processes[orders.process]
    shared = ShmArena(folder, orders.process, gated=orders.gated, lazy=orders.lazy)
    board = Board(shared, orders.board)
    bell = Bell(folder, orders.process)
    leaving = threading.Event()
    threading.Thread(target=_listen, args=(source, board, leaving, shared), daemon=True).start()
    _prepare_torch(max(member.threads for member in members))
    keeps = plan.experiment["actor"]["keep_core"] and take_turns(members, plan)
    core = keep_to_one_core() if keeps else None
    metrics = SocketMetrics(folder)
    workers: list[Worker] = []
    try:
        workers = build_workers(
            members,
            plan,
            board=board,
            metrics=metrics,
            shared=shared,
            local=HeapArena(),
            run_dir=Path(orders.run_dir),
            address=orders.address,
            current=current,
        )
        host = Host(workers, board, _FlushingBell(bell, metrics), _writer(folder), current)
        host.leaving = leaving.is_set
        host.stays = orders.gated
        _restore(orders, [worker for worker in workers if worker.in_every_checkpoint])
        host.run()
    except BaseException:
        # The environment call that raised is over, however long it takes to leave.
        for member in members:
            board.rows[member.name].enter("failed")
        raise
    finally:
        close_workers(workers)
        metrics.close()
        bell.close()
        shared.close()
        if core is not None:
            core.close()


def _restore(orders: Orders, workers: list[Worker]) -> None:
    """Restores those whose state every checkpoint has."""
    if not orders.checkpoint or not workers:
        return
    path = Path(orders.checkpoint)
    if not path.exists():
        # While a replaced worker started, newer ones have taken its place.
        path = max(p for p in path.parent.iterdir() if p.name.isdecimal())
    checkpoint: Checkpoint = open_checkpoint(path)
    for worker in workers:
        restore_worker(worker, checkpoint, exact=False)


class _FlushingBell:
    """Before a process sleeps it sends the metrics that it kept back."""

    def __init__(self, bell: Bell, metrics: SocketMetrics) -> None:
        self._bell = bell
        self._metrics = metrics

    def wait(self, timeout_seconds: float) -> bool:
        self._metrics.flush()
        return self._bell.wait(timeout_seconds)


def _writer(folder: Path) -> Callable[[Worker, int], None]:
    def write(worker: Worker, number: int) -> None:
        where = Path(checkpoint_path(folder).read_text())
        write_worker(worker, where, exact=False)

    return write


def _prepare_torch(threads: int) -> None:
    """Threads and memory for networks; a process without torch stays as small as it is."""
    if "torch" in sys.modules:
        import torch

        torch.set_num_threads(threads)
        keep_large_buffers()


def _listen(source: _Input, board: Board, leaving: threading.Event, shared: ShmArena) -> None:
    """Hears that the process is to leave, or that the parent is gone; then it stops the host's
    processes, kindly and this one soon after for certain."""
    while line := source.line():
        if line == LEAVE:
            leaving.set()
            bell = ShmArena(shared.folder, "")
            bell.ring(shared.process)
            bell.close()
    board.stop = True
    time.sleep(ORPHAN_SECONDS)
    os._exit(4)


def _end(code: int) -> NoReturn:
    """Ends the process at once: to take torch apart piece by piece takes longer than to leave."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _end(main())
