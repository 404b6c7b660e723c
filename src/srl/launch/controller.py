"""The controller: watches over a run, whatever launches it.

It takes in what workers report, decides when the run is over, asks for checkpoints, shows progress,
and writes the summary. It never touches the data that flows between workers.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from srl.arena.arena import Arena
from srl.envs.protocol import EnvConfig
from srl.errors import EnvError, SrlError
from srl.experiment import Experiment
from srl.launch.pace import Pace
from srl.services.board import Board
from srl.services.bottleneck import Diagnosis, Machine, WorkerTimes, diagnose, since
from srl.services.checkpoints import (
    Checkpoint,
    CheckpointStore,
    Manifest,
    read_part,
    weights_part,
    write_part,
)
from srl.services.console import Display, Progress
from srl.services.metrics import Collector
from srl.services.summary import Summary, summarise, write_summary
from srl.services.until import parse_until
from srl.streams.sample_books import Ledger, ledger
from srl.workers.wiring import Plan

log = logging.getLogger("srl")

COLLECTOR_PART = "collector"
ENV_CALLS = frozenset(("make", "reset", "step"))
_LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Ending:
    """Why a run is over."""

    status: Literal["finished", "stopped", "failed"]
    reason: str


class Controller:
    """One run, from the outside."""

    def __init__(
        self,
        *,
        experiment: Experiment,
        plan: Plan,
        run_dir: Path,
        arena: Arena,
        store: CheckpointStore,
        fixed_weights: dict[str, dict[str, np.ndarray]],
        cores: int,
        quiet: bool,
        begun: float,
    ) -> None:
        self.experiment = experiment
        self.plan = plan
        self.run_dir = run_dir
        self.store = store
        self._arena = arena
        self.board = Board(arena, tuple(worker.name for worker in plan.workers))
        self.collector = Collector(run_dir, experiment.logging)
        self.ending: Ending | None = None
        self.suspended: set[str] = set()
        """Workers whose process the system has stopped: no call of theirs takes too long."""
        self.tolerates: Callable[[str, str], bool] = lambda worker, text: False
        """Asked about a worker whose environment takes too long: whether the run can go on."""
        self.books: Callable[[], dict[str, Ledger]] = self._books_here
        """Where the fragments of every sample stream went."""
        self._until = parse_until(experiment.until) if experiment.until else None
        self._display = Display(
            experiment.name,
            Progress(experiment.steps or None, experiment.seconds or None, self._until),
            quiet=quiet,
        )
        self._fixed_weights = fixed_weights
        self._cores = cores
        # Of trainers that learn together the first one speaks for all.
        self._trainers = [w for w in plan.workers if w.trains and w.index == 0]
        self._begun = begun
        self._started = time.monotonic()
        self._steps_before = 0
        self._pace = Pace(_POLL_SECONDS)
        self._next_checkpoint = time.monotonic() + experiment.checkpoint.every_seconds
        self._next_check = 0.0
        self._diagnosis: Diagnosis | None = None
        self._first_update: float | None = None
        """Seconds from the beginning to the end of the first update."""
        self._steady: tuple[float, list[WorkerTimes], tuple[int, int] | None] | None = None
        """When the first batch had been learned from, and the times up to then."""
        self._watched: tuple[float, list[WorkerTimes]] | None = None
        """When this run was first looked at, and the times up to then: those before a resume."""
        self.checkpoint_number = 0
        self.last_checkpoint: Checkpoint | None = None

    # -- progress --------------------------------------------------------------------------------

    @property
    def seconds(self) -> float:
        """Seconds of training, those before a resume included."""
        return self.collector.seconds(time.monotonic())

    @property
    def env_steps(self) -> int:
        """Environment steps consumed by the trainer that is furthest behind."""
        rows = [self.board.rows[worker.name] for worker in self._trainers]
        return min((row.get("count_env_steps") for row in rows), default=0)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Goes on counting where a checkpoint left off."""
        self._steps_before = checkpoint.manifest.env_steps
        self.collector.restore(read_part(checkpoint, COLLECTOR_PART))
        self.last_checkpoint = checkpoint

    def poll(self) -> None:
        """Looks at goals, metrics and the screen; cheap enough to call at every turn of a loop."""
        self._check_steps()
        self._pace.step(self._look)

    def _look(self) -> None:
        now = time.monotonic()
        if self._watched is None:
            self._watched = (now, self.times())
        self._note_first_update(now)
        if self._steady is None and self._first_update is not None:
            self._steady = (now, self.times(), _cores_clock())
        self._check_goals()
        self._check_timeouts(now)
        self._show_notes()
        self.collector.observe(self.times())
        self.collector.tick(now)
        if self._display.due(now):
            self._diagnosis = self.diagnose()
            self._display.update(self.collector.snapshot(), self._diagnosis.text, now)

    def _show_notes(self) -> None:
        while self.collector.notes:
            note = self.collector.notes.popleft()
            self._display.note(note)
            log.log(_LEVELS[note.level], "%s: %s", note.worker, note.text)

    def _check_steps(self) -> None:
        limit = self.experiment.steps
        if self.ending is None and limit and self.env_steps >= limit:
            self.ending = Ending("finished", f"trained on {self.env_steps:,} steps")

    def _check_goals(self) -> None:
        if self.ending is not None:
            return
        if self.experiment.seconds and self.seconds >= self.experiment.seconds:
            self.ending = Ending("finished", f"trained for {self.seconds:.0f} s")
        self.check_until()

    def check_until(self) -> None:
        """Ends the run if its condition holds."""
        if self.ending is None and self._until is not None:
            snapshot = self.collector.snapshot()
            if self._until.reached(snapshot):
                self.ending = Ending("finished", f"reached {self.experiment.until}")

    def _check_timeouts(self, now: float) -> None:
        if now < self._next_check:
            return
        self._next_check = now + 0.5
        found = self._find_overdue(None)
        if found is not None and not self.tolerates(*found):
            raise EnvError(found[1])

    def overdue_call(self, patience: float | None = None) -> str:
        """The environment call that takes longer than its limit (or `patience`), in words."""
        found = self._find_overdue(patience)
        return found[1] if found is not None else ""

    def _find_overdue(self, patience: float | None) -> tuple[str, str] | None:
        config: EnvConfig = self.experiment.env
        now = time.monotonic_ns()
        for name, row in self.board.rows.items():
            activity = row.activity
            if activity not in ENV_CALLS or name in self.suspended:
                continue
            limit = config.step_timeout_seconds
            setting = "env.step_timeout_seconds"
            if activity != "step":
                limit, setting = config.reset_timeout_seconds, "env.reset_timeout_seconds"
            seconds = (now - row.get("since_ns")) / 1e9
            if seconds > (limit if patience is None else min(limit, patience)):
                index = row.get("env_index")
                which = f"environment {index}" if index >= 0 else "its environments"
                return name, (
                    f"{name}: {which} has been in {activity}() for {seconds:.0f} s; at most "
                    f"{limit:g} s were expected. Find out why it hangs, or raise it with "
                    f"--set {setting}=..."
                )
        return None

    # -- where the time went -----------------------------------------------------------------------

    def times(self) -> list[WorkerTimes]:
        """What the board says of every worker."""
        found = []
        for worker in self.plan.workers:
            row = self.board.rows[worker.name]
            found.append(
                WorkerTimes(
                    kind="trainer" if worker.trains else worker.group,
                    name=worker.name,
                    process=worker.process,
                    busy_seconds=row.get("busy_ns") / 1e9,
                    waits={name: ns / 1e9 for name, ns in row.waits().items()},
                    cpu_seconds=row.get("cpu_ns") / 1e9,
                    counters={**row.counters()},
                )
            )
        return found

    def _note_first_update(self, now: float) -> None:
        if self._first_update is None and self.env_steps > self._steps_before:
            self._first_update = now - self._begun
            log.info("first update after %.1f s", self._first_update)

    def diagnose(self) -> Diagnosis:
        """Why the run is not faster, start-up left out: everyone waits for everyone then."""
        if self._first_update is None:
            return Diagnosis(text="too short to say: no update was done", part="start-up")
        begun, before, clock = self._steady or (self._started, [], None)
        machine = Machine(self._cores, time.monotonic() - begun, _cores_used(clock))
        return diagnose(since(self.times(), before), machine, self._settings())

    def _settings(self) -> dict[str, object]:
        experiment = self.experiment
        slots = {stream.spec.slots * stream.parts for stream in self.plan.samples.values()}
        algorithm = next(iter(self.plan.policies.values())).algorithm
        return {
            "layout": experiment.layout,
            "actor.envs": experiment.actor.envs,
            "actor.count": experiment.actor.count,
            "actor.groups": experiment.actor.groups,
            "inference.count": experiment.inference.count,
            "trainer.threads": experiment.trainer.threads,
            "sample.slots": max(slots, default=0),
            "algorithm.max_policy_age": algorithm.get("max_policy_age", 1),
        }

    # -- checkpoints -------------------------------------------------------------------------------

    def checkpoint_due(self) -> bool:
        """Whether it is time for the next checkpoint."""
        return time.monotonic() >= self._next_checkpoint

    def begin_checkpoint(self) -> tuple[int, Path]:
        """Opens the next checkpoint's folder."""
        self._next_checkpoint = time.monotonic() + self.experiment.checkpoint.every_seconds
        self.checkpoint_number = max(self.store.next_number(), self.checkpoint_number + 1)
        return self.checkpoint_number, self.store.begin(self.checkpoint_number)

    def commit_checkpoint(self, number: int, folder: Path, *, exact: bool) -> Checkpoint:
        """Adds what the controller knows, and makes the checkpoint whole."""
        for policy, weights in self._fixed_weights.items():
            write_part(folder, weights_part(policy), dict(weights))
        now = time.monotonic()
        write_part(folder, COLLECTOR_PART, self.collector.state(now))
        snapshot = self.collector.snapshot()
        rows = {worker.trains[0]: self.board.rows[worker.name] for worker in self._trainers}
        manifest = Manifest(
            number=number,
            # As they were when each trainer wrote its part; it may have gone on since.
            policy_versions={name: row.get("saved_policy_version") for name, row in rows.items()},
            env_steps=min((row.get("saved_env_steps") for row in rows.values()), default=0),
            episodes=int(snapshot["episodes"]),
            score=self.collector.score,
            seconds=self.collector.seconds(now),
            exact=exact,
        )
        self.last_checkpoint = self.store.commit(folder, manifest)
        return self.last_checkpoint

    # -- the end -----------------------------------------------------------------------------------

    def finish(self, ending: Ending) -> Summary:
        """Writes the last metrics and the summary."""
        self._show_notes()
        self._display.close()
        now = time.monotonic()
        self._note_first_update(now)
        self.collector.observe(self.times())
        problem: SrlError | None = None
        try:
            self.collector.tick(now, force=True)
            self.collector.close()
        except SrlError as error:
            # The summary is smaller, and may find room where the metrics did not.
            problem = error
            if ending.status != "failed":
                ending = Ending("failed", str(error))
        scored = any(found.manifest.score is not None for found in self.store.list())
        best = self.store.find("best").number if scored else None
        begun, before = self._watched or (self._started, [])
        summary = summarise(
            ending.status,
            {**self.collector.snapshot(), **self._accounts()},
            since(self.times(), before),
            self.diagnose(),
            observed_seconds=now - begun,
            reason=ending.reason if ending.status != "failed" else "",
            error=ending.reason if ending.status == "failed" else None,
            name=self.experiment.name,
            seed=self.experiment.seed,
            seconds_to_first_update=self._first_update,
            best_checkpoint=best,
        )
        write_summary(self.run_dir, summary)
        if problem is not None:
            raise problem
        return summary

    def _books_here(self) -> dict[str, Ledger]:
        streams = self.plan.samples.items()
        return {name: ledger(stream.spec, self._arena) for name, stream in streams}

    def _accounts(self) -> dict[str, float]:
        """Where every fragment went, and what was lost."""
        books: dict[str, float] = {}
        for name, kept in self.books().items():
            at = f"samples.{name}"
            books |= {
                f"{at}.produced": kept.produced,
                f"{at}.consumed": kept.consumed,
                f"{at}.in_flight": kept.in_flight,
            }
            books |= {f"{at}.dropped.{reason}": n for reason, n in kept.dropped.items()}
        rows = self.board.rows.values()
        books["env_failures"] = sum(row.get("count_env_failures") for row in rows)
        for worker in self._trainers:
            lost = self.board.rows[worker.name].get("count_lost_updates")
            books[f"updates.{worker.trains[0]}.lost"] = lost
        return books

    def close(self) -> None:
        """Gives the terminal back."""
        self._display.close()


def _cores_clock() -> tuple[int, int] | None:
    """(idle, all) ticks of all cores since the system started; None where it does not say."""
    try:
        with open("/proc/stat") as file:
            ticks = [int(number) for number in file.readline().split()[1:9]]
    except (OSError, ValueError):
        return None
    return ticks[3] + ticks[4], sum(ticks)


def _cores_used(before: tuple[int, int] | None) -> float:
    """Share of all cores' time that was in use since `before`."""
    now = _cores_clock()
    if before is None or now is None or now[1] <= before[1]:
        return 0.0
    return 1.0 - (now[0] - before[0]) / (now[1] - before[1])
