"""Sweeps in real processes: killed and resumed without losing a trial."""

from __future__ import annotations

import os
import re
from pathlib import Path

import psutil
import pytest
from harness import Training, read_summary, wait_for
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

pytestmark = pytest.mark.runs
TRIALS = 4
SWEEP = (
    *("--layout", "inline", "--seconds", "4", "--trials", str(TRIALS), "--parallel", "2"),
    *("--set", "actor.envs=8", "--set", "algorithm.rollout_length=16"),
    *("--set", "logging.sinks=[]", "--set", "checkpoint.every_seconds=0.5"),
    *("--search", "algorithm.learning_rate=log(1e-4,1e-2)", "--pruner", "none"),
)


def states(folder: Path) -> list[str]:
    """The states of all trials, read from Optuna's journal."""
    journal = folder / "journal.log"
    if not journal.exists():
        return []
    storage = JournalStorage(JournalFileBackend(str(journal)))
    if not storage.get_all_studies():
        return []
    return [trial.state.name for trial in storage.get_all_trials(0, deepcopy=False)]


def below(folder: Path) -> list[psutil.Process]:
    """Processes that have the sweep's folder in their command, or descend from one that has."""
    found = []
    for process in psutil.process_iter():
        try:
            if str(folder) in " ".join(process.cmdline()) and process.pid != os.getpid():
                found += [process, *process.children(recursive=True)]
        except psutil.Error:
            continue
    return found


def test_a_killed_sweep_leaves_no_process_and_goes_on_with_every_trial(tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    first = Training(folder, ("sweep", "CartPole-v1", *SWEEP, "--folder", str(folder)))

    def half_done() -> bool:
        """Some trials are done; another has a checkpoint, and is not over."""
        running = [
            run
            for run in folder.glob("trial-*/seed1")
            if list(run.glob("checkpoints/0*")) and not (run / "summary.json").exists()
        ]
        return "COMPLETE" in states(folder) and bool(running)

    wait_for(half_done, first)
    started = below(folder)
    first.process.kill()
    first.process.wait()
    assert len(started) > 3
    wait_for(lambda: not any(p.is_running() for p in started), started)
    before = states(folder)
    assert "RUNNING" in before
    done = {p: read_summary(p)["seconds"] for p in folder.glob("trial-*/seed1") if finished(p)}

    second = Training(folder, ("sweep", str(folder)))
    wait_for(lambda: second.process.poll() is not None, second)
    assert second.process.returncode == 0, second.printed
    assert states(folder) == ["COMPLETE"] * TRIALS
    assert f"going on: {before.count('COMPLETE')} trials are done" in second.printed
    for path, seconds in done.items():
        assert read_summary(path)["seconds"] == seconds, "it was trained again"
    assert sorted(p.name for p in folder.glob("trial-*")) == [
        f"trial-{i:04d}" for i in range(TRIALS)
    ]
    assert all(finished(p / "seed1") for p in folder.glob("trial-*"))
    assert re.search(r"again  srl train CartPole-v1 .*learning_rate=", second.printed)
    assert (folder / "sweep.png").exists()
    wait_for(lambda: not below(folder), folder)


def finished(path: Path) -> bool:
    return (path / "summary.json").exists() and read_summary(path)["status"] == "finished"


def test_ctrl_c_stops_a_sweep_and_says_how_it_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    sweep = Training(folder, ("sweep", "CartPole-v1", *SWEEP, "--folder", str(folder)))
    wait_for(lambda: list(folder.glob("trial-*/seed1/metrics.jsonl")), sweep)
    sweep.process.send_signal(2)
    wait_for(lambda: sweep.process.poll() is not None, sweep)
    assert sweep.process.returncode == 130, sweep.printed
    assert f"go on  srl sweep {folder}" in sweep.printed
    wait_for(lambda: not below(folder), folder)
    assert set(states(folder)) == {"RUNNING"}
