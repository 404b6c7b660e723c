"""`srl bench` and `srl tune` to their last line, on real runs that are as short as can be."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.alone


def said(*arguments: str) -> dict[str, Any]:
    """The one line that a command prints."""
    command = "import sys; from srl.cli import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", command, *arguments], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    found: dict[str, Any] = json.loads(line)
    return found


def test_a_measurement_ends_in_one_line_with_everything(shm: Path) -> None:
    window = ("--seconds", "1", "--warmup", "0.2")
    record = said("bench", "W1a", *window, "--layout", "inline", "--json")
    assert (record["workload"], record["layout"]) == ("W1a", "inline")
    rates = ("steps_per_second", "env_only", "with_inference", "limit")
    assert all(record[key] > 0 for key in rates)
    assert record["share_of_limit"] == pytest.approx(
        record["steps_per_second"] / record["limit"], rel=1e-2
    )
    assert 0 <= record["policy_age_mean"] <= 1
    assert record["parameters"] == 9155
    assert 0.05 < sum(record["workers"]["trainer"].values()) < 1.1
    assert record["bottleneck"]
    assert not list(shm.iterdir())


@pytest.mark.guard
def test_environments_alone_are_faster_than_training(shm: Path) -> None:
    window = ("--seconds", "1", "--warmup", "0.2")
    record = said("bench", "W1a", *window, "--layout", "inline", "--json")
    assert record["env_only"] > record["steps_per_second"]


def test_a_search_ends_in_the_line_to_use(shm: Path) -> None:
    decided = ("layout=inline", "actor.count=1", "actor.groups=1", "inference.threads=1")
    words = [word for pair in decided for word in ("--set", pair)]
    record = said("tune", "cartpole", "--seconds", "600", "--window", "0.5", "--json", *words)
    assert record["command"].startswith("srl train cartpole --layout inline --set actor.count=1")
    tried = [attempt["settings"] for attempt in record["tried"]]
    assert tried == [{}, {"trainer.threads": 2}]
    assert [attempt["failed"] for attempt in record["tried"]] == ["", ""]
    assert all(attempt["steps_per_second"] > 0 for attempt in record["tried"])
    clearly = record["tried"][1]["steps_per_second"] >= 1.03 * record["steps_per_second_before"]
    assert len(record["gains"]) == (2 if clearly else 0)
    assert not list(shm.iterdir())
