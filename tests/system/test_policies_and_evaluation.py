"""Evaluation beside training, policies that are frozen or random, and weights of other runs."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from srl.envs.protocol import EnvConfig
from srl.errors import RunError
from srl.experiment import Experiment, PolicyConfig
from srl.launch.run_dir import find_checkpoint
from srl.launch.status import StatusFile
from srl.run import Run, resume, train
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
    assert find_checkpoint(str(run.path)).manifest.score == run.summary.eval_return_mean


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
    return read_weights(find_checkpoint(str(run.path)), policy)


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


def test_trainers_of_several_policies_are_one_kind_to_the_report(tmp_path: Path) -> None:
    summary = tag(tmp_path / "run").summary
    assert set(summary.workers) == {"trainer", "policy", "actor"}
    assert summary.bottleneck_setting == "layout=inline"


def test_a_run_without_an_update_is_not_explained(tmp_path: Path) -> None:
    run = train(
        "CartPole-v1",
        layout="serial",
        seconds=0.001,
        set={"algorithm.rollout_length": 10_000},
        run_dir=tmp_path,
        quiet=True,
    )
    assert run.summary.policy_version == 0
    assert run.summary.bottleneck == "too short to say: no update was done"
    assert run.summary.bottleneck_setting is None


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
    assert find_checkpoint(str(tmp_path / "run")).manifest.env_steps > 0
