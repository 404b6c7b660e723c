"""A run learns soon after return was pressed, and its launcher stays small."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import FAULTY, SMALL, Training, read_summary

from srl.arguments import assemble
from srl.errors import ConfigError, PolicyError
from srl.experiment import SampleConfig
from srl.launch.run.launch import launch

pytestmark = pytest.mark.runs

LAUNCH = """
import sys
from srl.cli import main
code = main()
assert "torch" not in sys.modules, "the launcher imported torch"
sys.exit(code)
"""


def unavoidable() -> float:
    """Seconds that a process needs for what every run imports."""
    started = time.monotonic()
    subprocess.run([sys.executable, "-c", "import torch, gymnasium"], check=True)
    return time.monotonic() - started


@pytest.mark.guard
def test_the_first_update_comes_soon(start: Callable[..., Training]) -> None:
    """Two processes import torch at once, and little else may take time; 6 s on two free cores.

    A ratio to one import, so that a busy machine slows both; the best of three, for the same
    reason.
    """
    ratios = []
    for number in range(3):
        once = unavoidable()
        begun = time.monotonic()
        training = start("CartPole-v1", "--steps", "1", run=f"run{number}")
        assert training.wait() == 0, training.printed
        seconds = read_summary(training.run_dir)["seconds_to_first_update"]
        assert 0 < seconds < time.monotonic() - begun
        ratios.append(seconds / once)
        if ratios[-1] < 2.5:
            return
    pytest.fail(f"the first update came after {ratios} times what torch and Gymnasium take")


@pytest.mark.parametrize("layout", ["inline", "shared"])
def test_the_launcher_imports_no_torch(layout: str, tmp_path: Path, shm: Path) -> None:
    arguments = ["train", "CartPole-v1", "--layout", layout, "--steps", "1000", "--quiet", *SMALL]
    arguments += ["--set", "network.hidden_sizes=[32,32]", "--set", "algorithm.gamma=0.98"]
    done = subprocess.run(
        [sys.executable, "-c", LAUNCH, *arguments, "--run-dir", str(tmp_path / "run")],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_what_the_planner_refuses_is_raised_by_the_launcher(tmp_path: Path, shm: Path) -> None:
    """What only the plan can judge, in another process."""
    wanted = assemble("CartPole-v1", layout="inline", steps=1000)
    actor = dataclasses.replace(wanted.actor, count=2)
    broken = dataclasses.replace(wanted, actor=actor, sample=SampleConfig(slots=1))
    with pytest.raises(ConfigError, match=r"sample\.slots: .*expects at least 2 slots"):
        launch(broken, tmp_path / "run", quiet=True)
    assert read_summary(tmp_path / "run")["status"] == "failed"
    assert list(shm.iterdir()) == []


def test_settings_that_do_not_exist_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    wanted = assemble("CartPole-v1", layout="inline", steps=1000)
    broken = dataclasses.replace(wanted, algorithm={"name": "ppo", "gama": 1})
    with pytest.raises(ConfigError, match=r"algorithm\.gama.*gamma"):
        launch(broken, tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_a_policy_that_cannot_be_built_is_a_message(tmp_path: Path, shm: Path) -> None:
    wanted = assemble("CartPole-v1", layout="inline", steps=1000)
    broken = dataclasses.replace(wanted, network={"name": f"{FAULTY}:UnbuildablePolicy"})
    with pytest.raises(PolicyError, match="ValueError: no such network"):
        launch(broken, tmp_path / "run", quiet=True)
    assert list(shm.iterdir()) == []
