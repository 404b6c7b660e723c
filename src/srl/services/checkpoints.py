"""Checkpoints that are either complete or absent: parts first, the manifest last, then one rename.

checkpoints/
    000000012/                  a checkpoint: its number
        weights.agent.safetensors   a part: what one worker wrote (quoted like a URL)
        trainer%2F0.safetensors
        replay%2F0.000000007.segment    a segment: a file that checkpoints share (segments.py)
        manifest.json               hashes and sizes of all these, and a hash of itself
        tags/final                  a tag: an empty file
    .tmp-000000013-812-f3/      unfinished; if its writer dies, the next writer removes it
"""

from __future__ import annotations

import builtins
import contextlib
import os
import re
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from srl.data.codec import load_state
from srl.data.tree import Tree
from srl.errors import CheckpointError, ConfigError, nearest
from srl.files import write_atomically
from srl.services.checkpoint_names import best_by_policy, choose, is_checkpoint, is_version
from srl.services.checkpoint_parts import (
    LOCK_FILE,
    UNFINISHED,
    CheckpointPart,
    FolderLock,
    cannot_write,
    hash_parts,
    sync,
    verify_part,
    write_part,
)
from srl.services.manifest import (
    MANIFEST_FILE,
    Checkpoint,
    Manifest,
    encode_manifest,
    open_checkpoint,
    tags_of,
)
from srl.services.segments import FOLDERS, collect_segments
from srl.version import VERSION

MOST_DAMAGED = 16
"""Damaged checkpoints that are examined before the search for a whole one ends."""
_TAG = re.compile(r"[A-Za-z][\w.-]*")
_TEMPORARY, _GONE = ".tmp-", ".gone-"

__all__ = [
    "Checkpoint",
    "CheckpointConfig",
    "CheckpointStore",
    "Manifest",
    "CheckpointPart",
    "open_checkpoint",
    "read_part",
    "read_weights",
    "weights_part",
    "write_part",
]


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """How often a run is saved, and which checkpoints are kept."""

    every_seconds: float = 30.0
    """Seconds between two checkpoints; one more is written when the run ends."""
    keep_last: int = 3
    """Number of newest checkpoints that are kept. The best and the tagged ones always are."""
    keep_best: bool = True
    """Keep each policy's checkpoint with the highest score (evaluation return, else training
    return)."""
    replay: Literal["never", "last", "always"] = "last"
    """Which checkpoints have what a replay keeps: none, the newest, or all. Without it a resumed
    run fills its replay anew before it learns. It is written once, as it comes in, and takes about
    as much room on the disk as in memory."""

    def __post_init__(self) -> None:
        if self.every_seconds <= 0:
            raise ConfigError(
                f"checkpoint.every_seconds: expected more than 0, got {self.every_seconds}."
            )
        if self.keep_last < 1:
            raise ConfigError(f"checkpoint.keep_last: expected at least 1, got {self.keep_last}.")
        if self.replay not in ("never", "last", "always"):
            raise ConfigError(
                f"checkpoint.replay: expected never, last or always, got {self.replay!r}."
            )


def weights_part(policy: str) -> str:
    """The name of the part that holds a policy's weights."""
    return f"weights.{policy}"


def read_weights(checkpoint: Checkpoint, policy: str) -> dict[str, np.ndarray[Any, Any]]:
    """Reads a policy's weights by name, after checking that they are as they were written."""
    return dict(read_part(checkpoint, weights_part(policy)))


def read_part(checkpoint: Checkpoint, name: str) -> Tree:
    """Reads the part that one worker wrote, after checking that it is as it was written."""
    part = checkpoint.manifest.parts.get(name)
    if part is None:
        raise CheckpointError(
            f"checkpoint {checkpoint.number}: no part {name!r}: "
            f"{nearest(name, checkpoint.manifest.parts)}"
        )
    if problem := verify_part(checkpoint.path, part):
        raise CheckpointError(f"checkpoint {checkpoint.number} is corrupt: {problem}.")
    return load_state(checkpoint.path / part.file)


class CheckpointStore:
    """The checkpoints of one run.

    One process writes (`begin`, workers' `write_part`, `commit`). Any number of processes may read
    at the same time. A checkpoint appears with one rename, so a reader never sees an incomplete
    one, even if the writer dies.
    """

    def __init__(self, directory: Path, config: CheckpointConfig) -> None:
        self.directory = directory
        self.config = config
        self._locks: dict[Path, FolderLock] = {}
        self._corrupt: set[int] = set()

    # Writing

    def begin(self, number: int) -> Path:
        """Makes a hidden folder for the parts of checkpoint `number`."""
        for folder in [folder for folder in self._locks if not folder.exists()]:
            self.abort(folder)  # A worker removed it when it could not write its part.
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            folder = self.directory / f"{_TEMPORARY}{number:09d}-{_unique()}"
            self._locks[folder] = FolderLock(folder)
        except OSError as error:
            raise cannot_write(self.directory, "a folder", error) from error
        return folder

    def abort(self, folder: Path) -> None:
        """Removes an unfinished checkpoint; finished ones stay as they are."""
        shutil.rmtree(folder, ignore_errors=True)
        if lock := self._locks.pop(folder, None):
            lock.release()

    def commit(self, folder: Path, manifest: Manifest) -> Checkpoint:
        """Makes the parts in `folder` a checkpoint, all at once, and removes checkpoints that are
        not kept."""
        target = self.directory / f"{manifest.number:09d}"
        try:
            for unfinished in folder.glob(f"*{UNFINISHED}"):
                unfinished.unlink()
            manifest = msgspec.structs.replace(
                manifest,
                parts=hash_parts(folder),
                segments=collect_segments(folder),
                srl_version=manifest.srl_version or VERSION,
            )
            path = folder / MANIFEST_FILE
            path.write_bytes(encode_manifest(manifest))
            sync(path)
            sync(folder)
            self._remove(target)
            os.rename(folder, target)
            sync(self.directory)
            (target / LOCK_FILE).unlink(missing_ok=True)
        except OSError as error:
            self.abort(folder)
            raise cannot_write(self.directory, f"checkpoint {manifest.number}", error) from error
        if lock := self._locks.pop(folder, None):
            lock.release()
        self._corrupt.discard(manifest.number)
        if self.config.replay == "last":
            self._release_segments(manifest.number)
        self.collect_garbage()
        return open_checkpoint(target)

    def _release_segments(self, newest: int) -> None:
        """Removes what workers keep from all checkpoints but the newest."""
        for checkpoint in self.list():
            segments = checkpoint.manifest.segments
            if checkpoint.number == newest or not segments:
                continue
            # A run that goes on from there fills its replay anew, so it is not exact any more.
            left = msgspec.structs.replace(checkpoint.manifest, segments={}, exact=False)
            with contextlib.suppress(OSError):
                write_atomically(checkpoint.path / MANIFEST_FILE, encode_manifest(left))
                for part in (part for parts in segments.values() for part in parts):
                    (checkpoint.path / part.file).unlink(missing_ok=True)

    def tag(self, checkpoint: Checkpoint, name: str) -> Checkpoint:
        """Gives a checkpoint a tag, which keeps it for good; the tag moves if another checkpoint
        had it."""
        if not _TAG.fullmatch(name) or name in ("latest", "best") or is_version(name):
            raise CheckpointError(
                f"tag: expected a letter followed by letters, digits, '_', '.' or '-' "
                f"(and neither 'latest' nor 'best' nor a version like 'v12'), got {name!r}."
            )
        try:
            tags = checkpoint.path / "tags"
            tags.mkdir(exist_ok=True)
            (tags / name).touch()
            for other in self.list():
                if other.number != checkpoint.number and name in other.tags:
                    (other.path / "tags" / name).unlink(missing_ok=True)
        except OSError as error:
            raise cannot_write(checkpoint.path, f"tag {name!r}", error) from error
        return Checkpoint(checkpoint.path, checkpoint.manifest, tags_of(checkpoint.path))

    def collect_garbage(self) -> None:
        """Removes all but the last few, the best and the tagged checkpoints."""
        found = [c for c in self.list() if c.number not in self._corrupt]
        keep = {c.number for c in found[-self.config.keep_last :]}
        keep |= {c.number for c in found if c.tags}
        if self.config.keep_best:
            keep |= {checkpoint.number for checkpoint in best_by_policy(found).values()}
        newest = max(keep, default=-1)
        for path in self._folders():
            # A damaged checkpoint that is newer than all whole ones stays until a newer whole one
            # exists.
            if int(path.name) not in keep and int(path.name) < newest:
                with contextlib.suppress(OSError):
                    self._remove(path)

    # Reading

    @property
    def is_empty(self) -> bool:
        """Whether there is no checkpoint, not even a damaged one."""
        return not self._folders()

    def list(self) -> list[Checkpoint]:
        """All checkpoints with a readable manifest, oldest first."""
        found = []
        for path in self._folders():
            with contextlib.suppress(CheckpointError):
                found.append(open_checkpoint(path))
        return found

    def find(self, name: str, policy: str = "") -> Checkpoint:
        """The checkpoint called "latest", by its tag, by its number ("12"), "best", or by a version
        ("v340").

        The best one and the version are those of `policy`. "best:NAME" names the policy itself. The
        policy may be left out if only one learns.
        """
        found = self.list()
        if not found:
            # Raises an error that says what is wrong with the existing ones.
            self.latest_valid()
        return choose(self.directory, found, name, policy)

    def best(self) -> dict[str, Checkpoint]:
        """The checkpoint with the highest score, for each policy, or side of a policy, that has a
        score."""
        return best_by_policy(self.list())

    def load(self, checkpoint: Checkpoint) -> dict[str, Tree]:
        """Loads all parts by name, after checking that each one is as it was written."""
        return {name: read_part(checkpoint, name) for name in checkpoint.manifest.parts}

    def latest_valid(self) -> tuple[Checkpoint | None, str]:
        """The newest whole checkpoint, and a note that says which newer ones are damaged, and how.

        Without any checkpoint it returns (None, ""). It raises a CheckpointError if all are
        damaged, or if the newest `MOST_DAMAGED` are: examining one may take long.
        """
        notes: builtins.list[str] = []
        for path in reversed(self._folders()):
            try:
                checkpoint = open_checkpoint(path)
                problem = _damage(checkpoint)
            except CheckpointError as error:
                problem = str(error)
            if problem is None:
                if notes:
                    notes.append(f"falling back to checkpoint {checkpoint.number}")
                return checkpoint, "; ".join(notes)
            self._corrupt.add(int(path.name))
            notes.append(f"checkpoint {int(path.name)} is corrupt: {problem}")
            if len(notes) == MOST_DAMAGED:
                raise CheckpointError(
                    f"{self.directory}: none of the newest {MOST_DAMAGED} checkpoints is whole "
                    f"({'; '.join(notes)}). Remove them to go on from an older one."
                )
        if notes:
            raise CheckpointError(
                f"{self.directory}: no whole checkpoint is left ({'; '.join(notes)}). "
                "Start afresh with --fresh, or put back a copy of the folder."
            )
        return None, ""

    def next_number(self) -> int:
        """A number above those of all checkpoints, damaged ones included."""
        return max((int(path.name) for path in self._folders()), default=0) + 1

    # Folders

    def _folders(self) -> builtins.list[Path]:
        try:
            names = [name for name in os.listdir(self.directory) if is_checkpoint(name)]
        except FileNotFoundError:
            return []
        return [self.directory / name for name in sorted(names, key=int)]

    def _remove(self, path: Path) -> None:
        # Hide it first: a reader must never list a folder that is half removed.
        gone = self.directory / f"{_GONE}{path.name}-{_unique()}"
        with contextlib.suppress(FileNotFoundError):
            os.rename(path, gone)
        shutil.rmtree(gone, ignore_errors=True)

    def remove_leftovers(self) -> None:
        """Removes the leftovers of a killed writer; only the next writer calls it, readers do
        not."""
        if not self.directory.is_dir():
            return
        for path in self.directory.iterdir():
            unfinished = path.name.startswith(_TEMPORARY) and not FolderLock.is_held(path)
            if unfinished or path.name.startswith((_GONE, FOLDERS)):
                shutil.rmtree(path, ignore_errors=True)


def _damage(checkpoint: Checkpoint) -> str | None:
    """The problem with a checkpoint, None if it is whole.

    All sizes are compared before anything is hashed, because hashing large parts takes long.
    """
    for content in (False, True):
        for part in checkpoint.manifest.files:
            if problem := verify_part(checkpoint.path, part, content=content):
                return problem
    return None


def _unique() -> str:
    return f"{os.getpid()}-{time.time_ns():x}"
