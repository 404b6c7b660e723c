"""The controller watches one run; it is the same for every layout.

The controller collects the reports of workers, decides when the run is over, asks for checkpoints,
shows progress, and writes the summary. It never touches the data that flows between workers.
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
from srl.errors import EnvError, RunError, SrlError
from srl.experiment import Experiment
from srl.launch.plan.build import metric_names
from srl.launch.run.accounting import final_counts
from srl.launch.run.callbacks import Callbacks
from srl.launch.run.goals import COLLECTOR_PART, Goals
from srl.launch.run.machine_clock import cores_clock, cores_used
from srl.launch.run.stall import no_update_text
from srl.launch.run.throttle import Throttle
from srl.plan import Plan
from srl.reporting.bottleneck import Diagnosis, Machine, diagnose
from srl.reporting.console import Display, RunProgress
from srl.reporting.sinks.supervisor import Sinks
from srl.reporting.summary import Summary, summarise, write_summary
from srl.services.checkpoints import (
    Checkpoint,
    CheckpointStore,
    Manifest,
    read_part,
    weights_part,
    write_part,
)
from srl.services.messages import Note
from srl.services.metrics import Collector
from srl.services.worker_stats import StatsTable
from srl.services.worker_times import WorkerTimes, since
from srl.streams.sample_accounting import StreamAccount, account

log = logging.getLogger("srl")

ENV_CALLS = frozenset(("make", "reset", "step"))
_LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
POLL_SECONDS = 0.05
"""Longest useful time between two calls of `Controller.poll`."""


@dataclass(frozen=True)
class Ending:
    """Why a run is over."""

    status: Literal["finished", "stopped", "failed"]
    reason: str


class Controller:
    """Watches one run from outside its workers."""

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
        callbacks: Callbacks | None = None,
    ) -> None:
        self.experiment = experiment
        self.plan = plan
        self.run_dir = run_dir
        self.store = store
        self.arena = arena
        self.stats_table = StatsTable(arena, tuple(worker.name for worker in plan.workers))
        self.names = metric_names(experiment.policies, plan.env_spec, experiment.actors)
        self.collector = Collector(run_dir, experiment.logging, self.names)
        self.ending: Ending | None = None
        self.suspended: set[str] = set()
        """Workers whose process is stopped or cannot be heard; their environment calls never time
        out."""
        self.tolerates: Callable[[str, str], bool] = lambda worker, text: False
        """Whether the run can go on although an environment call of this worker takes too long."""
        self.accounts: Callable[[], dict[str, StreamAccount]] = self._local_accounts
        """Returns the accounts of every sample stream."""
        self._sinks = Sinks(run_dir, experiment.logging, self._tell)
        self._callbacks = callbacks or Callbacks(())
        self.collector.hear = self._callbacks.hear
        self._goals = Goals(experiment, self.names)
        limits = (experiment.steps or None, experiment.seconds or None, self._goals.until)
        self._display = Display(experiment.name, RunProgress(*limits), self.names, quiet=quiet)
        self._fixed_weights = fixed_weights
        self._cores = cores
        # Of several trainers of a policy only the first one is read.
        self._trainers = [w for w in plan.workers if w.trains and w.index == 0]
        self._begun = begun
        self._started = time.monotonic()
        self._versions_before: dict[str, int] = {}
        """The version of each policy in the checkpoint that the run was resumed from."""
        self._seconds_before = 0.0
        self._throttle = Throttle(POLL_SECONDS)
        self._next_checkpoint = time.monotonic() + experiment.checkpoint.every_seconds
        self._next_check = 0.0
        self._diagnosis: Diagnosis | None = None
        self._first_update: float | None = None
        """Seconds from the start of the command to the end of the first update."""
        self._after_first_update: tuple[float, list[WorkerTimes], tuple[int, int] | None] | None = (
            None
        )
        """Set after the first update: the time, the worker times, and the clock of all cores."""
        self._first_look: tuple[float, list[WorkerTimes]] | None = None
        """Set at the first look: the time, and the worker times, which are from before a resume."""
        self.checkpoint_number = 0
        self.last_checkpoint: Checkpoint | None = None

    # -- progress --------------------------------------------------------------------------------

    @property
    def seconds(self) -> float:
        """Seconds of training, including those before a resume."""
        return self.collector.seconds(time.monotonic())

    @property
    def env_steps(self) -> int:
        """Environment steps consumed by the trainer that has consumed the fewest."""
        rows = [self.stats_table.rows[worker.name] for worker in self._trainers]
        return min((row.get("count_env_steps") for row in rows), default=0)

    @property
    def _has_learned(self) -> bool:
        """Whether any policy was updated since the run was started or resumed."""
        return any(
            self.stats_table.rows[worker.name].get("count_policy_version")
            > self._versions_before.get(worker.trains[0], 0)
            for worker in self._trainers
        )

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continues the counts of a checkpoint."""
        self._versions_before = checkpoint.manifest.policy_versions
        self._seconds_before = checkpoint.manifest.seconds
        self.collector.restore(read_part(checkpoint, COLLECTOR_PART))
        self.last_checkpoint = checkpoint

    def poll(self) -> None:
        """Checks goals, metrics and the display; cheap enough for every iteration of a loop."""
        self._check_steps()
        if self.collector.has_news:
            self._look()
        else:
            self._throttle.step(self._look)
        self._callbacks.call()

    def _look(self) -> None:
        now = time.monotonic()
        if self._first_look is None:
            self._first_look = (now, self.times())
        self._note_first_update(now)
        if self._after_first_update is None and self._first_update is not None:
            self._after_first_update = (now, self.times(), cores_clock())
        self.check_seconds()
        self.check_until()
        self._check_timeouts(now)
        self._sinks.look()
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

    def _tell(self, level: Literal["info", "warning", "error"], who: str, text: str) -> None:
        self.collector.add(Note(who, level, text))

    def announce(self, text: str) -> None:
        """Shows a note to the user before the run begins."""
        self._display.note(Note("controller", "info", text))

    def _check_steps(self) -> None:
        if self._goals.steps:
            self._end(self._goals.by_steps(self.env_steps))

    def check_seconds(self) -> bool:
        """Ends the run if its time is over. Returns whether the run is over, for any reason."""
        if self._goals.seconds:
            self._end(self._goals.by_seconds(self.seconds))
        return self.ending is not None

    def check_until(self) -> None:
        """Ends the run if its `until` condition holds."""
        if self.ending is None and self._goals.until is not None:
            self._end(self._goals.by_until(self.collector.snapshot()))

    def _end(self, reason: str) -> None:
        if reason and self.ending is None:
            self.ending = Ending("finished", reason)

    def check_learned(self, ending: Ending) -> Ending:
        """Returns `ending`; raises RunError if the run finished without an update.

        Only updates since the start or the resume count. A run whose `until` condition holds needs
        no update.
        """
        until = self._goals.until is not None and self._goals.by_until(self.collector.snapshot())
        if ending.status == "finished" and self._trainers and not self._has_learned and not until:
            seconds = self.seconds - self._seconds_before
            raise RunError(no_update_text(self.plan, self.stats_table, seconds))
        return ending

    def _check_timeouts(self, now: float) -> None:
        if now < self._next_check:
            return
        self._next_check = now + 0.5
        found = self._find_overdue(None)
        if found is not None and not self.tolerates(*found):
            raise EnvError(found[1])

    def overdue_call(self, patience: float | None = None) -> str:
        """Text about an environment call that exceeds its limit or `patience` seconds; empty if
        there is none."""
        found = self._find_overdue(patience)
        return found[1] if found is not None else ""

    def _find_overdue(self, patience: float | None) -> tuple[str, str] | None:
        config: EnvConfig = self.experiment.env
        now = time.monotonic_ns()
        for name, row in self.stats_table.rows.items():
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
                    f"{limit:g} s were expected. Find out why it hangs, or raise the limit with "
                    f"--set {setting}=..."
                )
        return None

    # -- where the time went -----------------------------------------------------------------------

    def times(self) -> list[WorkerTimes]:
        """Times and counters of every worker, read from the stats table."""
        found = []
        for worker in self.plan.workers:
            row = self.stats_table.rows[worker.name]
            found.append(
                WorkerTimes(
                    kind=self.plan.kind_of(worker),
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
        if self._first_update is None and self._has_learned:
            self._first_update = now - self._begun
            log.info("first update after %.1f s", self._first_update)

    def diagnose(self) -> Diagnosis:
        """Why the run is not faster. The start-up is left out: then all workers wait for others."""
        if self._first_update is None:
            return Diagnosis(text="too short to say: no update was done", part="start-up")
        begun, before, clock = self._after_first_update or (self._started, [], None)
        machine = Machine(self._cores, time.monotonic() - begun, cores_used(clock))
        return diagnose(since(self.times(), before), machine, self._settings())

    def _settings(self) -> dict[str, object]:
        experiment = self.experiment
        slots = {stream.spec.slots * stream.parts for stream in self.plan.samples.values()}
        policy = next(iter(self.plan.policies.values()))
        named = ["replay_beside_trainer"]
        named += ["max_policy_age"] if policy.handles_stale_samples else []
        return {
            "layout": experiment.layout,
            "actor.envs": experiment.actor.envs,
            "actor.count": experiment.actor.count,
            "actor.groups": experiment.actor.groups,
            "inference.count": experiment.inference.count,
            "trainer.threads": experiment.trainer.threads,
            "sample.slots": max(slots, default=0),
            **{f"algorithm.{k}": policy.algorithm[k] for k in named if k in policy.algorithm},
        }

    # -- checkpoints -------------------------------------------------------------------------------

    def checkpoint_due(self) -> bool:
        """Whether it is time for the next checkpoint."""
        return time.monotonic() >= self._next_checkpoint

    def begin_checkpoint(self) -> tuple[int, Path]:
        """Makes the folder of the next checkpoint; returns its number and its folder."""
        self._next_checkpoint = time.monotonic() + self.experiment.checkpoint.every_seconds
        self.checkpoint_number = max(self.store.next_number(), self.checkpoint_number + 1)
        return self.checkpoint_number, self.store.begin(self.checkpoint_number)

    def commit_checkpoint(self, number: int, folder: Path, *, exact: bool) -> Checkpoint:
        """Adds the controller's parts to a checkpoint, and commits it."""
        for policy, weights in self._fixed_weights.items():
            write_part(folder, weights_part(policy), dict(weights))
        now = time.monotonic()
        write_part(folder, COLLECTOR_PART, self.collector.state(now))
        snapshot = self.collector.snapshot()
        rows = {worker.trains[0]: self.stats_table.rows[worker.name] for worker in self._trainers}
        manifest = Manifest(
            number=number,
            # The versions at which the trainers wrote their parts; they may be further by now.
            policy_versions={name: row.get("saved_policy_version") for name, row in rows.items()},
            env_steps=min((row.get("saved_env_steps") for row in rows.values()), default=0),
            episodes=int(snapshot["episodes"]),
            scores=dict(self.collector.scores),
            seconds=self.collector.seconds(now),
            exact=exact,
        )
        self.last_checkpoint = self.store.commit(folder, manifest)
        self._callbacks.hear(self.last_checkpoint)
        return self.last_checkpoint

    # -- the end -----------------------------------------------------------------------------------

    def finish(self, ending: Ending) -> Summary:
        """Writes the last metrics and the summary."""
        # First: the summary may fail, and a note may say why.
        self._show_notes()
        now = time.monotonic()
        self._note_first_update(now)
        self.collector.observe(self.times())
        self._count_consumed()
        problem = self._write_last_metrics(now)
        if problem is not None and ending.status != "failed":
            ending = Ending("failed", str(problem))
        snapshot = self.collector.snapshot()
        begun, before = self._first_look or (self._started, [])
        summary = summarise(
            ending.status,
            {**snapshot, **final_counts(self.accounts(), self.stats_table, self._trainers)},
            self.names.results(snapshot, self.store.best()),
            since(self.times(), before),
            self.diagnose(),
            observed_seconds=now - begun,
            reason=ending.reason if ending.status != "failed" else "",
            error=ending.reason if ending.status == "failed" else None,
            name=self.experiment.name,
            seed=self.experiment.seed,
            seconds_to_first_update=self._first_update,
        )
        write_summary(self.run_dir, summary)
        problem = problem or self._end_callbacks(summary)
        self._sinks.finish(ending.status if problem is None else "failed")
        self._show_notes()
        self._display.close()
        if problem is not None:
            raise problem
        return summary

    def _count_consumed(self) -> None:
        """Counts what trainers have learned from by their rows: a process that was killed, or whose
        socket was full, has not sent its last messages."""
        for worker in self._trainers:
            row = self.stats_table.rows[worker.name]
            counts = ("env_steps", "agent_steps", "policy_version")
            if row.get("count_policy_version"):
                known = {name: row.get(f"count_{name}") for name in counts}
                self.collector.count_consumed(worker.trains[0], known)

    def _write_last_metrics(self, now: float) -> SrlError | None:
        """Writes the last line of metrics; returns the error if that or a callback fails."""
        try:
            self.collector.tick(now, force=True)
            self.collector.close()
            self._callbacks.call()
        except SrlError as error:
            # The summary is smaller: a full disk may have room for it and not for the metrics.
            return error
        return None

    def _end_callbacks(self, summary: Summary) -> SrlError | None:
        try:
            self._callbacks.end(summary)
        except SrlError as error:
            return error
        return None

    def _local_accounts(self) -> dict[str, StreamAccount]:
        streams = self.plan.samples.items()
        return {name: account(stream.spec, self.arena) for name, stream in streams}

    def close(self) -> None:
        """Ends sinks that still run, and closes the display, which releases the terminal."""
        self._sinks.close()
        self._display.close()
