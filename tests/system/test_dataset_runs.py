"""Runs without actors: a dataset in place of them, in real processes that are killed."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from harness import Training, checkpoints, read_summary, wait_for

from srl.datasets.episode import Episode
from srl.datasets.writer import DatasetWriter
from srl.envs.protocol import EnvConfig
from srl.envs.registry import probe_spaces
from srl.services.checkpoints import open_checkpoint, read_part, weights_part

pytest.importorskip("h5py", reason="needs the extra `datasets`")
pytestmark = pytest.mark.runs
Start = Callable[..., Training]


@pytest.fixture
def arguments(tmp_path: Path) -> tuple[str, ...]:
    """Learns from 20 random episodes of CartPole."""
    spaces, random = probe_spaces(EnvConfig(id="CartPole-v1"))["agent"], np.random.default_rng(0)
    folder = tmp_path / "data"
    with DatasetWriter(
        folder, observation_space=spaces.observation, action_space=spaces.action
    ) as writer:
        for count in range(20, 40):
            writer.add(
                Episode(
                    observations=random.normal(size=(count + 1, 4)).astype(np.float32),
                    actions=random.integers(2, size=count),
                    rewards=np.ones(count),
                    terminations=np.arange(count) == count - 1,
                    truncations=np.zeros(count, bool),
                )
            )
        writer.finish()
    settings = (f"algorithm.dataset={folder}", "logging.interval_seconds=0.1")
    each = [word for setting in settings for word in ("--set", setting)]
    return ("CartPole-v1", "--algorithm", "bc", "--set", "checkpoint.every_seconds=1", *each)


def weights_after(training: Training) -> dict[str, np.ndarray]:
    checkpoint = open_checkpoint(checkpoints(training.run_dir)[-1])
    return read_part(checkpoint, weights_part("default"))


def test_the_dataset_worker_and_the_trainer_may_be_killed(
    start: Start, arguments: tuple[str, ...]
) -> None:
    training = start(*arguments, "--layout", "shared", "--steps", "1e9")
    training.wait_for_updates(5)
    assert set(training.workers()) == {"dataset-0", "trainer-0", "evaluator-0"}
    for name in ("dataset-0", "trainer-0"):
        pid = training.workers()[name].pid
        training.workers()[name].kill()

        def replaced(name: str = name, pid: int = pid) -> bool:
            training.check_running()
            worker = training.workers().get(name)
            return worker is not None and worker.pid != pid

        wait_for(replaced, f"another {name}")
        training.wait_for_updates(5)
    assert training.stop(signal.SIGINT) == 130
    kept = read_summary(training.run_dir)
    flow = {k.rpartition(".")[2]: v for k, v in kept["metrics"].items() if "samples.default" in k}
    assert flow["produced"] >= flow["consumed"] > 0
    assert "trainer" in kept["bottleneck"]
    assert training.survivors() == []


def test_a_resumed_run_learns_as_one_that_never_stopped(
    start: Start, arguments: tuple[str, ...]
) -> None:
    serial = (*arguments, "--layout", "serial", "--set", "evaluator.count=0")
    whole = start(*serial, "--steps", "60000", run="whole")
    assert whole.wait() == 0
    part = start(*serial, "--steps", "20000", run="part")
    assert part.wait() == 0
    again = start("", "--steps", "60000", verb="resume", run="part")
    assert again.wait() == 0
    expected, found = weights_after(whole), weights_after(part)
    for name, array in expected.items():
        np.testing.assert_array_equal(array, found[name], err_msg=name)
    assert read_summary(part.run_dir)["env_steps"] == read_summary(whole.run_dir)["env_steps"]
