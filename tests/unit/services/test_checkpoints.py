import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from srl.errors import CheckpointError, ConfigError
from srl.services import checkpoint_parts
from srl.services.checkpoints import (
    CheckpointConfig,
    CheckpointStore,
    Manifest,
    read_weights,
    weights_part,
    write_part,
)

STATE = {
    "step": 2**80,
    "rng": b"\x00\x01",
    "rows": [np.arange(6, dtype=np.int64).reshape(2, 3), None],
    "nested": {"mean": np.ones(3), "name": "x"},
}


def open_store(path, **config):
    return CheckpointStore(path / "checkpoints", CheckpointConfig(**config))


def save(store, number, score=None, version=None, size=100):
    folder = store.begin(number)
    write_part(folder, "actor/0", STATE)
    write_part(folder, weights_part("agent"), {"w": np.full(size, float(number))})
    return store.commit(folder, manifest(number, score, version))


def manifest(number, score=None, version=None):
    versions = {"agent": number * 10 if version is None else version}
    scores = {} if score is None else {"agent": score}
    return Manifest(
        number=number, policy_versions=versions, env_steps=number * 1000, episodes=5, scores=scores
    )


def numbers(store):
    return [checkpoint.number for checkpoint in store.list()]


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


def test_what_was_saved_is_loaded(tmp_path):
    saved = save(open_store(tmp_path), 7, score=1.5)
    store = open_store(tmp_path)
    found = store.find("latest")
    assert found == saved
    assert found.path.name == "000000007"
    assert found.manifest.scores == {"agent": 1.5}
    assert found.manifest.srl_version
    parts = store.load(found)
    assert sorted(parts) == ["actor/0", "weights.agent"]
    state = parts["actor/0"]
    assert state["step"] == STATE["step"]
    assert state["rng"] == STATE["rng"]
    assert state["rows"][0].dtype == np.int64
    np.testing.assert_array_equal(state["rows"][0], STATE["rows"][0])
    np.testing.assert_array_equal(read_weights(found, "agent")["w"], np.full(100, 7.0))
    with pytest.raises(CheckpointError, match=r"did you mean 'weights.agent'"):
        read_weights(found, "agnet")
    assert sorted(os.listdir(tmp_path / "checkpoints")) == ["000000007"]
    assert ".lock" not in os.listdir(found.path)


def test_the_manifest_lists_hashes_and_sizes(tmp_path):
    found = save(open_store(tmp_path), 1)
    plain = json.loads((found.path / "manifest.json").read_text())
    part = plain["parts"]["actor/0"]
    assert part["file"] == "actor%2F0.safetensors"
    assert part["bytes"] == (found.path / part["file"]).stat().st_size
    assert len(part["sha256"]) == 64
    assert plain["exact"] is False


@pytest.mark.parametrize("at", [0, 9, 200, -1])
def test_one_flipped_byte_in_a_part_is_noticed(tmp_path, at):
    store = open_store(tmp_path)
    save(store, 1)
    broken = save(store, 2)
    flip(broken.path / "weights.agent.safetensors", at)
    with pytest.raises(CheckpointError, match=r"weights.agent.safetensors is not what was written"):
        store.load(broken)
    with pytest.raises(CheckpointError, match="checkpoint 2 is corrupt"):
        read_weights(broken, "agent")
    found, note = store.latest_valid()
    assert found is not None
    assert found.number == 1
    assert "checkpoint 2 is corrupt: weights.agent.safetensors is not what was written" in note
    assert "falling back to checkpoint 1" in note


def test_any_flipped_byte_in_the_manifest_is_noticed(tmp_path):
    store = open_store(tmp_path)
    save(store, 1)
    broken = save(store, 2)
    path = broken.path / "manifest.json"
    whole = path.read_bytes()
    for at in range(0, len(whole), 7):
        path.write_bytes(whole)
        flip(path, at)
        found, note = open_store(tmp_path).latest_valid()
        assert found is not None
        assert found.number == 1, at
        assert "manifest.json" in note


def test_a_truncated_part_and_a_missing_part_are_noticed(tmp_path):
    store = open_store(tmp_path)
    for number in (1, 2, 3):
        save(store, number)
    cut = tmp_path / "checkpoints/000000003/actor%2F0.safetensors"
    size = cut.stat().st_size
    os.truncate(cut, size - 5)
    (tmp_path / "checkpoints/000000002/actor%2F0.safetensors").unlink()
    found, note = open_store(tmp_path).latest_valid()
    assert found is not None
    assert found.number == 1
    assert f"actor%2F0.safetensors has {size - 5} bytes instead of {size}" in note
    assert "checkpoint 2 is corrupt: actor%2F0.safetensors is unreadable" in note


def test_sizes_are_compared_before_anything_is_hashed(tmp_path, monkeypatch):
    store = open_store(tmp_path)
    with (save(store, 1).path / "weights.agent.safetensors").open("ab") as last:
        last.write(b"more")
    monkeypatch.setattr(
        "srl.services.checkpoint_parts._sha256", lambda path: pytest.fail(f"{path} is read")
    )
    with pytest.raises(CheckpointError, match=r"no whole checkpoint is left .* bytes instead of"):
        store.latest_valid()


def test_only_so_many_damaged_checkpoints_are_looked_into(tmp_path, monkeypatch):
    monkeypatch.setattr("srl.services.checkpoints.MOST_DAMAGED", 3)
    store = open_store(tmp_path, keep_last=9)
    for number in range(1, 5):
        save(store, number)
    for number in (2, 3, 4):
        flip(tmp_path / f"checkpoints/00000000{number}/weights.agent.safetensors", -1)
    with pytest.raises(CheckpointError, match="none of the newest 3 checkpoints is whole"):
        store.latest_valid()
    shutil.rmtree(tmp_path / "checkpoints/000000004")
    assert open_store(tmp_path).latest_valid()[0].number == 1


def test_nothing_whole_left_is_an_error_and_nothing_at_all_is_not(tmp_path):
    store = open_store(tmp_path)
    assert store.latest_valid() == (None, "")
    flip(save(store, 1).path / "manifest.json", 20)
    with pytest.raises(CheckpointError, match=r"no whole checkpoint is left .*--fresh"):
        store.latest_valid()
    with pytest.raises(CheckpointError, match=r"no whole checkpoint is left .*manifest\.json"):
        store.find("latest")


def test_a_damaged_checkpoint_does_not_push_out_whole_ones(tmp_path):
    store = open_store(tmp_path, keep_last=2)
    for number in (1, 2):
        save(store, number)
    flip(tmp_path / "checkpoints/000000002/weights.agent.safetensors", -1)
    store = open_store(tmp_path, keep_last=2)
    assert store.latest_valid()[0].number == 1
    assert store.next_number() == 3
    save(store, 3)
    assert numbers(store) == [1, 3]


def test_a_damaged_checkpoint_may_be_written_anew(tmp_path):
    store = open_store(tmp_path)
    save(store, 1)
    flip(save(store, 2).path / "manifest.json", 20)
    assert numbers(store) == [1]
    save(store, 2, score=3.0)
    assert store.latest_valid()[0].manifest.scores == {"agent": 3.0}


def test_the_last_few_the_best_and_the_tagged_stay(tmp_path):
    store = open_store(tmp_path, keep_last=2)
    scores = {1: 1.0, 2: 9.0, 3: None, 4: 5.0, 5: float("nan"), 6: 2.0, 7: 3.0}
    for number, score in scores.items():
        checkpoint = save(store, number, score)
        if number == 3:
            assert store.tag(checkpoint, "halfway").tags == ("halfway",)
    assert numbers(store) == [2, 3, 6, 7]
    assert store.find("best").number == 2
    assert store.find("halfway").number == 3
    assert sorted(os.listdir(store.directory)) == [f"{n:09d}" for n in (2, 3, 6, 7)]
    save(store, 8, 9.0)
    assert numbers(store) == [3, 7, 8], "of equal scores the newest is best"


def test_each_policy_has_a_best_checkpoint_of_its_own(tmp_path):
    store = open_store(tmp_path, keep_last=1)
    played = [{"red": 9.0}, {"red": 1.0, "blue": -1.0}, {"red": 2.0, "blue": -2.0}, {}]
    for number, scores in enumerate(played, start=1):
        versions = {"red": number, "blue": 10 * number}
        store.commit(
            store.begin(number),
            Manifest(
                number=number, policy_versions=versions, env_steps=1, episodes=1, scores=scores
            ),
        )
    assert numbers(store) == [1, 2, 4]
    assert {policy: found.number for policy, found in store.best().items()} == {"red": 1, "blue": 2}
    assert store.find("best:red").number == 1
    assert store.find("best:blue").number == store.find("best", "blue").number == 2
    assert store.find("v10:blue").number == 1
    with pytest.raises(CheckpointError, match="no checkpoint 'v10:red'"):
        store.find("v10:red")
    for wrong in ("best", "best:green"):
        with pytest.raises(CheckpointError, match=f"expected best:red or best:blue.*'{wrong}'"):
            store.find(wrong)


def test_each_side_of_a_policy_has_a_best_checkpoint(tmp_path):
    store = open_store(tmp_path, keep_last=1)
    played = [{"both/x": 0.9, "both/o": -0.9}, {"both/x": -0.5, "both/o": 0.5}, {}]
    for number, scores in enumerate(played, start=1):
        known = {"policy_versions": {"both": number}, "env_steps": 1, "episodes": 1}
        store.commit(store.begin(number), Manifest(number=number, scores=scores, **known))
    assert numbers(store) == [1, 2, 3]
    assert store.find("best:both/x").number == 1
    assert store.find("best:both/o", "both").number == 2
    for wrong in ("best", "best:both", "best:both/y"):
        with pytest.raises(CheckpointError, match="expected best:both/x or best:both/o, because"):
            store.find(wrong)
    with pytest.raises(CheckpointError, match=r"expected best:both, because .* 'best:x'"):
        store.find("best:x")


def test_keep_best_may_be_off(tmp_path):
    store = open_store(tmp_path, keep_last=1, keep_best=False)
    for number, score in ((1, 9.0), (2, 1.0)):
        save(store, number, score)
    assert numbers(store) == [2]


def test_a_tag_moves_and_has_a_name_of_its_own(tmp_path):
    store = open_store(tmp_path, keep_last=1)
    store.tag(save(store, 1), "good")
    store.tag(save(store, 2), "good")
    assert store.find("good").number == 2
    save(store, 3)
    assert numbers(store) == [2, 3]
    for wrong in ("best", "latest", "12", "v12", "../x", ""):
        with pytest.raises(CheckpointError, match="tag: expected"):
            store.tag(store.find("latest"), wrong)


def test_a_number_and_a_policy_version_are_named_differently(tmp_path):
    store = open_store(tmp_path)
    save(store, 1, version=2)
    store.tag(save(store, 2, version=40), "final")
    assert store.find("1").number == 1
    assert store.find("2").number == 2
    assert store.find("v2").number == 1
    assert store.find("v40").number == 2
    assert store.find("final").number == 2
    with pytest.raises(CheckpointError, match=r"'40': that is a policy version.* 'v40'"):
        store.find("40")
    with pytest.raises(CheckpointError, match=r"no checkpoint 'v1': .*1 \(v2\), 2 \(v40\)"):
        store.find("v1")
    with pytest.raises(CheckpointError, match=r"no checkpoint '77': .*1 \(v2\), 2 \(v40\)"):
        store.find("77")


def test_a_version_is_that_of_the_policy_that_is_asked_for(tmp_path):
    store = open_store(tmp_path)
    for number, versions in ((1, {"red": 10, "blue": 20}), (2, {"red": 20, "blue": 30})):
        folder = store.begin(number)
        manifest = Manifest(number=number, policy_versions=versions, env_steps=1, episodes=0)
        store.commit(folder, manifest)
    assert store.find("v20", "red").number == 2
    assert store.find("v20", "blue").number == 1
    assert store.find("v10", "frozen").number == 1
    with pytest.raises(CheckpointError, match="no checkpoint 'v10'"):
        store.find("v10", "blue")


def test_a_name_that_no_checkpoint_has_is_answered_with_the_nearest(tmp_path):
    store = open_store(tmp_path)
    store.tag(save(store, 2, version=40), "final")
    with pytest.raises(CheckpointError, match="no checkpoint 'lastest': did you mean 'latest'"):
        store.find("lastest")
    with pytest.raises(CheckpointError, match="did you mean 'final'"):
        store.find("finale")
    with pytest.raises(CheckpointError, match="no checkpoint has a score of policy 'agent' yet"):
        store.find("best")


@pytest.mark.parametrize("stage", ["begun", "written", "manifest"])
def test_a_writer_killed_before_the_rename_leaves_nothing_to_list(tmp_path, stage):
    save(open_store(tmp_path), 1)
    code = f"""
        import os, signal, sys
        sys.path.insert(0, {os.path.dirname(__file__)!r})
        from test_checkpoints import *
        from srl.services import checkpoints
        die = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        store = open_store(Path({str(tmp_path)!r}))
        folder = store.begin(2)
        if {stage!r} == "begun": die()
        write_part(folder, "actor/0", STATE)
        if {stage!r} == "written": die()
        checkpoints.os.rename = die
        store.commit(folder, manifest(2))
    """
    code = "from pathlib import Path\n" + textwrap.dedent(code)
    killed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert killed.returncode == -9, killed.stderr
    left = [name for name in os.listdir(tmp_path / "checkpoints") if name.startswith(".tmp")]
    assert len(left) == 1
    store = open_store(tmp_path)
    assert numbers(store) == [1]
    assert store.latest_valid()[0].number == 1
    assert len(os.listdir(store.directory)) == 2, "readers remove nothing"
    store.remove_leftovers()
    assert os.listdir(store.directory) == ["000000001"]


def test_a_reader_leaves_the_checkpoint_that_is_being_written_alone(tmp_path):
    writer = open_store(tmp_path)
    folder = writer.begin(1)
    write_part(folder, "actor/0", STATE)
    reader = open_store(tmp_path)
    assert reader.list() == []
    assert folder.is_dir()
    writer.commit(folder, manifest(1))
    assert numbers(reader) == [1]


def test_an_aborted_checkpoint_is_gone_and_its_workers_are_told(tmp_path):
    store = open_store(tmp_path)
    folder = store.begin(1)
    store.abort(folder)
    assert os.listdir(store.directory) == []
    with pytest.raises(CheckpointError, match="is gone: another worker could not write"):
        write_part(folder, "actor/0", STATE)
    with pytest.raises(CheckpointError, match="cannot write checkpoint 1"):
        store.commit(folder, manifest(1))


def test_a_checkpoint_that_is_aborted_while_a_part_is_written_is_no_full_disk(
    tmp_path, monkeypatch
):
    store = open_store(tmp_path)
    folder = store.begin(1)
    sync = checkpoint_parts.sync
    monkeypatch.setattr(checkpoint_parts, "sync", lambda path: (sync(path), store.abort(folder)))
    with pytest.raises(CheckpointError, match="this one took too long") as caught:
        write_part(folder, "actor/0", STATE)
    assert "space" not in str(caught.value)


@pytest.fixture
def small_disk(tmp_path):
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root")
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk])
    if mounted.returncode:
        pytest.skip("this container may not mount a tmpfs")
    yield disk
    subprocess.run(["umount", "--lazy", disk], check=True)


def test_a_full_disk_while_a_part_is_written(small_disk):
    store = open_store(small_disk)
    save(store, 1)
    with pytest.raises(CheckpointError) as caught:
        save(store, 2, size=200_000)
    message = str(caught.value)
    assert "part 'weights.agent'" in message
    assert "the disk is full (needs 1.6 MB, " in message
    assert " MB free)" in message
    assert str(store.directory) in message
    assert os.listdir(store.directory) == ["000000001"]
    assert store.latest_valid()[0].number == 1
    store.load(store.find("latest"))
    save(store, 2)
    assert numbers(store) == [1, 2], "the next one that fits is written"


def fill(path):
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def test_a_full_disk_while_the_manifest_is_written(small_disk):
    store = open_store(small_disk)
    save(store, 1)
    folder = store.begin(2)
    write_part(folder, "actor/0", STATE)
    filler = small_disk / "filler"
    fill(filler)
    with pytest.raises(CheckpointError, match=r"checkpoint 2 .*the disk is full .*free"):
        store.commit(folder, manifest(2))
    filler.unlink()
    assert os.listdir(store.directory) == ["000000001"]


def test_a_file_size_limit_is_a_checkpoint_error_too(tmp_path):
    save(open_store(tmp_path), 1)
    code = f"""
        import resource, sys
        sys.path.insert(0, {os.path.dirname(__file__)!r})
        from test_checkpoints import *
        from pathlib import Path
        store = open_store(Path({str(tmp_path)!r}))
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
        try:
            save(store, 2, size=200_000)
        except CheckpointError as error:
            print(error, os.listdir(store.directory))
    """
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True
    )
    assert "File too large" in run.stdout
    assert "['000000001']" in run.stdout


@pytest.mark.parametrize("wrong", [{"keep_last": 0}, {"every_seconds": 0}])
def test_wrong_settings_are_named(wrong):
    with pytest.raises(ConfigError, match=rf"checkpoint.{next(iter(wrong))}: .*got 0"):
        CheckpointConfig(**wrong)


def test_a_part_whose_writer_died_over_it_is_none(tmp_path, monkeypatch):
    store = open_store(tmp_path)
    folder = store.begin(1)
    write_part(folder, "trainer/0", STATE)

    def dies(path, state):
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint_parts, "save_state", dies)
    with pytest.raises(KeyboardInterrupt):
        write_part(folder, "actor/0", STATE)
    made = store.commit(folder, manifest(1))
    assert made.manifest.parts.keys() == {"trainer/0"}
    assert not list(made.path.glob("*.unfinished"))
    assert store.latest_valid() is not None


def test_a_folder_that_is_taken_for_a_dead_ones_before_it_is_locked_is_made_again(
    tmp_path, monkeypatch
):
    store, flock = open_store(tmp_path), fcntl.flock

    def late(file, operation):
        monkeypatch.undo()
        open_store(tmp_path)
        return flock(file, operation)

    monkeypatch.setattr(checkpoint_parts.fcntl, "flock", late)
    folder = store.begin(1)
    write_part(folder, "actor/0", STATE)
    open_store(tmp_path)
    assert folder.exists()
    store.commit(folder, manifest(1))
