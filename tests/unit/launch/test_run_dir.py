"""The folder of a run: claimed once, locked, and with weights of others that are whole."""

from __future__ import annotations

import dataclasses
import errno
import fcntl
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from srl.envs.protocol import EnvConfig
from srl.errors import CheckpointError, ConfigError, RunError
from srl.experiment import Experiment, PolicyConfig
from srl.launch.directory import run_dir
from srl.launch.directory.run_dir import RunDir, new_run_dir, split_source, weights_of
from srl.services.checkpoint_parts import FolderLock
from srl.services.checkpoints import Manifest, weights_part, write_part


def test_runs_of_the_same_second_have_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_dir.time, "strftime", lambda _: "now")
    assert [new_run_dir("a", 1).name for _ in range(2)] == ["a-now-seed1", "a-now-seed1-2"]


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(RunError, match=r"file/run: cannot be a run's folder \(Not a directory\)"),
        RunDir(tmp_path / "file" / "run").locked(),
    ):
        pass


def test_a_disk_without_locks_is_not_another_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(RunError, match="that supports file locks"), RunDir(tmp_path).locked():
        pass


SHAPES = {"w": ((50,), "float64")}


def trained(path: Path) -> RunDir:
    """A run with one checkpoint."""
    directory = RunDir(path)
    path.mkdir()
    (path / "config.yaml").write_text("{}")
    store = directory.store()
    folder = store.begin(1)
    write_part(folder, weights_part("agent"), {"w": np.arange(50.0)})
    store.commit(folder, Manifest(number=1, policy_versions={}, env_steps=1, episodes=0))
    return directory


def test_damaged_weights_of_another_run_are_not_taken_over(tmp_path: Path) -> None:
    source = trained(tmp_path / "source")
    file = next(source.checkpoints.glob("*/weights*"))
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    mine = RunDir(tmp_path / "mine")
    mine.path.mkdir()
    with pytest.raises(CheckpointError, match=r"checkpoint 1 is corrupt: .*SHA-256"):
        mine.keep_source(str(source.path), "agent", "player", SHAPES)
    file.write_bytes(whole)
    kept = mine.keep_source(str(source.path), "agent", "player", SHAPES)
    assert kept.read_bytes() == whole


def test_the_best_of_a_source_is_that_of_the_policy_that_is_taken(tmp_path: Path) -> None:
    directory = RunDir(tmp_path)
    (tmp_path / "config.yaml").write_text("{}")
    store = directory.store()
    played = [{"red": 9.0, "blue": -9.0}, {"red": 1.0, "blue": -1.0}, {}]
    for number, scores in enumerate(played, start=1):
        folder = store.begin(number)
        for policy in ("red", "blue"):
            write_part(folder, weights_part(policy), {"w": np.full(50, float(number))})
        versions = {"red": number, "blue": number}
        store.commit(
            folder,
            Manifest(
                number=number, policy_versions=versions, env_steps=1, episodes=1, scores=scores
            ),
        )

    def number_of(file: Path) -> int:
        return int(file.parent.name)

    at = str(tmp_path)
    assert number_of(weights_of(f"{at}@best", SHAPES, "red")) == 1
    assert number_of(weights_of(f"{at}@best", SHAPES, role="blue")) == 2
    assert number_of(weights_of(f"{at}@best:blue", SHAPES)) == 2
    chosen = weights_of(f"{at}@best:blue", SHAPES, "red", "other")
    assert number_of(chosen) == 2, "the checkpoint at which blue was best"
    assert "red" in chosen.name
    assert "blue" in weights_of(f"{at}@1:blue", SHAPES, role="red").name
    assert number_of(weights_of(at, SHAPES, role="red")) == 3
    with pytest.raises(CheckpointError, match="no policy 'green' in it; it has blue, red"):
        weights_of(f"{at}@best", SHAPES, role="green")
    with pytest.raises(CheckpointError, match="expected best:red or best:blue"):
        store.find("best")


def test_the_best_of_a_side_is_a_checkpoint_of_its_policy() -> None:
    assert split_source("runs/x@best:both/player_1") == (
        Path("runs/x"),
        "best:both/player_1",
        "both",
    )


def test_who_only_reads_removes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks of another host may not be seen here."""
    directory = trained(tmp_path / "run")
    writer = directory.store()
    folder = writer.begin(2)
    monkeypatch.setattr(FolderLock, "is_held", lambda folder: False)
    assert directory.store().find("latest").number == 1
    write_part(folder, weights_part("agent"), {"w": np.zeros(3)})
    writer.commit(folder, Manifest(number=2, policy_versions={}, env_steps=2, episodes=0))
    assert directory.store().find("latest").number == 2


def test_code_that_a_run_names_is_not_imported_to_compare_settings(tmp_path: Path) -> None:
    directory = trained(tmp_path / "run")
    mark = tmp_path / "imported"
    code = tmp_path / "code.py"
    code.write_text(f"open({str(mark)!r}, 'w')\nclass Mine: pass\n")
    experiment = Experiment(env=EnvConfig(id="CartPole-v1"))
    theirs = dataclasses.replace(experiment, algorithm={"name": f"{code}:Mine"})
    directory.write_config(theirs)
    with pytest.raises(ConfigError, match=r"algorithm.name: .*Mine' -> 'ppo'"):
        directory.check_resumable(experiment)
    assert not mark.exists()


def test_kernels_may_change_when_a_run_is_resumed(tmp_path: Path) -> None:
    directory = trained(tmp_path / "run")

    def choose(kernels: str, activation: str = "tanh") -> Experiment:
        network = {"name": "actor_critic", "kernels": kernels, "activation": activation}
        other = PolicyConfig(network={"kernels": kernels})
        return Experiment(
            env=EnvConfig(id="CartPole-v1"), network=network, policies={"default": other}
        )

    directory.write_config(choose("fast"))
    directory.check_resumable(choose("reference"))
    with pytest.raises(ConfigError, match=r"network.activation: 'tanh' -> 'relu'"):
        directory.check_resumable(choose("reference", "relu"))
