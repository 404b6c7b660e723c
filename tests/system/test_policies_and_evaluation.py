"""Evaluation beside training, policies that are frozen or random, and weights of other runs."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from srl.envs.protocol import EnvConfig
from srl.errors import CheckpointError, ConfigError, RunError
from srl.experiment import Experiment, PolicyConfig
from srl.launch.directory.run_dir import RunDir
from srl.launch.run.status_file import StatusFile
from srl.reporting.summary import read_summary
from srl.run import Run, assemble, resume, train
from srl.services.checkpoints import read_weights
from srl.services.metrics import read_metrics

pytestmark = pytest.mark.runs

SMALL: dict[str, Any] = {
    "actor.envs": 4,
    "algorithm.rollout_length": 16,
    "logging.interval_seconds": 0.05,
}
TAG = "pettingzoo:mpe2.simple_tag_v3"


@pytest.mark.parametrize(("layout", "steps"), [("serial", 2_000), ("inline", 6_000)])
def test_an_evaluator_plays_fixed_weights_beside_training(
    layout: Any, steps: int, tmp_path: Path, shm: Path
) -> None:
    # (Returns of a pendulum are never twice the same, as those of a pole that stands are.)
    run = train(
        "Pendulum-v1",
        layout=layout,
        steps=steps,
        set={
            **SMALL,
            "evaluator.count": 1,
            "evaluator.episodes": 4,
            "evaluator.every_seconds": 0.2,
        },
        run_dir=tmp_path / "run",
        quiet=True,
    )
    evaluated = {
        line["eval_return_mean"] for line in read_metrics(run.path) if "eval_return_mean" in line
    }
    assert len(evaluated) > 1, "expected several evaluations, of different weights"
    assert all(-2000 <= value <= 0 for value in evaluated)
    assert run.summary.eval_return_mean in evaluated
    assert "evaluator" in run.summary.workers
    # The best checkpoint is the one that evaluation liked best.
    latest = RunDir(run.path).store().find("latest").manifest
    assert latest.scores == {"default": run.summary.eval_return_mean}


def tag(run_dir: Path, **runner: Any) -> Run:
    experiment = Experiment(
        env=EnvConfig(id=TAG),
        policies={
            "adversary": PolicyConfig(agents=("adversary_*",)),
            "runner": PolicyConfig(agents=("agent_*",), **runner),
        },
    )
    return train(experiment, layout="serial", steps=400, set=SMALL, run_dir=run_dir, quiet=True)


def weights(run: Run, policy: str) -> dict[str, np.ndarray]:
    return read_weights(RunDir(run.path).store().find("latest"), policy)


def test_what_several_policies_reach_is_known_by_policy_everywhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run of two that learn: files, evaluation, the best checkpoints and the end of the run."""
    experiment = Experiment(
        env=EnvConfig(id=TAG),
        policies={
            "adversary": PolicyConfig(agents=("adversary_*",)),
            "runner": PolicyConfig(agents=("agent_*",)),
        },
    )
    settings = {**SMALL, "logging.window": 4, "checkpoint.every_seconds": 0.2}
    run = train(
        experiment,
        layout="serial",
        steps=100_000,
        until="return/runner<1e9 and version/adversary>=2",
        set=settings,
        run_dir=tmp_path / "run",
    )
    summary, last = run.summary, read_metrics(run.path)[-1]
    assert summary.reason == "reached return/runner<1e9 and version/adversary>=2"
    assert summary.episode_return_mean is None
    assert "episode_return_mean" not in last
    for name in ("adversary", "runner"):
        mean = last[f"policies.{name}.episode_return_mean"]
        assert summary.policies[name].episode_return_mean == mean
        best = summary.policies[name].best_checkpoint
        assert best == RunDir(run.path).store().find(f"best:{name}").number
    for misused in (
        lambda: run.evaluate(episodes=2, checkpoint="best"),
        lambda: run.at("best")["runner"],
        lambda: train(experiment, init_from=f"{run.path}@best", run_dir=tmp_path / "x"),
    ):
        with pytest.raises(CheckpointError, match="expected best:adversary or best:runner"):
            misused()
    with pytest.raises(ConfigError, match="Write return/adversary or return/runner"):
        train(experiment, until="return>=5", run_dir=tmp_path / "x")
    for named, taken in (("best:runner", "adversary"), ("1:runner", "")):
        begins = assemble(experiment, init_from=f"{run.path}@{named}").policies["adversary"]
        assert (begins.source, begins.source_policy) == (f"{run.path}@{named}", taken)
    score = run.evaluate(episodes=2, checkpoint="best:runner")
    assert set(score.table()) == {"adversary", "runner"}
    with pytest.raises(ConfigError, match="got several"):
        _ = score.mean


def test_a_policy_against_itself_is_known_by_side(tmp_path: Path) -> None:
    run = train(
        "pettingzoo:classic.tictactoe_v3",
        layout="serial",
        steps=1_000,
        until="return/player_1>=-1 and return/player_2>=-1",
        set={**SMALL, "logging.window": 4, "evaluator.count": 1, "evaluator.episodes": 2},
        run_dir=tmp_path / "run",
        quiet=True,
    )
    summary = run.summary
    assert summary.reason.startswith("reached")
    agents = summary.policies["default"].agents
    assert set(agents) == {"player_1", "player_2"}
    last = read_metrics(run.path)[-1]
    for side, result in agents.items():
        assert result.episode_return_mean == last[f"agents.{side}.episode_return_mean"]
    score = run.evaluate(episodes=4)
    table = score.table()
    assert set(table) == {"default", "default/player_1", "default/player_2"}
    assert table["default/player_1"]["mean"] == -table["default/player_2"]["mean"]
    assert score.mean == 0.0
    against = run.evaluate(episodes=4, policies={"player_2": "random"})
    assert against.mean == against.table()["default"]["mean"]
    over = resume(run.path, set={"until": "return/player_2>=-2"}, quiet=True).summary
    assert over.reason == "reached return/player_2>=-2"
    assert over.env_steps == summary.env_steps, "it was over before it began"
    assert over.policies["default"].agents == agents
    for until in ("return/player_3>0", "return>0"):
        with pytest.raises(ConfigError, match=r"default/player_1 or (return/)?default/player_2"):
            train(
                "pettingzoo:classic.tictactoe_v3",
                layout="serial",
                until=until,
                run_dir=tmp_path / "x",
            )
    for side, result in agents.items():
        best = f"best:default/{side}"
        assert result.best_checkpoint == RunDir(run.path).store().find(best).number
        assert run.evaluate(episodes=1, checkpoint=best).returns["default"]
        begins = assemble("pettingzoo:classic.tictactoe_v3", init_from=f"{run.path}@{best}")
        assert begins.policies["default"].source_policy == "default"
    with pytest.raises(CheckpointError, match="expected best:default/player_1 or best:default/"):
        run.evaluate(checkpoint="best")


def test_a_frozen_policy_keeps_the_weights_of_its_source(tmp_path: Path) -> None:
    first = tag(tmp_path / "first")
    second = tag(tmp_path / "second", mode="frozen", source=str(first.path))
    before, after = weights(first, "runner"), weights(second, "runner")
    assert before
    assert all(np.array_equal(before[name], after[name]) for name in before)
    moved = weights(second, "adversary")
    assert any(not np.array_equal(weights(first, "adversary")[name], moved[name]) for name in moved)
    assert set(second.evaluate(episodes=2).returns) == {"adversary", "runner"}


def test_a_resumed_run_needs_its_source_no_more(tmp_path: Path) -> None:
    first = tag(tmp_path / "first")
    second = tag(tmp_path / "second", mode="frozen", source=str(first.path))
    before = weights(second, "runner")
    shutil.rmtree(first.path)
    again = resume(second.path, set={"steps": 800}, quiet=True)
    assert again.summary.env_steps >= 800
    after = weights(again, "runner")
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_a_run_with_kernels_goes_on_without_them(tmp_path: Path) -> None:
    given = {**SMALL, "network.kernels": "fast"}
    run = train("CartPole-v1", layout="serial", steps=200, run_dir=tmp_path, set=given, quiet=True)
    before = weights(run, "default")
    plain = {"network.kernels": "reference"}
    again = resume(run.path, set={"steps": 400, **plain}, quiet=True)
    assert again.summary.env_steps >= 400
    assert len(again.evaluate(episodes=1).returns) == 1
    assert set(weights(again, "default")) == set(before)


def test_trainers_of_several_policies_are_one_kind_to_the_report(tmp_path: Path) -> None:
    summary = tag(tmp_path / "run").summary
    assert set(summary.workers) == {"trainer", "policy", "actor"}
    assert summary.bottleneck_setting == "layout=inline"


@pytest.mark.parametrize("layout", ["serial", "inline"])
def test_a_run_without_an_update_has_failed(tmp_path: Path, layout: str) -> None:
    batch = r"needs 160,000 environment steps .*algorithm.rollout_length 10000"
    with pytest.raises(RunError, match=rf"no update was made in \d+ s.*{batch}"):
        train(
            "CartPole-v1",
            layout=layout,
            seconds=0.001,
            set={"algorithm.rollout_length": 10_000},
            run_dir=tmp_path,
            quiet=True,
        )
    summary = read_summary(tmp_path)
    assert summary.status == "failed"
    assert "no update was made" in (summary.error or "")
    assert summary.policy_version == 0
    assert summary.bottleneck == "too short to say: no update was done"
    assert summary.bottleneck_setting is None


def test_a_random_policy_has_no_trainer(tmp_path: Path) -> None:
    run = tag(tmp_path / "run", mode="random")
    assert run.summary.env_steps >= 400
    assert [kind for kind in run.summary.workers if kind.startswith("trainer")] == ["trainer"]
    assert set(run.policies) == {"adversary", "runner"}


def test_a_run_acts_and_another_starts_with_its_weights(tmp_path: Path) -> None:
    first = train(
        "CartPole-v1",
        layout="serial",
        steps=500,
        set=SMALL,
        run_dir=tmp_path / "first",
        quiet=True,
    )
    assert first.policy.act([0.0, 0.1, 0.0, -0.1]) in (0, 1)
    assert first.policies["default"].act(np.zeros((3, 4))).shape == (3,)
    # A learner that hardly moves shows where it started.
    second = train(
        "CartPole-v1",
        layout="serial",
        steps=60,
        seed=7,
        init_from=first.path,
        set={**SMALL, "algorithm.learning_rate": 1e-9},
        run_dir=tmp_path / "second",
        quiet=True,
    )
    before, after = weights(first, "default"), weights(second, "default")
    name = "encoder.mlp.layers.0.weight"
    np.testing.assert_allclose(after[name], before[name], atol=1e-6)


def test_what_was_learned_is_kept_whatever_fails_in_the_launcher(
    tmp_path: Path, shm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(status: StatusFile) -> None:
        if status._controller.env_steps:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(StatusFile, "step", fail)
    with pytest.raises(RunError, match="No space left on device"):
        train(
            "CartPole-v1",
            layout="inline",
            steps=10**9,
            set={**SMALL, "checkpoint.every_seconds": 1000},
            run_dir=tmp_path / "run",
            quiet=True,
        )
    assert RunDir(tmp_path / "run").store().find("latest").manifest.env_steps > 0
