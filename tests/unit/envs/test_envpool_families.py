"""A process that needs one family of EnvPool's environments loads that one, and has all."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytest.importorskip("envpool")

CODE = """
import json, sys, warnings
warnings.simplefilter("ignore")
from srl.envs.envpool_families import import_envpool

def families():
    found = [name for name in sys.modules if name.startswith("envpool.")]
    return sorted(name for name in found if name.endswith(".registration"))

envpool = import_envpool(sys.argv[1])
first = families()
heavy = "matplotlib" in sys.modules
pool = envpool.make_gymnasium(sys.argv[1], num_envs=1)
made = families()
others = [envpool.make_spec(name).config.num_envs for name in ("Catch-v0", "CartPole-v1")]
print(json.dumps([first, heavy, made, others, len(envpool.list_all_envs())]))
"""
PLAIN = "import envpool; print(len(envpool.list_all_envs()))"


def run(*command: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run([sys.executable, "-c", *command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_one_family_is_loaded_and_the_others_when_asked_for() -> None:
    first, heavy, made, others, known = json.loads(run(CODE, "HalfCheetah-v5"))
    assert first == made == ["envpool.mujoco.gym.registration", "envpool.registration"]
    assert not heavy
    assert others == [1, 1]
    assert known == int(run(PLAIN))


def test_a_name_that_is_in_no_list_is_found() -> None:
    """Atari's names come from the files of its games."""
    first, heavy, *_ = json.loads(run(CODE, "Pong-v5"))
    assert first == ["envpool.atari.registration", "envpool.registration"]
    assert not heavy
