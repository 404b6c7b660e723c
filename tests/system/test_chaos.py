"""A run that is solved while its workers are killed and stopped at random."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from chaos import SETTINGS, Chaos, Versions, problems
from harness import Training

Start = Callable[..., Training]
SEED = 4
LIMIT_SECONDS = 200.0
"""Far more than it takes, for machines that have much else to do."""


def test_it_learns_whatever_is_killed(start: Start, shm: Path) -> None:
    versions = Versions(shm)
    training = start("cartpole", *SETTINGS)
    chaos = Chaos(training, SEED, seconds=(1.5, 3.5), most=12)

    assert chaos.run(LIMIT_SECONDS), f"still running after {chaos.done}: {training.printed}"

    assert problems(training, chaos, versions.stop(), shm) == [], chaos.done
    assert len(chaos.done) >= 3
