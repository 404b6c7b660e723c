"""Key files: private to their owner, and errors that say what to do."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from srl.errors import NetError
from srl.net.keys import JoinKey, KeyPair, join_key_path, load_join_key, make_run_keys, new_pair


def test_a_runs_keys_are_files_that_only_their_owner_may_read(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        keys = make_run_keys(tmp_path)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o700
    files = list((tmp_path / "keys").iterdir())
    assert {path.name for path in files} == {"join.key"}
    for path in files:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path.name
    join = load_join_key(join_key_path(tmp_path))
    assert join.head == keys.head.public
    assert join.pair == keys.join
    assert keys.head.secret not in join_key_path(tmp_path).read_text()


def test_every_start_of_every_run_has_keys_of_its_own(tmp_path: Path) -> None:
    made = [make_run_keys(tmp_path / name) for name in ("a", "a", "b")]
    secrets = [secret for keys in made for secret in (keys.head.secret, keys.join.secret)]
    assert len(set(secrets)) == len(secrets)
    assert load_join_key(join_key_path(tmp_path / "a")).pair == made[1].join, "the newest"


def test_no_secret_is_ever_printed(tmp_path: Path) -> None:
    keys = make_run_keys(tmp_path)
    join = load_join_key(join_key_path(tmp_path))
    for text in (repr(keys), str(keys.head), repr(join), f"{join}"):
        assert keys.head.secret not in text
        assert keys.join.secret not in text


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff\xfe", b'{"head": "x"}', b"[1, 2]"])
def test_a_file_that_holds_no_key_is_refused_with_what_to_do(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "join.key"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(NetError, match=r"join.key: expected a key file.*Copy it again"):
        load_join_key(path)


def test_a_missing_file_and_a_readable_one_are_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(NetError, match=r"got none.*Copy keys/join.key"):
        load_join_key(tmp_path / "join.key")
    make_run_keys(tmp_path)
    path = join_key_path(tmp_path)
    path.chmod(0o644)
    with pytest.raises(NetError, match=r"got mode 644.*chmod 600"):
        load_join_key(path)


@pytest.mark.parametrize("key", ["", "x", "é" * 40, " " * 40, "a" * 41])
def test_what_is_no_key_is_not_taken_for_one(key: str) -> None:
    good = new_pair()
    with pytest.raises(NetError, match="expected a key of 40 characters"):
        KeyPair(public=key, secret=good.secret)
    with pytest.raises(NetError, match="head: expected a key"):
        JoinKey(head=key, public=good.public, secret=good.secret)
