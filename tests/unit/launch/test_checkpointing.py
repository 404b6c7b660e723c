"""Checkpoints while some of those that write them are dead or have not started yet."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from srl.arena.arena import HeapArena
from srl.launch.process.worker import checkpoint_path, write_checkpoint_path
from srl.launch.run.checkpointing import Checkpointing
from srl.services.checkpoint_parts import hash_parts, write_part
from srl.services.checkpoints import CheckpointConfig, CheckpointStore
from srl.services.worker_stats import StatsTable

TRAINER, RELABELLER = "trainer/0", "curiosity/0"


class Run:
    """In place of a controller and its process table: who is alive writes when it is asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = SimpleNamespace(path=folder)
        self.store = CheckpointStore(folder / "checkpoints", CheckpointConfig())
        self.stats_table = StatsTable(HeapArena(), (TRAINER, RELABELLER))
        self.stats_table.rows[TRAINER].enter("running")
        workers = [
            SimpleNamespace(name=name, process=name, in_every_checkpoint=True, trains=trains)
            for name, trains in ((TRAINER, ("p",)), (RELABELLER, ()))
        ]
        self.plan = SimpleNamespace(workers=workers)
        self.alive = {TRAINER}
        self.last_checkpoint: Any = None
        self.checkpoint = ""
        self.number = 0
        controller: Any = self
        self.saving = Checkpointing(controller, controller)

    def is_alive(self, process: str) -> bool:
        return process in self.alive

    def notify(self, stats_table: StatsTable) -> None:
        pass

    def checkpoint_due(self) -> bool:
        return True

    def begin_checkpoint(self) -> tuple[int, Path]:
        self.number += 1
        return self.number, self.store.begin(self.number)

    def commit_checkpoint(self, number: int, folder: Path, *, exact: bool) -> Any:
        manifest = SimpleNamespace(parts=hash_parts(folder), segments={})
        self.last_checkpoint = SimpleNamespace(path=folder, manifest=manifest)
        return self.last_checkpoint

    def save(self) -> dict[str, str]:
        """The parts of the next checkpoint, and their hashes."""
        self.saving.step()
        where = Path(checkpoint_path(self.folder.path).read_text())
        for worker in self.alive:
            write_part(where, worker, {"number": np.array([self.number])})
            self.stats_table.rows[worker].set("checkpoint", self.number)
        self.saving.step()
        assert not self.saving.pending
        return {name: part.sha256 for name, part in self.last_checkpoint.manifest.parts.items()}


def test_who_is_dead_has_the_part_that_it_had_before(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.alive.add(RELABELLER)
    before = run.save()
    run.alive.remove(RELABELLER)
    after = run.save()
    assert after[RELABELLER] == before[RELABELLER]
    assert after[TRAINER] != before[TRAINER]
    assert run.stats_table.rows[RELABELLER].get("checkpoint") == run.number, "nobody waits for it"


def test_who_starts_later_is_not_asked_for_what_is_done(tmp_path: Path) -> None:
    run = Run(tmp_path)
    assert run.save().keys() == {TRAINER}
    assert run.stats_table.rows[RELABELLER].get("checkpoint") == run.stats_table.checkpoint
    run.alive.add(RELABELLER)
    assert run.save().keys() == {TRAINER, RELABELLER}


def test_where_a_checkpoint_is_written_is_never_half_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_checkpoint_path(tmp_path, "/one")

    def die(fd: int, mode: str) -> None:
        os.write(fd, b"/t")
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fdopen", die)
    with pytest.raises(KeyboardInterrupt):
        write_checkpoint_path(tmp_path, "/two")
    assert checkpoint_path(tmp_path).read_text() == "/one"
