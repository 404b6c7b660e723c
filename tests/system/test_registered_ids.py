"""Ids that a user's file registers are found in every process of a run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.runs

FILE = """
import sys
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

class Mine(CartPoleEnv):
    def __init__(self, size=0, render_mode=None):
        assert size == 7
        super().__init__(render_mode=render_mode)

gymnasium.register("Mine-v0", entry_point="__main__:Mine", max_episode_steps=9, kwargs={"size": 7})
gymnasium.register("Yours-v0", entry_point=Mine, max_episode_steps=9, kwargs={"size": 7})

if __name__ == "__main__":
    import srl

    small = {"actor.envs": 2, "algorithm.rollout_length": 16}
    run = srl.train("Mine-v0", steps=200, layout="shared", run_dir="run", set=small, quiet=True)
    print(run.summary.status, run.experiment.env.args)
"""
# As the installed command is run: without the current folder among those of modules.
SRL = ("-P", "-c", "import sys; from srl.cli import main; sys.exit(main())")
SMALL = ("--set", "actor.envs=2", "--set", "algorithm.rollout_length=16", "--steps", "200")


@pytest.fixture
def folder(tmp_path: Path, shm: Path) -> Path:
    (tmp_path / "mine.py").write_text(FILE)
    return tmp_path


def python(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_command_finds_them(folder: Path) -> None:
    python(folder, *SRL, "train", "mine:Yours-v0", "--layout", "shared", "--run-dir", "run",
           "--quiet", *SMALL)  # fmt: skip
    assert "mean length 9.0" in python(folder, *SRL, "eval", "run", "--episodes", "2")


def test_a_program_trains_on_what_it_registered(folder: Path) -> None:
    assert python(folder, "mine.py").strip() == "finished {'size': 7}"
