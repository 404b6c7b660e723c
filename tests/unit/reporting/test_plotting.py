import json

import numpy as np
import pytest

from srl.errors import RunError
from srl.reporting.curves import group_runs, mean_and_spread
from srl.reporting.plotting import plot_runs


def make_run(root, name, *, config=None, level=1.0, last=1000, **more):
    folder = root / name
    folder.mkdir(parents=True)
    if config is not None:
        (folder / "config.yaml").write_text(config)
    with (folder / "metrics.jsonl").open("w") as file:
        for steps in range(0, last + 1, 100):
            line = {"env_steps": steps, "env_steps_per_second": 50.0, "policy_age_mean": 0.5}
            file.write(json.dumps({**line, "episode_return_mean": level * steps, **more}) + "\n")
    return folder


def drawn(monkeypatch, run_dirs, output):
    """The figure that was saved."""
    from matplotlib.figure import Figure

    figures = []
    save = Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda self, *a, **k: (figures.append(self), save(self, *a, **k))
    )
    assert plot_runs(run_dirs, output) == output
    assert output.read_bytes().startswith(b"\x89PNG")
    return figures[0]


def test_three_panels_of_one_run(tmp_path, monkeypatch):
    run = make_run(tmp_path, "run", eval_return_mean=7.0, eval_policy_version=3)
    figure = drawn(monkeypatch, [run], tmp_path / "new" / "plot.png")
    returns, throughput, age = figure.axes
    curve, evaluation = returns.get_lines()
    np.testing.assert_array_equal(curve.get_ydata(), np.arange(0, 1001, 100))
    assert len(evaluation.get_xdata()) == 1, "a repeated evaluation is one point"
    assert set(throughput.get_lines()[0].get_ydata()) == {50.0}
    assert set(age.get_lines()[0].get_ydata()) == {0.5}
    assert throughput.get_ylim()[0] == 0


def test_what_the_environment_reports_has_panels_beside_the_returns(tmp_path, monkeypatch):
    more = {f"episode.number_{i}": float(i - 3) for i in range(7)}
    run = make_run(tmp_path, "run", **more)
    figure = drawn(monkeypatch, [run], tmp_path / "plot.png")
    panels = {panel.get_title(): panel for panel in figure.axes if panel.get_visible()}
    assert set(panels) == {"", *(f"number {i}" for i in range(7))}
    assert set(panels["number 1"].get_lines()[0].get_ydata()) == {-2.0}
    several = {"policies.a.episode.goals": 2.0, "policies.b.episode.goals": 3.0}
    figure = drawn(monkeypatch, [make_run(tmp_path, "two", **several)], tmp_path / "plot.png")
    (goals,) = (panel for panel in figure.axes if panel.get_title() == "goals")
    assert [line.get_ydata()[0] for line in goals.get_lines()] == [2.0, 3.0]


def test_seeds_of_one_experiment_become_a_mean_with_a_band(tmp_path, monkeypatch):
    runs = [
        make_run(tmp_path, f"x{seed}", config=f"a: 1\nseed: {seed}\n", level=level)
        for seed, level in ((1, 1.0), (2, 3.0))
    ]
    other = make_run(tmp_path, "other", config="a: 2\nseed: 1\n", last=500)
    returns = drawn(monkeypatch, [*runs, other], tmp_path / "plot.png").axes[0]
    mean, single = returns.get_lines()
    assert mean.get_ydata()[-1] == pytest.approx(2000)
    (band,) = returns.collections
    assert band.get_datalim(returns.transData).y1 == pytest.approx(3000)
    assert single.get_xdata()[-1] == 500
    labels = [text.get_text() for text in returns.get_legend().get_texts()]
    assert labels == ["x1 (2 seeds)", "other"]


def test_a_seed_that_ended_early_does_not_pull_the_mean(tmp_path):
    long, short = (np.arange(0.0, 11), np.full(11, 4.0)), (np.arange(0.0, 6), np.full(6, 2.0))
    steps, mean, spread = mean_and_spread([long, short])
    assert mean[0] == 3.0
    assert spread[0] == 1.0
    assert (mean[-1], spread[-1], steps[-1]) == (4.0, 0.0, 10.0)


def test_seeds_that_have_no_step_in_common_are_not_joined_by_a_line():
    first, second = (
        (np.array([1000.0]), np.array([-200.0])),
        (np.array([2000.0]), np.array([-150.0])),
    )
    _, mean, spread = mean_and_spread([first, second])
    assert (mean[0], mean[-1]) == (-200.0, -150.0)
    assert np.isnan(mean[1:-1]).all()
    assert np.isnan(spread[1:-1]).all()


def test_folders_named_by_seed_belong_together_without_a_config(tmp_path):
    runs = [make_run(tmp_path, name) for name in ("a-seed1", "a-seed2", "b-seed1")]
    groups = group_runs(runs)
    assert groups == {"a (2 seeds)": runs[:2], "b-seed1": runs[2:]}


def test_several_policies_have_a_curve_each(tmp_path, monkeypatch):
    more = {f"policies.{name}.episode_return_mean": 1.0 for name in ("red", "blue")}
    figure = drawn(monkeypatch, [make_run(tmp_path, "run", **more)], tmp_path / "plot.png")
    assert [line.get_label() for line in figure.axes[0].get_lines()] == ["blue", "red"]


def test_a_policy_that_plays_several_sides_is_drawn_by_side(tmp_path, monkeypatch):
    more = {f"agents.player_{i}.episode_return_mean": float(i) for i in (1, 2)}
    more |= {f"agents.player_{i}.eval_return_mean": float(i) for i in (1, 2)}
    more |= {"eval_return_mean": 0.0, "eval_policy_version": 3}
    figure = drawn(monkeypatch, [make_run(tmp_path, "run", **more)], tmp_path / "plot.png")
    labels = [line.get_label() for line in figure.axes[0].get_lines()]
    sides = ["player_1", "player_2"]
    assert labels == [*sides, *(f"{side}, evaluation" for side in sides)]
    assert [line.get_label() for line in figure.axes[2].get_lines()] == ["training"]


def test_what_cannot_be_drawn_is_said(tmp_path):
    with pytest.raises(RunError, match="at least one run"):
        plot_runs([], tmp_path / "plot.png")
    with pytest.raises(RunError, match="Is this a run directory"):
        plot_runs([tmp_path], tmp_path / "plot.png")
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(RunError, match="expected measurements, got none yet"):
        plot_runs([tmp_path], tmp_path / "plot.png")
    run = make_run(tmp_path, "run")
    with pytest.raises(RunError, match="cannot write the plot"):
        plot_runs([run], tmp_path / "metrics.jsonl" / "plot.png")
