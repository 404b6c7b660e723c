"""The loop of a sweep: it starts trials, watches their metrics, prunes and scores them."""

from __future__ import annotations

import fcntl
import os
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from srl.errors import ConfigError, RunError, SrlError
from srl.launch.plan.build import metric_names
from srl.reporting.summary import read_summary
from srl.run import is_for_slurm
from srl.services.metrics import MAX_LINE_BYTES, METRICS_FILE, read_metrics
from srl.services.until import metric_key
from srl.sweep.definition import SweepDefinition
from srl.sweep.search_space import Dimension, check_search, described, parse_search, suggest
from srl.sweep.study import JOURNAL_FILE, SLICES, open_study, unfinished
from srl.sweep.trial_runs import LocalRun, SlurmRun, TrialRun, core_sets, is_training

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import Trial

TURN_SECONDS = 0.2
LOCK_FILE = ".sweep.lock"
JOB = "job"
"""Prefix of a trial's attribute with the job of one of its seeds."""
_HOPELESS = 3
"""A sweep whose first trials all fail ends after this many."""
Say = Callable[[str], None]


class Sweep:
    """One sweep in its folder."""

    def __init__(self, folder: Path, definition: SweepDefinition, parallel: int, say: Say) -> None:
        if parallel < 1:
            raise ConfigError(f"--parallel: expected at least 1, got {parallel}.")
        self.folder = folder
        self.definition = definition
        self.space: list[Dimension] = parse_search(definition.search)
        self.say = say
        experiment = definition.train.experiment({}, definition.seed)
        check_search(experiment, self.space)
        metric, _, whose = definition.metric.partition("/")
        names = metric_names(experiment.policies, None)
        self.key = metric_key(metric, whose, names, "--metric")
        self.by_slurm = is_for_slurm(experiment)
        limits = (("env_steps", experiment.steps), ("seconds", experiment.seconds))
        self.limit = next(((key, float(most)) for key, most in limits if most), None)
        self._free_cores = core_sets(parallel)
        self._parallel = parallel
        self._active: list[ActiveTrial] = []
        self._failures = 0

    def run(self) -> Study:
        """Runs all trials that are left; after an interruption, its runs have ended."""
        with self._locked():
            # A sweep that was killed may have left Optuna's lock; this one holds the folder's.
            (self.folder / f"{JOURNAL_FILE}.lock").unlink(missing_ok=True)
            self.study = open_study(self.folder, self.definition)
            begun = unfinished(self.study)
            if self.study.trials:
                done = len(self.study.trials) - len(begun)
                self.say(f"going on: {done} trials are done, {len(begun)} were interrupted")
            try:
                while self._fill(begun) or self._active:
                    for trial in list(self._active):
                        self._step(trial)
                    time.sleep(TURN_SECONDS)
            except BaseException:
                self._end_runs()
                raise
        return self.study

    def _fill(self, begun: list[Trial]) -> bool:
        """Starts as many trials as may run at once. Returns whether any are left."""
        while len(self._active) < self._parallel:
            if begun:
                trial = begun.pop(0)
            elif len(self.study.get_trials(deepcopy=False)) < self.definition.trials:
                trial = self.study.ask()
            else:
                return False
            self._active.append(ActiveTrial(self, trial, self._free_cores.pop()))
        return True

    def _step(self, trial: ActiveTrial) -> None:
        from optuna.trial import TrialState

        number = trial.trial.number
        try:
            over = trial.step()
        except SrlError as error:
            self.study.tell(number, state=TrialState.FAIL)
            self.say(f"trial {number}: failed: {str(error).splitlines()[0]}")
            self._finish(trial)
            self._failures += 1
            if self._failures >= _HOPELESS and not self._any_scored():
                raise RunError(
                    f"the first {self._failures} trials failed, the last one with: {error}"
                ) from None
            return
        if not over:
            return
        if trial.is_pruned:
            self.study.tell(number, state=TrialState.PRUNED)
            self.say(f"trial {number}: pruned  {described(trial.settings)}")
        else:
            score = sum(trial.scores) / len(trial.scores)
            self.study.tell(number, score)
            best = self.study.best_trial
            self.say(
                f"trial {number}: {self.definition.metric} {score:.4g}  "
                f"(best {best.value:.4g} of trial {best.number})  {described(trial.settings)}"
            )
        self._finish(trial)

    def _any_scored(self) -> bool:
        from optuna.trial import TrialState

        states = (TrialState.COMPLETE, TrialState.PRUNED)
        return bool(self.study.get_trials(deepcopy=False, states=states))

    def _finish(self, trial: ActiveTrial) -> None:
        trial.close()
        self._active.remove(trial)
        self._free_cores.append(trial.cores)

    def _end_runs(self) -> None:
        """Stops the runs of this machine; jobs of Slurm go on, and a resumed sweep waits for
        them."""
        if not self.by_slurm:
            for trial in self._active:
                trial.stop()
            for trial in self._active:
                trial.close()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        fd = os.open(self.folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError:
            raise RunError(
                f"{self.folder}: another process runs this sweep. Wait for it."
            ) from None
        finally:
            os.close(fd)


class ActiveTrial:
    """A trial that goes on: one run for each seed, one after another."""

    def __init__(self, sweep: Sweep, trial: Trial, cores: list[int]) -> None:
        self._sweep = sweep
        self.trial = trial
        self.cores = cores
        self.settings = suggest(trial, sweep.space)
        self.scores: list[float] = []
        self.is_pruned = False
        self._run: TrialRun | None = None
        frozen = trial.study.trials[trial.number]
        self._reported = max(frozen.intermediate_values, default=-1)
        self._size = -1
        """Bytes of metrics.jsonl at the last look."""
        self._jobs = {k: v for k, v in frozen.user_attrs.items() if k.startswith(JOB)}

    @property
    def _seed(self) -> int:
        return self._sweep.definition.seed + len(self.scores)

    @property
    def run_dir(self) -> Path:
        """The run directory of the present seed."""
        return trial_folder(self._sweep.folder, self.trial.number) / f"seed{self._seed}"

    def step(self) -> bool:
        """Goes on as far as possible without waiting. Returns whether the trial is over."""
        if self._run is None:
            self._start()
            return False
        words = self._run.ended()
        if words is None:
            self._consider_pruning()
            return False
        self._run.close()
        self._run = None
        if self.is_pruned:
            return True
        self.scores.append(self._score(words))
        return len(self.scores) == self._sweep.definition.seeds

    def _start(self) -> None:
        # The run of a sweep that was killed may still write its last checkpoint.
        if is_training(self.run_dir) and not self._sweep.by_slurm:
            return
        train = self._sweep.definition.train
        if not self._sweep.by_slurm:
            words = train.command(self.settings, self._seed)
            self._run = LocalRun(words, self.run_dir, self.cores)
            return
        name = f"{JOB}{self._seed}"
        experiment = train.experiment(self.settings, self._seed)
        run = SlurmRun(experiment, self.run_dir, self._jobs.pop(name, ""))
        self.trial.set_user_attr(name, run.job)
        self._run = run

    def _score(self, words: str) -> float:
        """The score of a run that has ended; raises if it did not finish."""
        try:
            summary = read_summary(self.run_dir)
        except SrlError:
            raise RunError(
                f"{self.run_dir}: the run did not begin: {words or 'no message'}"
            ) from None
        if summary.status == "failed":
            raise RunError(summary.error or words)
        if summary.status != "finished":
            raise RunError(f"{self.run_dir}: the run was {summary.status} ({summary.reason})")
        for line in reversed(read_metrics(self.run_dir)):
            if (value := line.get(self._sweep.key)) is not None:
                return float(value)
        raise RunError(f"{self.run_dir}: no value of {self._sweep.key} in metrics.jsonl")

    def _consider_pruning(self) -> None:
        """Reports the present value of the first seed at equal parts of the run."""
        limit = self._sweep.limit
        prunes = self._sweep.definition.pruner != "none"
        if self.is_pruned or self.scores or limit is None or not prunes:
            return
        line = self._newest_line()
        value = line.get(self._sweep.key)
        at = int(SLICES * float(line.get(limit[0]) or 0.0) / limit[1])
        if value is None or not self._reported < at < SLICES:
            return
        self._reported = at
        self.trial.report(float(value), at)
        if self.trial.should_prune():
            self.is_pruned = True
            self.stop()

    def _newest_line(self) -> dict[str, Any]:
        """The last line of metrics.jsonl; empty if it is not newer than at the last look."""
        try:
            with (self.run_dir / METRICS_FILE).open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                if size == self._size:
                    return {}
                self._size = size
                file.seek(max(0, size - MAX_LINE_BYTES))
                whole, _, _ = file.read().rpartition(b"\n")
        except OSError:
            return {}
        try:
            return msgspec.json.decode(whole.rpartition(b"\n")[2], type=dict[str, Any])
        except msgspec.DecodeError:
            return {}

    def stop(self) -> None:
        """Asks its run to end."""
        if self._run is not None:
            self._run.stop()

    def close(self) -> None:
        """Waits for the end of its run."""
        if self._run is not None:
            self._run.close()
            self._run = None


def trial_folder(folder: Path, number: int) -> Path:
    """The folder of a trial's runs."""
    return folder / f"trial-{number:04d}"


def words_of(command: Sequence[str]) -> str:
    """A command as a user types it."""
    return shlex.join(["srl", *command])
