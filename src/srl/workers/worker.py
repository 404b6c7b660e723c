"""The loop that every worker runs in, written once.

A worker's `step()` never blocks: it makes progress, or names what it waits for. `ProcessLoop` steps
the workers of one process in a fixed order. It sleeps on the process's wake pipe when no worker can
continue. In the `serial` layout one loop has all workers; in the `inline` layout one loop has an
actor and a policy worker.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Protocol

import numpy as np

from srl.data.tree import Tree
from srl.plan import SamplePlan, WorkerPlan
from srl.services.checkpoints import CheckpointConfig, CheckpointPart
from srl.services.worker_stats import WAITS, StatsTable, WorkerStats
from srl.workers.wiring import Context


class StepResult(Enum):
    """What a step did: it made progress, is done for good, or gave up because the run stops."""

    PROGRESS = "progress"
    DONE = "done"
    GIVEN_UP = "given up"


CPU_EVERY_NS = 10_000_000
"""How often CPU time is counted while there is work: reading the clock costs as much as a copy."""
PROGRESS, DONE, GIVEN_UP = StepResult.PROGRESS, StepResult.DONE, StepResult.GIVEN_UP


class Wait:
    """Says that a step can do nothing before the named thing comes, or before the timeout."""

    __slots__ = ("field", "name", "timeout_seconds")

    def __init__(self, name: str, timeout_seconds: float = 1.0) -> None:
        self.name = name
        self.field = f"wait_{name if name in WAITS else 'other'}"
        self.timeout_seconds = timeout_seconds


_WAIT_FOR_RETURN = Wait("workers", 0.2)
"""Waits for the other ends of a stream to come back."""


class Worker(ABC):
    """One part of the dataflow."""

    name: str
    """Unique in the experiment, like "actor/3"."""
    stats: WorkerStats
    """Its heartbeat, timers and counters."""
    in_every_checkpoint = False
    """Whether every checkpoint has this worker's state, or only exact ones (of the `serial`
    layout)."""

    @classmethod
    @abstractmethod
    def build(cls, context: Context) -> Worker:
        """Makes the worker from its part of the plan, in the process that will run it."""

    @classmethod
    def memory_bytes(cls, worker: WorkerPlan, samples: Mapping[str, SamplePlan]) -> int:
        """The memory that it will take for what it keeps, like a replay, beside its streams and
        weights. Raises if it cannot work with its settings. `samples` are the plan's streams."""
        return 0

    @abstractmethod
    def step(self) -> StepResult | Wait:
        """Does one piece of work and never blocks. Long work checks `stopping` now and then."""

    def stopping(self) -> bool:
        """Whether the run stops. The process loop replaces this method."""
        return False

    def state(self, exact: bool) -> Tree:
        """What `restore` needs, or None. If `exact`, the restored worker must continue as if it had
        never stopped."""
        return None

    @property
    def restorable(self) -> bool:
        """Whether `state` can be exact now."""
        return True

    @property
    def settled(self) -> bool:
        """Whether its part of a checkpoint can be written yet."""
        return True

    @classmethod
    def is_saved(cls, config: CheckpointConfig) -> bool:
        """Whether every checkpoint has this worker's state with these settings."""
        return cls.in_every_checkpoint

    def save_segments(self, folder: Path) -> None:  # noqa: B027 (nothing to save is fine)
        """Puts what it keeps into an unfinished checkpoint, in files that checkpoints share. Called
        right after `state`."""

    def load_segments(self, folder: Path, parts: Sequence[CheckpointPart]) -> None:  # noqa: B027
        """Takes over the files that `save_segments` put into a checkpoint. Called right before
        `restore`, unless the checkpoint has no such files (any more)."""

    def weights(self) -> dict[str, dict[str, np.ndarray]]:
        """Weights for a checkpoint, by policy name."""
        return {}

    def restore(self, state: Tree, exact: bool) -> None:  # noqa: B027 (nothing to restore is fine)
        """Continues from `state`."""

    def close(self) -> None:  # noqa: B027 (nothing to close is fine)
        """Closes its ends of streams and frees what it holds. Called once, also after an error."""


class Waiter(Protocol):
    """What a process loop sleeps on: a wake pipe."""

    def wait(self, timeout_seconds: float) -> bool:
        """Returns when there may be something to do."""
        ...


class CurrentWorker:
    """The name of the worker that a process steps now, for error messages."""

    def __init__(self, name: str) -> None:
        self.name = name


class ProcessLoop:
    """Steps the workers of one process until they are done or told to stop."""

    def __init__(
        self,
        workers: Sequence[Worker],
        stats_table: StatsTable,
        wake_pipe: Waiter,
        on_checkpoint: Callable[[Worker, int], None],
        current: CurrentWorker,
    ) -> None:
        self.workers = list(workers)
        self._stats_table = stats_table
        self._wake_pipe = wake_pipe
        self._on_checkpoint = on_checkpoint
        self._current = current
        # From the stats table, so that a worker that died while a checkpoint was requested writes
        # its part when it is started again.
        self._checkpoint_seen = min(worker.stats.get("checkpoint") for worker in self.workers)
        self._idle: dict[str, tuple[Wait, int]] = {}
        self._done: set[str] = set()
        self.next = 0
        """Index of the worker that the next round begins with."""
        self._last_cpu_ns = time.process_time_ns()
        self._next_cpu_ns = 0
        self.leaving: Callable[[], bool] = lambda: False
        """Whether this process alone must finish, while the run continues."""
        self.waits_for_return = False
        """Whether workers wait when all other ends have left: ends on other hosts may come back."""
        for worker in self.workers:
            worker.stopping = self._stopping  # type: ignore[method-assign]

    @property
    def done(self) -> bool:
        """Whether no worker has anything left to do."""
        return len(self._done) == len(self.workers)

    def _stopping(self) -> bool:
        return self._stats_table.stop or self.leaving()

    def run(self) -> None:
        """The loop of a worker process."""
        for worker in self.workers:
            worker.stats.enter("running")
        while not self._stopping() and not self.done:
            wait = self.round()
            if wait is not None:
                for worker in self.workers:
                    worker.stats.enter("waiting")
                self._wake_pipe.wait(wait)
                for worker in self.workers:
                    worker.stats.enter("running")
            if self._checkpoint_requested():
                self.checkpoint()
        self.finish()

    def round(self) -> float | None:
        """Steps every worker once; returns None after any progress, else how long all may sleep.

        A step that is given up ends the round, and the next round begins with that worker. So an
        exact resume does the same steps in the same order as a run that never stopped.
        """
        progress = False
        timeout = 1.0
        first, self.next = self.next, 0
        idle = self._idle
        end = time.monotonic_ns()
        for index, worker in enumerate(self.workers):
            if index < first or worker.name in self._done:
                continue
            stats = worker.stats
            self._current.name = worker.name
            start = end
            waited = idle.pop(worker.name, None)
            if waited is not None:
                stats.add(waited[0].field, start - waited[1])
            result = worker.step()
            end = time.monotonic_ns()
            if result is PROGRESS:
                stats.worked(start, end)
                progress = True
                continue
            if result is GIVEN_UP:
                self.next = index
                progress = True
                break
            if result is DONE and not self.waits_for_return:
                self._done.add(worker.name)
                stats.enter("finished")
                progress = True
            else:
                wait = result if isinstance(result, Wait) else _WAIT_FOR_RETURN
                idle[worker.name] = (wait, start)
                timeout = min(timeout, wait.timeout_seconds)
            stats.beat()
        if not progress or end > self._next_cpu_ns:
            self._count_cpu(end)
        return None if progress else timeout

    def waiting(self) -> dict[str, str]:
        """What each idle worker waits for, for the message about a stall."""
        return {name: wait.name for name, (wait, _) in self._idle.items()}

    @property
    def waits_outside(self) -> bool:
        """Whether an idle worker waits for something from outside of the run."""
        return any(wait.field == "wait_other" for wait, _ in self._idle.values())

    def checkpoint(self) -> None:
        """Writes the workers' parts of the checkpoint that the stats table requests."""
        number = self._checkpoint_seen = self._stats_table.checkpoint
        for worker in self.workers:
            stats = worker.stats
            for counter in ("policy_version", "env_steps"):
                stats.set(f"saved_{counter}", stats.get(f"count_{counter}"))
            self._on_checkpoint(worker, number)
            stats.set("checkpoint", number)

    def finish(self) -> None:
        """Writes the workers' parts of the last checkpoint, if one is requested."""
        if self._checkpoint_requested():
            self.checkpoint()

    def _checkpoint_requested(self) -> bool:
        asked = self._stats_table.checkpoint != self._checkpoint_seen
        return asked and all(worker.settled for worker in self.workers)

    def _count_cpu(self, now_ns: int) -> None:
        # The process's time is counted once, for its first worker: the others share the process.
        cpu_ns = time.process_time_ns()
        self.workers[0].stats.add("cpu_ns", cpu_ns - self._last_cpu_ns)
        self._last_cpu_ns = cpu_ns
        self._next_cpu_ns = now_ns + CPU_EVERY_NS
