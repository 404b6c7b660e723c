"""What is started is ended, whatever fails on the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from srl.envs.protocol import EnvConfig
from srl.errors import ConfigError
from srl.experiment import Experiment
from srl.launch.run import launch as module
from srl.launch.run.launch import launch
from srl.launch.run.processes import ProcessRun
from srl.launch.run.signals import StopSignals
from srl.reporting.summary import read_summary


class Broken:
    """Processes on a machine whose disk is full."""

    arena = None
    closed = False

    def end(self, seconds: float) -> None:
        raise OSError(28, "No space left on device")

    def close(self) -> None:
        self.closed = True


def test_memory_is_given_back_also_where_processes_cannot_be_ended(tmp_path: Path) -> None:
    process_table = Broken()
    run = ProcessRun(cast(Any, process_table), tmp_path, StopSignals())
    with pytest.raises(OSError, match="No space left"):
        run.close()
    assert process_table.closed


class Engine:
    """An engine that only says whether it was closed."""

    bind = "127.0.0.1"
    return_seconds = 0.0
    closed = False

    def close(self) -> None:
        self.closed = True


def test_an_engine_is_closed_where_its_head_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = Engine()
    monkeypatch.setattr(module, "make_backend", lambda experiment, path: backend)
    experiment = Experiment(env=EnvConfig(id="CartPole-v1"), listen="0.0.0.0", steps=100)
    with pytest.raises(ConfigError, match="listen: expected one address"):
        launch(experiment, tmp_path / "run", quiet=True)
    assert backend.closed


def test_a_run_that_the_system_does_not_let_start_says_so_in_its_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "ProcessTable", full)
    experiment = Experiment(env=EnvConfig(id="CartPole-v1"), layout="inline", steps=100)
    with pytest.raises(module.RunError, match="No space left on device"):
        launch(experiment, tmp_path / "run", quiet=True)
    summary = read_summary(tmp_path / "run")
    assert summary.status == "failed"
    assert "No space left on device" in (summary.error or "")
