"""Actors are small: ten thousand of them must be cheap."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

from harness import SMALL, Training

_ALONE = """
import gymnasium, psutil
envs = [gymnasium.make("CartPole-v1") for _ in range(8)]
for env in envs:
    env.reset(seed=0)
print(psutil.Process().memory_full_info().uss)
"""


def test_an_actor_takes_less_than_80_mb_beyond_its_environments(
    start: Callable[..., Training],
) -> None:
    alone = subprocess.run(
        [sys.executable, "-c", _ALONE], capture_output=True, text=True, check=True
    )
    training = start("CartPole-v1", "--layout", "shared", *SMALL)
    training.wait_for_updates()
    workers = training.workers()
    actors = [process for name, process in workers.items() if name.startswith("actor")]
    assert actors, f"no actor among {sorted(workers)}"
    for actor in actors:
        beyond = actor.memory_full_info().uss - int(alone.stdout)
        assert beyond < 80e6, f"{beyond / 1e6:.0f} MB"
    training.stop()
