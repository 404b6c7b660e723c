"""Files are there whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from srl.files import write_atomically


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_replaced_by_another_and_never_written_again(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    write_atomically(path, b"first")
    with path.open("rb") as early:
        write_atomically(path, b"second", to_disk=True)
        assert early.read() == b"first", "who has opened it reads what it opened"
    assert path.read_bytes() == b"second"
    assert names(tmp_path) == ["state.json"]


def test_where_writing_fails_the_old_file_stays_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state.json"
    write_atomically(path, b"first")

    def full(fd: int) -> None:
        raise OSError(28, "No space left")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, b"second", to_disk=True)
    assert path.read_bytes() == b"first"
    assert names(tmp_path) == ["state.json"]


def test_what_is_private_can_be_read_by_its_owner_alone(tmp_path: Path) -> None:
    left = tmp_path / f".key.{os.getpid()}"
    left.write_bytes(b"of a process that died")
    left.chmod(0o644)
    write_atomically(tmp_path / "key", b"secret", private=True)
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    assert names(tmp_path) == ["key"]
