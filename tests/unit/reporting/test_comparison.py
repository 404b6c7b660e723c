"""Comparisons of groups of runs, against numbers worked by hand and against scipy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from srl.cli import main
from srl.comparison import compare
from srl.errors import ConfigError, MissingDependency, RunError
from srl.reporting.frames import columns_of, frame_of
from srl.reporting.seed_statistics import (
    Bootstrap,
    curve_at,
    interquartile_mean,
    probability_of_improvement,
)
from srl.run import load


def make_run(folder: Path, returns: list[float], env: str = "CartPole-v1", **more: Any) -> Path:
    """A run with a point every 100 steps. The class that it names must never be imported."""
    folder.mkdir(parents=True)
    config = {
        "env": {"id": env, "args": more.pop("args", {})},
        "network": {"name": "no_such_module:Network"},
        "policies": {name: {} for name in more.pop("policies", ["default"])},
    }
    (folder / "config.yaml").write_text(json.dumps(config))
    with (folder / "metrics.jsonl").open("w") as file:
        for index, value in enumerate(returns):
            line = {"env_steps": 100 * (index + 1), "episode_return_mean": value, **more}
            file.write(json.dumps(line) + "\n")
    return folder


def group(folder: Path, ends: list[float], **more: Any) -> Path:
    for seed, end in enumerate(ends):
        make_run(folder / f"seed{seed}", [0.0, end], **more)
    return folder


def test_the_interquartile_mean_leaves_out_a_quarter_at_each_end() -> None:
    assert interquartile_mean(np.array([100.0, 1.0, 2.0, 3.0, -50.0])) == 2.0
    assert interquartile_mean(np.array([9.0, 1.0, 2.0, 4.0])) == 3.0
    assert interquartile_mean(np.array([5.0, 1.0])) == 3.0
    assert interquartile_mean(np.array([7.0])) == 7.0
    stats = pytest.importorskip("scipy.stats")
    values = np.random.default_rng(1).normal(size=(11, 6))
    np.testing.assert_allclose(interquartile_mean(values), stats.trim_mean(values, 0.25, axis=0))


def test_the_probability_of_improvement_counts_pairs() -> None:
    values, others = np.array([1.0, 2.0, 3.0]), np.array([2.0, 4.0])
    # Of six pairs 2 > 1, 4 > 1, 4 > 2, 4 > 3 are better, and 2 = 2 counts half.
    assert probability_of_improvement(values, others) == pytest.approx(4.5 / 6)
    assert probability_of_improvement(others, values) == pytest.approx(1.5 / 6)
    assert probability_of_improvement(values, values) == 0.5
    stats = pytest.importorskip("scipy.stats")
    wide = np.random.default_rng(2).integers(0, 5, 9).astype(float)
    found = stats.mannwhitneyu(wide, values).statistic / (len(wide) * len(values))
    assert probability_of_improvement(values, wide) == pytest.approx(found)


def test_each_group_is_resampled_for_itself() -> None:
    low, high = Bootstrap(resamples=500).interval(interquartile_mean, np.arange(20.0))
    assert low < 9.5 < high
    assert 2 < high - low < 12
    ones, tens = np.ones(5), np.full(3, 10.0)
    assert Bootstrap().interval(probability_of_improvement, ones, tens) == (1.0, 1.0)
    stats = pytest.importorskip("scipy.stats")
    values = np.random.default_rng(3).normal(size=30)
    expected = stats.bootstrap(
        (values,), lambda x, axis: stats.trim_mean(x, 0.25, axis=axis), method="percentile", rng=0
    ).confidence_interval
    np.testing.assert_allclose(
        Bootstrap(resamples=10_000).interval(interquartile_mean, values), expected, atol=0.03
    )


def test_a_curve_says_nothing_beyond_its_ends() -> None:
    found = curve_at(np.array([10.0, 20.0]), np.array([1.0, 3.0]), np.array([0.0, 10, 15, 20, 21]))
    np.testing.assert_array_equal(found, [np.nan, 1.0, 2.0, 3.0, np.nan])


def test_groups_are_compared_by_hand_worked_numbers(tmp_path: Path) -> None:
    one = group(tmp_path / "one", [1.0, 2.0, 3.0, 4.0, 100.0])
    two = group(tmp_path / "two", [3.0, 5.0, 6.0, 7.0, -100.0])
    found = compare(one, two)
    assert (found.task, found.metric, found.at_steps) == ("CartPole-v1", "episode_return_mean", 200)
    first, second = found.groups
    assert (first.name, first.iqm, second.iqm) == ("one", 3.0, pytest.approx(14 / 3))
    # Of 25 pairs: 3 beats 2 and equals 1, 5, 6 and 7 beat 4 each, -100 beats none.
    assert second.better == pytest.approx((2.5 + 3 * 4) / 25)
    assert first.iqm_interval[0] < 3.0 < first.iqm_interval[1]
    assert first.curve[-1] == 3.0
    assert np.isnan(first.curve[0])
    text = found.table()
    assert "one" in text
    assert "two better than one: probability 0.58" in text
    at = compare(one, two, at=150).groups[0]
    assert at.iqm == 1.5
    record = json.loads(json.dumps(found.record()))
    assert record["groups"]["two"]["scores"] == [3.0, 5.0, 6.0, 7.0, -100.0]


def test_runs_are_given_as_folders_patterns_lists_and_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    group(tmp_path / "one", [1.0, 2.0])
    group(tmp_path / "two" / "trial-0001", [3.0, 4.0, 5.0])
    assert main(["compare", "old=one", "new=two", "--output", "pictures/a.png"]) == 0
    shown = capsys.readouterr().out
    assert "new better than old: probability 1.00" in shown
    assert (tmp_path / "pictures" / "a.png").read_bytes().startswith(b"\x89PNG")
    assert main(["compare", "one/seed*", "two/trial-0001/seed1", "--json"]) == 0
    groups = json.loads(capsys.readouterr().out)["groups"]
    assert [len(found["runs"]) for found in groups.values()] == [2, 1]
    lists = compare(["one/seed0", "one"], "two")
    assert [len(found.runs) for found in lists.groups] == [2, 3]
    assert (
        "one run says nothing about chance (seed1)"
        in compare("one", "two/trial-0001/seed1").table()
    )


def test_the_picture_has_a_curve_and_a_band_of_each_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib.figure import Figure

    figures: list[Figure] = []
    save = Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda self, *a, **k: (figures.append(self), save(self, *a, **k))
    )
    found = compare(group(tmp_path / "one", [1, 2, 3]), group(tmp_path / "$two", [4, 5, 6]))
    assert found.plot(tmp_path / "a.png") == tmp_path / "a.png"
    curves, means, better = figures[0].axes
    assert len(curves.get_lines()) == len(curves.collections) == 2
    assert curves.get_lines()[1].get_ydata()[-1] == 5.0
    assert len(means.get_lines()) == 6
    assert len(better.get_lines()) == 3


def test_other_metrics_and_policies_may_be_compared(tmp_path: Path) -> None:
    more = {"policies": ["red", "blue"], "policies.red.eval_return_mean": 5.0, "train.loss": 2.0}
    paths = [make_run(tmp_path / name, [1.0, 2.0], **more) for name in "ab"]
    assert compare(*paths, metric="eval_return/red").groups[0].iqm == 5.0
    with pytest.raises(ConfigError, match="expected the name of a policy"):
        compare(*paths)
    with pytest.raises(RunError, match=r"a: expected values of 'return/blue' in metrics.jsonl"):
        compare(*paths, metric="return/blue")


def test_wrong_groups_are_refused_with_a_clear_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = group(tmp_path / "one", [1.0]), group(tmp_path / "two", [1.0], env="Acrobot-v1")
    assert main(["compare", str(one), str(two)]) == 2
    words = capsys.readouterr().err
    assert "expected runs of one task, got CartPole-v1 (" in words
    assert "and Acrobot-v1 (" in words
    other = make_run(tmp_path / "three", [1.0], args={"size": 3})
    with pytest.raises(ConfigError, match=r'CartPole-v1 \{"size": 3\}'):
        compare(one, other)
    with pytest.raises(ConfigError, match="at least two groups"):
        compare(one)
    with pytest.raises(RunError, match="expected a run, or a folder of runs, got none"):
        compare(one, tmp_path / "none")
    with pytest.raises(ConfigError, match="scores at 1 to 200 environment steps"):
        compare(one, group(tmp_path / "four", [1.0]), at=300)


def test_metrics_of_a_run_are_arrays_and_frames(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run", [1.0, 2.0], window_full=True)
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"env_steps": 300, "episode_return_mean": null, "window_full": true, "x": 2}\n')
    run = load(path)
    found = run.metrics()
    np.testing.assert_array_equal(found["env_steps"], [100, 200, 300])
    assert found["env_steps"].dtype == np.int64
    np.testing.assert_array_equal(found["episode_return_mean"], [1.0, 2.0, np.nan])
    np.testing.assert_array_equal(found["x"], [np.nan, np.nan, 2.0])
    assert found["window_full"].dtype == bool
    pandas, polars = run.metrics(frame="pandas"), run.metrics(frame="polars")
    assert list(pandas.columns) == list(polars.columns) == list(found)
    assert pandas["env_steps"].tolist() == polars["env_steps"].to_list() == [100, 200, 300]


def test_frames_of_unknown_or_missing_packages_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="expected frame pandas or polars, got 'dask'"):
        frame_of({}, "dask")  # type: ignore[arg-type]
    assert columns_of([]) == {}
    monkeypatch.setattr("srl.extras.installed", lambda package: False)
    with pytest.raises(MissingDependency, match=r"really-scalable-rl\[polars\]"):
        frame_of({}, "polars")
