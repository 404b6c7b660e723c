"""The folder of a run: claimed once, locked, and with weights of others that are whole."""

from __future__ import annotations

import errno
import fcntl
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from srl.errors import CheckpointError, RunError
from srl.launch import run_dir
from srl.launch.run_dir import RunDir, new_run_dir
from srl.services.checkpoints import Manifest, weights_part, write_part
from srl.services.parts import FolderLock


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
    with pytest.raises(RunError, match="that locks files"), RunDir(tmp_path).locked():
        pass


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
        mine.keep_source(str(source.path), "agent", "player")
    file.write_bytes(whole)
    kept = mine.keep_source(str(source.path), "agent", "player")
    assert kept.read_bytes() == whole


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
