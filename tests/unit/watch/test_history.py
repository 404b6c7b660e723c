"""The history of a run's metrics, read as it grows."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from made_runs import add_points, make_run

from srl.watch import history
from srl.watch.history import History, encode, last_line


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "run", points=5)


def steps(found: History) -> list[float]:
    return list(found.columns["env_steps"])


def test_only_what_is_new_is_read(run: Path) -> None:
    found = History(run)
    assert found.update()
    assert steps(found) == [0, 100, 200, 300, 400]
    assert not found.update()
    before = found.generation
    add_points(run, 5, 7)
    assert found.update()
    assert steps(found)[-2:] == [500, 600]
    assert found.generation == before


def test_half_a_line_waits_for_its_other_half(run: Path) -> None:
    found = History(run)
    line = json.dumps({"env_steps": 500, "episode_return_mean": 1.0}).encode() + b"\n"
    with (run / "metrics.jsonl").open("ab", buffering=0) as file:
        file.write(line[:10])
        found.update()
        assert len(found) == 5
        file.write(line[10:])
        found.update()
    assert len(found) == 6


def test_a_resumed_run_replaces_what_it_does_again(run: Path) -> None:
    found = History(run)
    found.update()
    before = found.generation
    add_points(run, 3, 6)
    found.update()
    assert steps(found) == [0, 100, 200, 300, 300, 400, 500]
    assert found.generation > before


def test_a_run_that_starts_over_is_read_anew(run: Path) -> None:
    found = History(run)
    found.update()
    before = found.generation
    (run / "metrics.jsonl").unlink()
    add_points(run, 0, 2)
    found.update()
    assert steps(found) == [0, 100]
    assert found.generation > before


def test_metrics_that_come_later_and_go_are_gaps(run: Path) -> None:
    add_points(run, 5, 6, late=3.0)
    add_points(run, 6, 7)
    found = History(run)
    found.update()
    assert {len(column) for column in found.columns.values()} == {7}
    at, values = found.series("late")
    assert (at.tolist(), values.tolist()) == ([500.0], [3.0])
    assert bytes(encode(found.columns["late"])) == b"[null,null,null,null,null,3,null]"


@pytest.mark.parametrize("points", [300, 5000])
def test_a_long_history_has_few_points_and_its_ends(
    run: Path, monkeypatch: pytest.MonkeyPatch, points: int
) -> None:
    monkeypatch.setattr(history, "MAX_POINTS", 100)
    add_points(run, 5, points)
    found = History(run)
    found.update()
    for number in range(points, points + 300):
        add_points(run, number, number + 1)
        found.update()
    assert 50 <= len(found) <= 200
    assert found.last["env_steps"] == 100 * (points + 299)
    assert steps(found)[-1] > 100 * points
    assert np.all(np.diff(steps(found)) > 0)


def test_each_evaluation_is_found_once(run: Path) -> None:
    for number, version in enumerate((1, 1, 2)):
        more = {"eval_policy_version": version, "eval_return_mean": 10.0 * version}
        add_points(run, 5 + number, 6 + number, **more)
    found = History(run)
    found.update()
    assert [(at, line["eval_return_mean"]) for at, line in found.evaluations] == [
        (500, 10.0),
        (700, 20.0),
    ]


def test_the_last_line_is_found_without_the_others(run: Path) -> None:
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(b'{"env_st')
    assert last_line(run)["env_steps"] == 400
    assert last_line(run / "nothing") == {}
