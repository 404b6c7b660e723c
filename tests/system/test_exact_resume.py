"""A seeded serial run is the same every time, also if it was interrupted and resumed."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import FAULTY, read_summary

from srl.algorithms.ppo.learner import PPO
from srl.data.tree import paths
from srl.experiment import Experiment
from srl.launch.directory.run_dir import RunDir
from srl.launch.run.launch import launch
from srl.overrides import override
from srl.recipes.target import find_experiment
from srl.services.checkpoints import read_part
from srl.workers.actor import ActorWorker
from srl.workers.trainer import TrainerWorker

pytestmark = pytest.mark.runs

SMALL = {
    "layout": "serial",
    "actor.envs": 4,
    "algorithm.rollout_length": 16,
    "checkpoint.every_seconds": 1000,
    "logging.sinks": [],
}
TEAM = "pettingzoo:mpe2.simple_tag_v3"


def experiment(
    target: str, steps: int, env_args: dict[str, Any] | None = None, **settings: Any
) -> Experiment:
    return override(find_experiment(target, env_args), {**SMALL, "steps": steps, **settings})


CASES = {
    "cartpole": experiment("CartPole-v1", 640, **{"algorithm.learning_rate_schedule": "linear"}),
    "pong": experiment("ALE/Pong-v5", 256, **{"actor.envs": 2, "network.image_features": 32}),
    "lstm": experiment("CartPole-v1", 640, **{"network.recurrent": "lstm"}),
    "replay": override(
        find_experiment("CartPole-v1", algorithm="dqn"),
        {
            **{name: value for name, value in SMALL.items() if "rollout" not in name},
            "steps": 640,
            "algorithm.replay": "prioritized",
            "algorithm.buffer_size": 512,
            "algorithm.learning_starts": 128,
        },
    ),
    "hide_and_seek": experiment(
        "hide_and_seek_fort", 640, {"horizon": 12}, **{"algorithm.chunk_length": 8}
    ),
}


def learned(run_dir: Path) -> dict[str, np.ndarray]:
    """Weights, optimizers, counters and episode statistics of the last checkpoint, flat."""
    checkpoint = RunDir(run_dir).store().find("latest")
    flat: dict[str, Any] = {"env_steps": checkpoint.manifest.env_steps}
    for name in checkpoint.manifest.parts:
        if name in ("arena", "process_loop"):
            continue
        part = read_part(checkpoint, name)
        if name == "collector":
            part = part["policies"]
        flat |= {f"{name}.{path}": value for path, value in paths(part)}
    # Times differ, and nothing else may.
    return {key: np.asarray(v) for key, v in flat.items() if not key.endswith("update_seconds")}


def assert_equal(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert one.keys() == other.keys()
    assert any("optimizer" in key for key in one)
    for key in one:
        np.testing.assert_array_equal(one[key], other[key], err_msg=key)


class WholeRuns(dict[str, dict[str, np.ndarray]]):
    """What the unbroken runs learned, each run once, and when it is asked for."""

    def __init__(self, factory: pytest.TempPathFactory) -> None:
        super().__init__()
        self._factory = factory

    def __missing__(self, name: str) -> dict[str, np.ndarray]:
        run_dir = self._factory.mktemp("whole")
        launch(CASES[name], run_dir, quiet=True)
        self[name] = learned(run_dir)
        return self[name]


@pytest.fixture(scope="module")
def whole_runs(tmp_path_factory: pytest.TempPathFactory) -> WholeRuns:
    return WholeRuns(tmp_path_factory)


@pytest.fixture
def interrupt(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Sends SIGINT to this process in the n-th call of a worker's method."""

    def at(kind: type, method: str, number: int) -> None:
        original = getattr(kind, method)
        calls = 0

        def counted(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == number:
                os.kill(os.getpid(), signal.SIGINT)
            return original(*args, **kwargs)

        monkeypatch.setattr(kind, method, counted)

    return at


def test_two_runs_with_one_seed_are_equal(tmp_path: Path, whole_runs: Any) -> None:
    launch(CASES["cartpole"], tmp_path, quiet=True)
    assert_equal(learned(tmp_path), whole_runs["cartpole"])
    other = dataclasses.replace(CASES["cartpole"], seed=2)
    launch(other, tmp_path / "other", quiet=True)
    key = next(k for k in learned(tmp_path) if k.startswith("weights.") and "action_head" in k)
    assert not np.array_equal(learned(tmp_path / "other")[key], learned(tmp_path)[key])


@pytest.mark.parametrize("case", CASES)
def test_an_interrupted_run_goes_on_as_if_it_had_not_been(
    case: str, tmp_path: Path, whole_runs: Any, interrupt: Any
) -> None:
    """In the middle of a fragment, and then in the middle of a learner step."""
    interrupt(ActorWorker, "_step_group", 37)
    summary = launch(CASES[case], tmp_path, quiet=True)
    assert summary.status == "stopped"
    assert RunDir(tmp_path).store().find("latest").manifest.exact

    interrupt(TrainerWorker, "_fill", 9)
    summary = launch(CASES[case], tmp_path, quiet=True)
    assert summary.status == "stopped"

    summary = launch(CASES[case], tmp_path, quiet=True)
    assert summary.status == "finished"
    assert_equal(learned(tmp_path), whole_runs[case])


def test_a_learner_step_that_was_given_up_is_done_again(
    tmp_path: Path, whole_runs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal comes between two minibatches, so the step is undone and its batch kept."""
    undone = []
    original = PPO.rollback
    monkeypatch.setattr(
        PPO, "rollback", lambda self: (undone.append(self.num_updates), original(self))
    )
    beat = TrainerWorker._fill
    in_update = 0

    def fill(self: TrainerWorker) -> bool:
        nonlocal in_update
        in_update += self._training.full
        if in_update == 7:
            os.kill(os.getpid(), signal.SIGINT)
        return beat(self)

    monkeypatch.setattr(TrainerWorker, "_fill", fill)
    assert launch(CASES["cartpole"], tmp_path, quiet=True).status == "stopped"
    assert undone
    monkeypatch.undo()

    assert launch(CASES["cartpole"], tmp_path, quiet=True).status == "finished"
    assert_equal(learned(tmp_path), whole_runs["cartpole"])


def test_environments_without_state_start_their_episodes_anew(
    tmp_path: Path, interrupt: Any
) -> None:
    wanted = experiment(f"{FAULTY}:StatelessEnv", 640)
    interrupt(ActorWorker, "_step_group", 90)
    before = launch(wanted, tmp_path, quiet=True)
    assert before.status == "stopped"
    manifest = RunDir(tmp_path).store().find("latest").manifest
    assert not manifest.exact
    kept = learned(tmp_path)

    after = launch(wanted, tmp_path, quiet=True)
    assert after.status == "finished"
    assert after.policy_version > before.policy_version > 0
    assert after.episodes > before.episodes
    updates = "trainer/0.learner.algorithm.num_updates"
    assert learned(tmp_path)[updates] == after.policy_version
    assert kept[updates] == before.policy_version


def test_two_policies_are_reproducible_and_go_on(tmp_path: Path, interrupt: Any) -> None:
    """PettingZoo has no way to ask an environment for its state: episodes start anew."""
    wanted = experiment(TEAM, 320, **{"actor.envs": 2})
    for name in ("one", "other"):
        launch(wanted, tmp_path / name, quiet=True)
    assert_equal(learned(tmp_path / "one"), learned(tmp_path / "other"))

    interrupt(ActorWorker, "_step_group", 60)
    before = launch(wanted, tmp_path / "broken", quiet=True)
    after = launch(wanted, tmp_path / "broken", quiet=True)
    assert (before.status, after.status) == ("stopped", "finished")
    assert after.policy_version > before.policy_version > 0


def test_a_serial_checkpoint_goes_on_in_processes(tmp_path: Path, shm: Path) -> None:
    wanted = experiment("CartPole-v1", 320)
    before = launch(wanted, tmp_path, quiet=True)
    again = dataclasses.replace(wanted, layout="inline", steps=640)
    after = launch(again, tmp_path, quiet=True)
    assert after.status == "finished"
    assert after.policy_version > before.policy_version
    assert after.env_steps >= 640
    serial = dataclasses.replace(wanted, steps=960)
    assert launch(serial, tmp_path, quiet=True).env_steps >= 960
    assert read_summary(tmp_path)["status"] == "finished"


def test_the_configuration_in_the_run_is_enough_to_reproduce_it(
    tmp_path: Path, whole_runs: Any
) -> None:
    launch(CASES["lstm"], tmp_path / "first", quiet=True)
    read = RunDir(tmp_path / "first").read_config()
    launch(read, tmp_path / "second", quiet=True)
    assert_equal(learned(tmp_path / "second"), whole_runs["lstm"])
