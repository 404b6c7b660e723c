"""The loop that every worker runs in, written once.

A worker's `step()` never blocks: it makes progress, or names what it waits for. `Host` steps the
workers of one process in a fixed order, and sleeps on the process's bell when none of them can go
on. All workers of an experiment in one host are the `serial` launcher; an actor and a policy in one
host are the `inline` layout.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Protocol

import numpy as np

from srl.data.tree import Tree
from srl.services.board import WAITS, Board, BoardRow
from srl.workers.wiring import Context


class Progress(Enum):
    """A step did something, will never do anything again, or was given up because the run stops."""

    MADE = "made"
    DONE = "done"
    GIVEN_UP = "given up"


CPU_EVERY_NS = 10_000_000
"""How often the process's time is counted while there is work: asking costs as much as a copy."""
MADE, DONE, GIVEN_UP = Progress.MADE, Progress.DONE, Progress.GIVEN_UP


class Wait:
    """A step could do nothing until the named end has something for it, or until the timeout."""

    __slots__ = ("field", "name", "timeout_seconds")

    def __init__(self, name: str, timeout_seconds: float = 1.0) -> None:
        self.name = name
        self.field = f"wait_{name if name in WAITS else 'other'}"
        self.timeout_seconds = timeout_seconds


_RETURN = Wait("workers", 0.2)
"""For those who are gone to come back."""


class Worker(ABC):
    """One part of the dataflow."""

    name: str
    """Unique in the experiment: "actor/3"."""
    row: BoardRow
    """Its heartbeat, timers and counters."""
    in_every_checkpoint = False
    """Whether every checkpoint has this worker's state, or only exact ones (of the serial
    launcher)."""

    @classmethod
    @abstractmethod
    def build(cls, context: Context) -> Worker:
        """Makes the worker from its part of the plan, in the process it will run in."""

    @abstractmethod
    def step(self) -> Progress | Wait:
        """Does one piece of work and never blocks. Long work looks at `stopping` now and then."""

    def stopping(self) -> bool:
        """Whether the run stops: a host puts the board's answer here."""
        return False

    def state(self, exact: bool) -> Tree:
        """What `restore` needs; if `exact`, to go on as if nothing had happened. None: nothing to
        keep."""
        return None

    @property
    def restorable(self) -> bool:
        """Whether an exact `state` can be had now."""
        return True

    @property
    def settled(self) -> bool:
        """Whether its part of a checkpoint can be written yet."""
        return True

    def weights(self) -> dict[str, dict[str, np.ndarray]]:
        """Weights that belong into a checkpoint, by policy name."""
        return {}

    def restore(self, state: Tree, exact: bool) -> None:  # noqa: B027 (nothing to restore is fine)
        """Goes on from `state`."""

    def close(self) -> None:  # noqa: B027 (nothing to close is fine)
        """Closes the ends of its streams and frees what it holds. Called once, also
        after an error."""


class Waiter(Protocol):
    """What a host sleeps on."""

    def wait(self, timeout_seconds: float) -> bool:
        """Returns when there may be something to do."""
        ...


class Current:
    """Which worker of a process is at work, so that an error can name it."""

    def __init__(self, name: str) -> None:
        self.name = name


class Host:
    """Steps the workers of one process until they are done or told to stop."""

    def __init__(
        self,
        workers: Sequence[Worker],
        board: Board,
        bell: Waiter,
        on_checkpoint: Callable[[Worker, int], None],
        current: Current,
    ) -> None:
        self.workers = list(workers)
        self._board = board
        self._bell = bell
        self._on_checkpoint = on_checkpoint
        self._current = current
        # From the board's rows, so that a worker that died while a checkpoint was asked for writes
        # its part when it is started again.
        self._checkpoint_seen = min(worker.row.get("checkpoint") for worker in self.workers)
        self._idle: dict[str, tuple[Wait, int]] = {}
        self._done: set[str] = set()
        self.next = 0
        """The worker that the next round begins with."""
        self._last_cpu_ns = time.process_time_ns()
        self._next_cpu_ns = 0
        self.leaving: Callable[[], bool] = lambda: False
        """Whether this process alone is to finish, while the run goes on."""
        self.stays = False
        """Whether workers that find everyone gone wait for them: on other hosts they come back."""
        for worker in self.workers:
            worker.stopping = self._stopping  # type: ignore[method-assign]

    @property
    def done(self) -> bool:
        """No worker has anything left to do."""
        return len(self._done) == len(self.workers)

    def _stopping(self) -> bool:
        return self._board.stop or self.leaving()

    def run(self) -> None:
        """The loop of a worker process."""
        for worker in self.workers:
            worker.row.enter("running")
        while not self._stopping() and not self.done:
            wait = self.round()
            if wait is not None:
                for worker in self.workers:
                    worker.row.enter("waiting")
                self._bell.wait(wait)
                for worker in self.workers:
                    worker.row.enter("running")
            if self._checkpoint_wanted():
                self.checkpoint()
        self.finish()

    def round(self) -> float | None:
        """Steps every worker once; returns None if any got on, else how long all may sleep.

        A step that is given up ends the round, and the next one begins with it: an exact resume
        does the same steps in the same order as an unbroken run.
        """
        progress = False
        timeout = 1.0
        first, self.next = self.next, 0
        idle = self._idle
        end = time.monotonic_ns()
        for index, worker in enumerate(self.workers):
            if index < first or worker.name in self._done:
                continue
            row = worker.row
            self._current.name = worker.name
            start = end
            waited = idle.pop(worker.name, None)
            if waited is not None:
                row.add(waited[0].field, start - waited[1])
            result = worker.step()
            end = time.monotonic_ns()
            if result is MADE:
                row.worked(start, end)
                progress = True
                continue
            if result is GIVEN_UP:
                self.next = index
                progress = True
                break
            if result is DONE and not self.stays:
                self._done.add(worker.name)
                row.enter("finished")
                progress = True
            else:
                wait = result if isinstance(result, Wait) else _RETURN
                idle[worker.name] = (wait, start)
                timeout = min(timeout, wait.timeout_seconds)
            row.beat()
        if not progress or end > self._next_cpu_ns:
            self._count_cpu(end)
        return None if progress else timeout

    def waiting(self) -> dict[str, str]:
        """What each idle worker waits for; for the message when nothing gets on."""
        return {name: wait.name for name, (wait, _) in self._idle.items()}

    def checkpoint(self) -> None:
        """Writes the workers' parts of the checkpoint that the board asks for."""
        number = self._checkpoint_seen = self._board.checkpoint
        for worker in self.workers:
            row = worker.row
            for counter in ("policy_version", "env_steps"):
                row.set(f"saved_{counter}", row.get(f"count_{counter}"))
            self._on_checkpoint(worker, number)
            row.set("checkpoint", number)

    def finish(self) -> None:
        """Writes the last checkpoint's parts, if one is asked for."""
        if self._checkpoint_wanted():
            self.checkpoint()

    def _checkpoint_wanted(self) -> bool:
        asked = self._board.checkpoint != self._checkpoint_seen
        return asked and all(worker.settled for worker in self.workers)

    def _count_cpu(self, now_ns: int) -> None:
        # The process's time is counted once, for its first worker: the others share the process.
        cpu_ns = time.process_time_ns()
        self.workers[0].row.add("cpu_ns", cpu_ns - self._last_cpu_ns)
        self._last_cpu_ns = cpu_ns
        self._next_cpu_ns = now_ns + CPU_EVERY_NS
