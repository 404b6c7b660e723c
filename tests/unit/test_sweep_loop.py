"""The loop of a sweep, with runs that are played: scores, seeds, pruning, failures, jobs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from srl.errors import ConfigError, RunError
from srl.sweep import sweep as loop
from srl.sweep import trial_runs
from srl.sweep.definition import SweepDefinition, TrainArguments
from srl.sweep.study import open_study
from srl.sweep.sweep import Sweep, trial_folder

Score = Callable[[int, int], float]
"""The return of a run, by its trial and its seed; an exception makes the run fail."""
LINES = 10


def finish(run_dir: Path, score: Score) -> None:
    """Writes what a run leaves behind."""
    run_dir.mkdir(parents=True, exist_ok=True)
    try:
        value = score(int(run_dir.parent.name[-4:]), int(run_dir.name[4:]))
        summary: dict[str, Any] = {"status": "finished"}
        add_line(run_dir, 1000, value)
    except ValueError as error:
        summary = {"status": "failed", "error": str(error)}
    (run_dir / "summary.json").write_text(json.dumps(summary))


def add_line(run_dir: Path, steps: int, value: float) -> None:
    with (run_dir / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"env_steps": steps, "episode_return_mean": value}) + "\n")


class Played:
    """A run that writes a line at each look, and then ends."""

    score: Score = staticmethod(lambda trial, seed: 0.0)
    started: ClassVar[list[tuple[Path, list[str], list[int]]]] = []
    at_once = most_at_once = 0

    def __init__(self, words: list[str], run_dir: Path, cores: list[int]) -> None:
        Played.started.append((run_dir, words, cores))
        Played.at_once += 1
        Played.most_at_once = max(Played.most_at_once, Played.at_once)
        self.run_dir, self.lines, self.stopped = run_dir, 0, False
        run_dir.mkdir(parents=True, exist_ok=True)

    def ended(self) -> str | None:
        self.lines += 1
        if self.stopped:
            return ""
        if self.lines == LINES:
            finish(self.run_dir, Played.score)
            return ""
        trial = int(self.run_dir.parent.name[-4:])
        add_line(self.run_dir, 100 * self.lines, 100.0 - 10 * trial)
        return None

    def stop(self) -> None:
        self.stopped = True

    def close(self) -> None:
        Played.at_once -= 1


@pytest.fixture(autouse=True)
def _played(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "LocalRun", Played)
    monkeypatch.setattr(loop, "TURN_SECONDS", 0.0)
    Played.started, Played.at_once, Played.most_at_once = [], 0, 0
    Played.score = staticmethod(lambda trial, seed: 10.0 * trial + seed)


def make(folder: Path, parallel: int = 1, **more: Any) -> tuple[Sweep, list[str]]:
    options = {"steps": 1000, **more.pop("options", {})}
    train = TrainArguments(target="CartPole-v1", options=options)
    known: dict[str, Any] = {"trials": 4, "pruner": "none", **more}
    search = ["algorithm.learning_rate=log(1e-4,1e-2)"]
    said: list[str] = []
    found = SweepDefinition(train=train, search=search, **known)
    return Sweep(folder, found, parallel, said.append), said


def states(folder: Path, sweep: Sweep) -> list[str]:
    return [trial.state.name for trial in open_study(folder, sweep.definition).trials]


def test_each_trial_has_the_mean_score_of_its_seeds(tmp_path: Path) -> None:
    sweep, said = make(tmp_path, parallel=2, seeds=3)
    study = sweep.run()
    assert [trial.value for trial in study.trials] == [2.0, 12.0, 22.0, 32.0]
    assert Played.most_at_once == 2
    assert Played.at_once == 0
    runs = sorted(path.relative_to(tmp_path) for path, _, _ in Played.started)
    assert runs == [Path(f"trial-{t:04d}/seed{s}") for t in range(4) for s in (1, 2, 3)]
    words = Played.started[0][1]
    rate = study.trials[0].params["algorithm.learning_rate"]
    assert words[:2] == ["train", "CartPole-v1"]
    assert f"algorithm.learning_rate={rate}" in words
    assert any("(best 32 of trial 3)" in text for text in said)


def test_smaller_scores_may_be_better(tmp_path: Path) -> None:
    assert make(tmp_path, minimize=True)[0].run().best_trial.number == 0


def test_trials_that_fall_behind_are_ended_early(tmp_path: Path) -> None:
    sweep, said = make(tmp_path, trials=8, pruner="median")
    sweep.run()
    assert states(tmp_path, sweep) == ["COMPLETE"] * 5 + ["PRUNED"] * 3
    assert len([text for text in said if "pruned" in text]) == 3
    lines = (trial_folder(tmp_path, 7) / "seed1" / "metrics.jsonl").read_text().splitlines()
    assert len(lines) < LINES - 1


def test_a_failed_trial_does_not_end_the_sweep(tmp_path: Path) -> None:
    def score(trial: int, seed: int) -> float:
        if trial % 2:
            raise ValueError("the loss is nan")
        return 1.0

    Played.score = staticmethod(score)
    sweep, said = make(tmp_path)
    sweep.run()
    assert states(tmp_path, sweep) == ["COMPLETE", "FAIL", "COMPLETE", "FAIL"]
    assert "trial 1: failed: the loss is nan" in said


def test_a_sweep_whose_trials_all_fail_ends_with_the_reason(tmp_path: Path) -> None:
    def score(trial: int, seed: int) -> float:
        raise ValueError("no such device")

    Played.score = staticmethod(score)
    with pytest.raises(RunError, match="the first 3 trials failed, the last one with: no such dev"):
        make(tmp_path)[0].run()


def test_an_interrupted_sweep_stops_its_runs_and_loses_no_trial(tmp_path: Path) -> None:
    def score(trial: int, seed: int) -> float:
        if trial == 1:
            raise KeyboardInterrupt
        return 5.0

    Played.score = staticmethod(score)
    sweep, _ = make(tmp_path, parallel=2)
    with pytest.raises(KeyboardInterrupt):
        sweep.run()
    assert Played.at_once == 0
    before = {t.number: t.params for t in open_study(tmp_path, sweep.definition).trials}
    Played.score = staticmethod(lambda trial, seed: 5.0)
    again, said = make(tmp_path, trials=5)
    study = again.run()
    assert "going on: " in said[0]
    assert [trial.value for trial in study.trials] == [5.0] * 5
    assert {n: study.trials[n].params for n in before} == before


def test_jobs_of_slurm_are_waited_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted: list[Path] = []

    def submit(experiment: Any, path: Path) -> str:
        submitted.append(path)
        return "12"

    def wait(job: str) -> None:
        number = 0 if job == "11" else 1
        finish(trial_folder(tmp_path, number) / "seed1", lambda trial, seed: float(trial))

    monkeypatch.setattr(trial_runs, "submit_job", submit)
    monkeypatch.setattr(trial_runs, "wait_for_job", wait)
    sweep, _ = make(tmp_path, trials=2, options={"launcher": "slurm"})
    study = open_study(tmp_path, sweep.definition)
    trial = study.ask()
    trial.set_user_attr("job1", "11")
    sweep.run()
    assert submitted == [trial_folder(tmp_path, 1) / "seed1"]
    assert [t.user_attrs["job1"] for t in sweep.study.trials] == ["11", "12"]


def test_only_one_process_runs_a_sweep(tmp_path: Path) -> None:
    first, second = make(tmp_path)[0], make(tmp_path)[0]
    with first._locked(), pytest.raises(RunError, match="another process runs this sweep"):
        second.run()
    with pytest.raises(ConfigError, match="--parallel: expected at least 1, got 0"):
        make(tmp_path, parallel=0)
