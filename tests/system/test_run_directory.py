"""What a run leaves on disk, and what its processes are made of."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from harness import SMALL, Training, checkpoints, read_summary

from srl.cli import main
from srl.errors import RunError
from srl.launch.directory.run_dir import RunDir
from srl.services.metrics import read_metrics

pytestmark = pytest.mark.runs

FIELDS = (
    "status", "env_steps", "seconds", "env_steps_per_second", "episodes", "episode_return_mean",
    "policy_version", "policy_age_mean", "workers", "bottleneck", "seconds_to_first_update",
)  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("finished") / "run"
    start = ["train", "CartPole-v1", "--run-dir", str(run_dir), "--steps", "3000", "--quiet"]
    assert main([*start, "--layout", "shared", *SMALL]) == 0
    return run_dir


def test_a_run_that_trains_is_not_replaced(tmp_path: Path) -> None:
    running = RunDir(tmp_path / "run")
    with running.locked():
        (running.path / "config.yaml").write_text("{}")
        with pytest.raises(RunError, match="another process is training here"):
            RunDir(running.path).clear()
        assert (running.path / "config.yaml").exists()
    RunDir(running.path).clear()
    assert list(running.path.iterdir()) == []


def test_a_run_directory_holds_what_is_promised(finished: Path) -> None:
    config = yaml.safe_load((finished / "config.yaml").read_text())
    assert config["layout"] == "shared"
    assert config["actor"]["count"] >= 1
    assert config["algorithm"]["gamma"] == 0.99
    assert config["network"]["hidden_sizes"]
    lines = read_metrics(finished)
    assert lines[-1]["env_steps"] >= 3000
    logs = {path.name for path in (finished / "logs").iterdir()}
    assert {"trainer-0.log", "policy-0.log", "actor-0.log", "controller.log"} <= logs
    for checkpoint in checkpoints(finished):
        manifest = json.loads((checkpoint / "manifest.json").read_text())
        for part in manifest["parts"].values():
            assert (checkpoint / part["file"]).suffix == ".safetensors"


def test_the_summary_has_its_fields(finished: Path) -> None:
    summary = read_summary(finished)
    for field in FIELDS:
        assert summary[field] is not None, field
    assert summary["status"] == "finished"
    assert summary["env_steps"] >= 3000
    for kind in ("actor", "policy", "trainer"):
        worker = summary["workers"][kind]
        assert 0 <= worker["busy"] <= 1
        assert worker["waited_for"] in worker["waits"]


def test_all_that_a_run_has_written_is_known_to_be_its_own(finished: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(finished, copy)
    RunDir(copy).clear()
    assert list(copy.rglob("*")) == []


def test_tensorboard_reads_the_events(finished: Path) -> None:
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator"
    ).EventAccumulator(str(finished))
    accumulator.Reload()
    tags = accumulator.Tags()["scalars"]
    assert "speed/env_steps_per_second" in tags
    assert all("/" in tag and not tag.startswith("more/") for tag in tags)
    points = accumulator.Scalars("policy/policy_version")
    assert points[-1].value == read_summary(finished)["policy_version"]


def test_an_actor_whose_inference_is_elsewhere_has_no_torch(
    start: Callable[..., Training],
) -> None:
    training = start("CartPole-v1", "--layout", "shared", "--steps", "1e9", *SMALL)
    training.wait_for_updates(2)
    workers = training.workers()

    def loaded(name: str) -> str:
        return Path(f"/proc/{workers[name].pid}/maps").read_text()

    assert "torch" in loaded("policy-0")
    assert "torch" in loaded("trainer-0")
    assert "torch" not in loaded("actor-0")
    assert training.stop() == 130
