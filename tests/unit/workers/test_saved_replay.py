"""What a replay worker keeps comes back from checkpoints, each piece of which is written once."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from test_replay_worker import LENGTH, STEPS, Setup

from srl.data.replay_columns import replay_bytes
from srl.data.spec import AgentSpec, ArraySpec, Discrete
from srl.data.trajectory import TrajectorySpec
from srl.errors import CheckpointError, ConfigError
from srl.launch.process.build import restore_worker, write_worker
from srl.services.checkpoints import Checkpoint, CheckpointConfig, CheckpointStore, Manifest
from srl.services.metrics_client import InlineMetrics
from srl.services.segments import SegmentFolder
from srl.workers import replay_segments
from srl.workers.replay import ReplayWorker

CAPACITY = 64
"""Fragments."""
SEGMENT = CAPACITY // replay_segments.LEAST_SEGMENTS


class Saved(Setup):
    """A replay worker with a folder for its segments, and the store of its run."""

    def __init__(self, run: Path, incarnation: int = 0, saves: bool = True, **settings: Any):
        usual = {"capacity_steps": CAPACITY * STEPS, "batches_per_step": 0.125}
        super().__init__(**{**usual, **settings})
        self.store = CheckpointStore(run, CheckpointConfig(keep_last=100, replay="last"))
        old = self.worker
        folder = SegmentFolder(run, "replay/0", incarnation) if saves else None
        self.worker = ReplayWorker(
            "replay/0",
            old._source,
            old._sinks,
            old._config,
            share=1.0,
            seed=1,
            feedback=old._feedback,
            incarnation=incarnation,
            folder=folder,
        )
        self.worker.stats = old.stats

    def fill(self, fragments: int) -> list[int]:
        """Acts so often; returns the steps that each batch counts."""
        found = []
        for _ in range(fragments):
            assert self.act()
            self.run()
            found += self.learn()
        return found

    def save(self, number: int, exact: bool = False) -> Checkpoint:
        folder = self.store.begin(number)
        write_worker(self.worker, folder, exact)
        manifest = Manifest(number=number, policy_versions={}, env_steps=0, episodes=0, exact=exact)
        return self.store.commit(folder, manifest)

    def restore(self, checkpoint: Checkpoint, exact: bool = False) -> None:
        restore_worker(self.worker, checkpoint, exact=exact)
        self.run()


def segments(checkpoint: Checkpoint) -> dict[str, int]:
    """The inodes of a checkpoint's segments."""
    names = [part.file for part in checkpoint.manifest.segments["replay/0"]]
    return {name: (checkpoint.path / name).stat().st_ino for name in names}


def test_sealed_segments_are_written_once_and_old_ones_go(tmp_path: Path) -> None:
    play = Saved(tmp_path)
    play.store.config = CheckpointConfig(keep_last=100, replay="always")
    play.fill(3 * SEGMENT + 2)
    first = segments(play.save(1))
    assert len(first) == 4
    play.fill(SEGMENT)
    second = segments(play.save(2))
    assert len(second) == 5
    kept = [name for name in first if second.get(name) == first[name]]
    assert len(kept) == 3, "all but the open one are the same files"
    play.fill(CAPACITY)
    third = segments(play.save(3))
    assert CAPACITY // SEGMENT <= len(third) <= CAPACITY // SEGMENT + 1
    assert not set(third) & set(first)
    (folder,) = tmp_path.glob(".segments-*")
    assert len(list(folder.iterdir())) <= len(third), "what is evicted is removed"
    assert play.store.latest_valid()[1] == ""
    play.worker.close()
    assert not list(tmp_path.glob(".segments-*"))


def test_it_goes_on_with_what_it_kept_and_without_a_warm_up(tmp_path: Path) -> None:
    settings = {"warmup_steps": 5 * STEPS, "sampler": "prioritized"}
    play = Saved(tmp_path, **settings)
    play.fill(2 * SEGMENT + 3)
    checkpoint = play.save(1)
    again = Saved(tmp_path, incarnation=0, **settings)
    again.worker.stats.set("count_stored", play.worker.replay.stored_steps + STEPS)
    again.restore(checkpoint)
    kept, back = play.worker.replay, again.worker.replay
    assert back.stored_steps == kept.stored_steps == (2 * SEGMENT + 3) * STEPS
    for one, other in zip(kept._stores, back._stores, strict=True):
        np.testing.assert_array_equal(one.array, other.array)
    assert again.worker.stats.get("count_lost") == STEPS
    # The first actors of the new run begin their sequences anew.
    before = again.worker.replay.sampler.num_starts
    assert again.fill(1) == [STEPS], "it draws at once, and counts new steps only"
    assert again.worker.replay.sampler.num_starts == before + LENGTH - 1, "it continues nothing"
    assert back.key_base != kept.key_base
    # Its segments are those of the checkpoint.
    new = segments(again.save(2))
    assert len(new) == 3
    assert play.store.list()[0].manifest.segments == {}, "only the newest has them"


def test_an_exact_checkpoint_keeps_the_keys(tmp_path: Path) -> None:
    play = Saved(tmp_path)
    play.fill(SEGMENT + 1)
    checkpoint = play.save(1, exact=True)
    again = Saved(tmp_path)
    again.restore(checkpoint, exact=True)
    assert again.worker.replay.key_base == play.worker.replay.key_base
    assert again.worker.replay.session == play.worker.replay.session


def test_adopted_segments_are_not_written_again(tmp_path: Path) -> None:
    play = Saved(tmp_path)
    play.fill(2 * SEGMENT + 1)
    checkpoint = play.save(1)
    old = segments(checkpoint)
    again = Saved(tmp_path)
    again.restore(checkpoint)
    new = segments(again.save(2))
    assert len(new) == 3
    assert [name for name in sorted(old) if new[name] == old[name]] == sorted(old)[:2]


def test_without_segments_it_begins_empty(tmp_path: Path) -> None:
    play = Saved(tmp_path)
    play.fill(SEGMENT + 1)
    play.save(1)
    play.save(2)
    (old, _) = play.store.list()
    assert not old.manifest.exact
    assert not list(old.path.glob("*.segment"))
    again = Saved(tmp_path)
    again.restore(old)
    assert again.worker.replay.stored_steps == 0
    never = Saved(tmp_path, saves=False)
    never.fill(1)
    assert not never.worker.restorable
    assert never.worker.state(exact=True) is None


@pytest.mark.parametrize("damage", ["cut", "changed", "gone"])
def test_a_damaged_segment_makes_a_checkpoint_invalid(tmp_path: Path, damage: str) -> None:
    play = Saved(tmp_path)
    play.store.config = CheckpointConfig(replay="always")
    play.fill(SEGMENT + 1)
    play.save(1)
    play.fill(1)
    newest = play.save(2)
    path = newest.path / sorted(segments(newest))[-1]
    if damage == "gone":
        path.unlink()
    else:
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data[:-1] if damage == "cut" else data)
    found, note = play.store.latest_valid()
    assert found is not None
    assert found.number == 1
    assert f"checkpoint 2 is corrupt: {path.name}" in note


def test_segments_that_do_not_fit_are_an_error(tmp_path: Path) -> None:
    play = Saved(tmp_path)
    play.fill(SEGMENT + 1)
    checkpoint = play.save(1)
    segments_of = checkpoint.manifest.segments["replay/0"]
    del segments_of[0]
    with pytest.raises(CheckpointError, match=r"segments that do not fit \(expected 9 fragments"):
        Saved(tmp_path).restore(checkpoint)


def test_what_does_not_fit_other_settings_is_left_and_the_run_says_so(tmp_path: Path) -> None:
    play = Saved(tmp_path)
    play.fill(SEGMENT + 1)
    checkpoint = play.save(1)
    notes: list[Any] = []
    again = Saved(tmp_path, capacity_steps=2 * CAPACITY * STEPS)
    again.worker._metrics = InlineMetrics(notes.append)
    again.restore(checkpoint)
    assert again.worker.replay.stored_steps == 0
    assert [note.text for note in notes] == [
        "what it kept does not fit these settings; its share is filled anew"
    ]


@pytest.mark.parametrize("frames", [50_000, 1_000_000, 10_000_000])
def test_little_of_a_large_replay_is_copied_at_once(frames: int) -> None:
    """Its memory is reserved and not written."""
    obs = ArraySpec(shape=(84, 84), dtype="uint8", stack=4)
    agent = AgentSpec(obs=obs, action=Discrete(6))
    spec = TrajectorySpec(length=8, rows=8, envs=8, agent=agent)
    shape = SimpleNamespace(
        stored=spec,
        capacity=frames // 64,
        nbytes=replay_bytes(spec, frames // 64),
    )
    segments = replay_segments.ReplaySegments(shape, None)  # type: ignore[arg-type]
    size = segments.length * replay_bytes(spec, 1)
    assert size <= max(replay_segments.SEGMENT_BYTES, shape.nbytes // 1024)
    assert 8 <= shape.capacity / segments.length <= 1100


def test_a_bound_on_bytes_lowers_the_number_of_steps() -> None:
    whole = Setup(capacity_steps=1000).worker.replay
    per_step = whole.nbytes / (whole.capacity * STEPS)
    bounded = Setup(capacity_steps=1000, capacity_bytes=int(100 * per_step)).worker.replay
    assert bounded.capacity == 100 // STEPS
    assert bounded.nbytes <= 100 * per_step
    loose = Setup(capacity_steps=1000, capacity_bytes=10**9).worker.replay
    assert loose.capacity == whole.capacity
    with pytest.raises(ConfigError, match=r"buffer_bytes: expected at least [\d,]+, .*got 99\."):
        Setup(capacity_steps=1000, capacity_bytes=99, warmup_steps=50)
