"""What learning tests share: a short way to train, and a record of how long it took to learn."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import srl


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.learning)


@pytest.fixture
def train(tmp_path: Path, record_property: Callable[[str, object], None]) -> Callable[..., srl.Run]:
    """Trains a recipe or experiment with some settings changed; the run must end by itself."""

    def run(target: Any, **settings: Any) -> srl.Run:
        trained = srl.train(target, run_dir=tmp_path / "run", quiet=True, **settings)
        summary = trained.summary
        assert summary.status == "finished"
        record_property("env_steps", summary.env_steps)
        record_property("seconds", round(summary.seconds, 1))
        record_property("episode_return_mean", summary.episode_return_mean)
        print(
            f"{summary.reason}; {summary.env_steps} steps, return {summary.episode_return_mean}, "
            f"{summary.seconds:.1f} s"
        )
        return trained

    return run
