"""Checkpoints that are either whole or not there: written aside, manifest last, then renamed.

checkpoints/
    000000012/                  a checkpoint: its number
        weights.agent.safetensors   a part: what one worker wrote (quoted like a URL)
        trainer%2F0.safetensors
        manifest.json               hashes and sizes of the parts, and a hash of itself
        tags/final                  a tag: an empty file
    .tmp-000000013-812-f3/        not finished yet; removed by whoever opens the store after its
    death
"""

from __future__ import annotations

import builtins
import contextlib
import hashlib
import math
import os
import re
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from srl.data.codec import load_state
from srl.data.tree import Tree
from srl.errors import CheckpointError, ConfigError, nearest
from srl.services.parts import (
    LOCK_FILE,
    UNFINISHED,
    FolderLock,
    Part,
    cannot_write,
    hash_parts,
    sync,
    verify_part,
    write_part,
)

MANIFEST_FILE = "manifest.json"
_NAME = re.compile(r"\d{9,}")
_TAG = re.compile(r"[A-Za-z][\w.-]*")
_TEMPORARY, _GONE = ".tmp-", ".gone-"

__all__ = [
    "Checkpoint",
    "CheckpointConfig",
    "CheckpointStore",
    "Manifest",
    "Part",
    "open_checkpoint",
    "read_part",
    "read_weights",
    "weights_part",
    "write_part",
]


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """How often a run is saved, and which checkpoints stay."""

    every_seconds: float = 30.0
    """Seconds between two checkpoints; one more is written when the run ends."""
    keep_last: int = 3
    """Newest checkpoints that stay. The best and the tagged ones always do."""
    keep_best: bool = True
    """Keep the checkpoint with the highest score (evaluation return, else training return)."""

    def __post_init__(self) -> None:
        if self.every_seconds <= 0:
            raise ConfigError(
                f"checkpoint.every_seconds: expected more than 0, got {self.every_seconds}."
            )
        if self.keep_last < 1:
            raise ConfigError(f"checkpoint.keep_last: expected at least 1, got {self.keep_last}.")


class Manifest(msgspec.Struct, kw_only=True, frozen=True):
    """What a checkpoint holds, and the hashes that prove it is whole."""

    number: int
    """Counts up with every checkpoint of a run."""
    policy_versions: dict[str, int]
    env_steps: int
    episodes: int
    score: float | None = None
    """Higher is better; None where nothing has been measured."""
    seconds: float = 0.0
    """Of training so far."""
    parts: dict[str, Part] = {}
    """By part name; filled in by `commit`."""
    exact: bool = False
    """All workers' states are inside, so that a resumed run continues exactly."""
    created: float = msgspec.field(default_factory=time.time)
    """Unix time."""
    srl_version: str = ""
    digest: str = ""
    """SHA-256 of this file with an empty digest; filled in by `commit`."""


@dataclass(frozen=True)
class Checkpoint:
    """One whole checkpoint on disk."""

    path: Path
    manifest: Manifest
    tags: tuple[str, ...] = ()

    @property
    def number(self) -> int:
        """Counts up with every checkpoint of a run."""
        return self.manifest.number


def weights_part(policy: str) -> str:
    """The name of the part that holds a policy's weights."""
    return f"weights.{policy}"


def read_weights(checkpoint: Checkpoint, policy: str) -> dict[str, np.ndarray[Any, Any]]:
    """A policy's weights by name, after checking that they are what was written."""
    return dict(read_part(checkpoint, weights_part(policy)))


def read_part(checkpoint: Checkpoint, name: str) -> Tree:
    """What one worker wrote, after checking that it is what was written."""
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

    One process writes (`begin`, workers' `write_part`, `commit`); any number may read meanwhile. A
    checkpoint appears with one rename, so a reader never sees a part of one, whenever the writer
    dies.
    """

    def __init__(self, directory: Path, config: CheckpointConfig) -> None:
        self.directory = directory
        self.config = config
        self._locks: dict[Path, FolderLock] = {}
        self._corrupt: set[int] = set()

    # Writing

    def begin(self, number: int) -> Path:
        """A fresh hidden folder for the parts of checkpoint `number`."""
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
        """Makes the parts in `folder` a checkpoint, all at once, and removes those not kept."""
        target = self.directory / f"{manifest.number:09d}"
        try:
            for unfinished in folder.glob(f"*{UNFINISHED}"):
                unfinished.unlink()
            manifest = msgspec.structs.replace(
                manifest,
                parts=hash_parts(folder),
                srl_version=manifest.srl_version or _srl_version(),
                digest="",
            )
            digest = _sha256(_encode(manifest))
            manifest = msgspec.structs.replace(manifest, digest=digest)
            path = folder / MANIFEST_FILE
            path.write_bytes(_encode(manifest))
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
        self.collect_garbage()
        return Checkpoint(target, manifest)

    def tag(self, checkpoint: Checkpoint, name: str) -> Checkpoint:
        """Names a checkpoint, which keeps it for good. A name that another one had moves over."""
        if not _TAG.fullmatch(name) or name in ("latest", "best"):
            raise CheckpointError(
                f"tag: expected a letter followed by letters, digits, '_', '.' or '-' "
                f"(and neither 'latest' nor 'best'), got {name!r}."
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
        return Checkpoint(checkpoint.path, checkpoint.manifest, _tags(checkpoint.path))

    def collect_garbage(self) -> None:
        """Removes all but the last few, the best and the tagged checkpoints."""
        found = [c for c in self.list() if c.number not in self._corrupt]
        keep = {c.number for c in found[-self.config.keep_last :]}
        keep |= {c.number for c in found if c.tags}
        if self.config.keep_best and (best := _best(found)):
            keep.add(best.number)
        newest = max(keep, default=-1)
        for path in self._folders():
            # A damaged one newer than all that is whole stays until something has taken its place.
            if int(path.name) not in keep and int(path.name) < newest:
                with contextlib.suppress(OSError):
                    self._remove(path)

    # Reading

    def list(self) -> list[Checkpoint]:
        """All checkpoints with a readable manifest, oldest first."""
        found = []
        for path in self._folders():
            with contextlib.suppress(CheckpointError):
                found.append(open_checkpoint(path))
        return found

    def find(self, name: str) -> Checkpoint:
        """The checkpoint called "latest" or "best", or by tag, number or policy version."""
        found = self.list()
        if not found:
            raise CheckpointError(f"{self.directory}: expected a checkpoint, got none.")
        if name == "latest":
            return found[-1]
        if name == "best":
            if best := _best(found):
                return best
            raise CheckpointError(
                f"{self.directory}: no checkpoint has a score yet, so none is best. "
                "Use 'latest', or train until 100 episodes or an evaluation are over."
            )
        matches = [c for c in found if name in c.tags]
        if not matches and name.isdecimal():
            number = int(name)
            matches = [c for c in found if c.number == number] or [
                c for c in found if number in c.manifest.policy_versions.values()
            ]
        if matches:
            return matches[-1]
        known = {"latest", "best", *(str(c.number) for c in found)}
        known.update(tag for c in found for tag in c.tags)
        raise CheckpointError(
            f"{self.directory}: no checkpoint {name!r}: {nearest(name, known)} "
            f"(numbers {found[0].number} to {found[-1].number})"
        )

    def load(self, checkpoint: Checkpoint) -> dict[str, Tree]:
        """All parts by name, after checking that every one is what was written."""
        return {name: read_part(checkpoint, name) for name in checkpoint.manifest.parts}

    def latest_valid(self) -> tuple[Checkpoint | None, str]:
        """The newest whole checkpoint, and a note that says which newer ones are damaged and how.

        (None, "") where there are no checkpoints; damaged ones alone are an error.
        """
        notes: builtins.list[str] = []
        for path in reversed(self._folders()):
            try:
                checkpoint = open_checkpoint(path)
                problems = [verify_part(path, part) for part in checkpoint.manifest.parts.values()]
                problem = next((text for text in problems if text), None)
            except CheckpointError as error:
                problem = str(error)
            if problem is None:
                if notes:
                    notes.append(f"falling back to checkpoint {checkpoint.number}")
                return checkpoint, "; ".join(notes)
            self._corrupt.add(int(path.name))
            notes.append(f"checkpoint {int(path.name)} is corrupt: {problem}")
        if notes:
            raise CheckpointError(
                f"{self.directory}: no whole checkpoint is left ({'; '.join(notes)}). "
                "Start afresh with --fresh, or put back a copy of the folder."
            )
        return None, ""

    def next_number(self) -> int:
        """A number above all that are taken, damaged ones included."""
        return max((int(path.name) for path in self._folders()), default=0) + 1

    # Folders

    def _folders(self) -> builtins.list[Path]:
        try:
            names = [name for name in os.listdir(self.directory) if _NAME.fullmatch(name)]
        except FileNotFoundError:
            return []
        return [self.directory / name for name in sorted(names, key=int)]

    def _remove(self, path: Path) -> None:
        # Hidden first: a reader must never list a folder that is half removed.
        gone = self.directory / f"{_GONE}{path.name}-{_unique()}"
        with contextlib.suppress(FileNotFoundError):
            os.rename(path, gone)
        shutil.rmtree(gone, ignore_errors=True)

    def remove_leftovers(self) -> None:
        """Removes what a killed writer has left; for the next writer, not for those who read."""
        if not self.directory.is_dir():
            return
        for path in self.directory.iterdir():
            unfinished = path.name.startswith(_TEMPORARY) and not FolderLock.is_held(path)
            if unfinished or path.name.startswith(_GONE):
                shutil.rmtree(path, ignore_errors=True)


def open_checkpoint(path: Path) -> Checkpoint:
    """Reads a checkpoint's manifest; its parts are not verified yet."""
    try:
        data = (path / MANIFEST_FILE).read_bytes()
        manifest = msgspec.json.decode(data, type=Manifest)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{MANIFEST_FILE} is unreadable ({error})") from None
    # Over the bytes as they are, so that a manifest with other fields (of another version) still
    # opens.
    if _sha256(data.replace(manifest.digest.encode(), b"")) != manifest.digest:
        raise CheckpointError(f"{MANIFEST_FILE} is not what was written")
    return Checkpoint(path, manifest, _tags(path))


def _tags(path: Path) -> tuple[str, ...]:
    try:
        return tuple(sorted(os.listdir(path / "tags")))
    except OSError:
        return ()


def _best(found: builtins.list[Checkpoint]) -> Checkpoint | None:
    scored = [
        (c.manifest.score, c.number, c)
        for c in found
        if c.manifest.score is not None and math.isfinite(c.manifest.score)
    ]
    return max(scored, key=lambda entry: entry[:2])[2] if scored else None


def _unique() -> str:
    return f"{os.getpid()}-{time.time_ns():x}"


def _encode(manifest: Manifest) -> bytes:
    return msgspec.json.format(msgspec.json.encode(manifest), indent=2)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _srl_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("srl")
    except PackageNotFoundError:
        return "unknown"
