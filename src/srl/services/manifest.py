"""The manifest of a checkpoint: what it holds, and the hashes that prove that it is whole."""

from __future__ import annotations

import hashlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from srl.data.counts import Count, Version
from srl.errors import CheckpointError, ConfigError
from srl.files import read_limited
from srl.services.checkpoint_parts import CheckpointPart, part_file
from srl.services.segments import is_segment_of

MANIFEST_FILE = "manifest.json"
MAX_MANIFEST_BYTES = 1 << 24
"""Largest manifest that is read; one with parts of ten thousand workers fits."""


class Manifest(msgspec.Struct, kw_only=True, frozen=True):
    """What a checkpoint holds, and the hashes that prove it is whole."""

    number: Count
    """Counts up with every checkpoint of a run."""
    policy_versions: dict[str, Version]
    env_steps: Count
    episodes: Count
    scores: dict[str, float | None] = {}
    """By policy, or POLICY/SIDE if it plays several sides; higher is better. A policy without a
    measured score has no entry."""
    seconds: float = 0.0
    """Seconds of training so far."""
    parts: dict[str, CheckpointPart] = {}
    """By part name; filled in by `commit`."""
    segments: dict[str, list[CheckpointPart]] = {}
    """What workers keep, in files that checkpoints share, by worker; filled in by `commit`."""
    exact: bool = False
    """Whether the states of all workers are inside, so that a resumed run continues exactly."""
    created: float = msgspec.field(default_factory=time.time)
    """Unix time."""
    srl_version: str = ""
    digest: str = ""
    """SHA-256 of this file with an empty digest; filled in by `commit`."""

    @property
    def files(self) -> list[CheckpointPart]:
        """All parts and segments."""
        return [*self.parts.values(), *(part for own in self.segments.values() for part in own)]


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


def open_checkpoint(path: Path) -> Checkpoint:
    """Reads a checkpoint's manifest; its parts are not verified yet."""
    try:
        data = read_limited(path / MANIFEST_FILE, MAX_MANIFEST_BYTES)
        manifest = msgspec.json.decode(data, type=Manifest)
    except (
        *(OSError, ConfigError, msgspec.DecodeError, UnicodeDecodeError),
        RecursionError,
    ) as error:
        raise CheckpointError(f"{MANIFEST_FILE} is unreadable ({error})") from None
    for name, part in manifest.parts.items():
        # Otherwise a name such as ../../x would lead to a file outside of the checkpoint.
        if part.file != part_file(name):
            raise CheckpointError(f"{MANIFEST_FILE} has a part {name!r} in {part.file!r}")
    for worker, segments in manifest.segments.items():
        for part in segments:
            if not is_segment_of(part.file, worker):
                raise CheckpointError(
                    f"{MANIFEST_FILE} has a segment of {worker!r} in {part.file!r}"
                )
    # Hash the bytes as they are, so that a manifest with other fields (of another version) still
    # opens.
    if _sha256(data.replace(manifest.digest.encode(), b"")) != manifest.digest:
        raise CheckpointError(f"{MANIFEST_FILE} is not what was written")
    return Checkpoint(path, manifest, tags_of(path))


def tags_of(path: Path) -> tuple[str, ...]:
    """The tags of a checkpoint."""
    try:
        return tuple(sorted(os.listdir(path / "tags")))
    except OSError:
        return ()


def encode_manifest(manifest: Manifest) -> bytes:
    """The content of a manifest's file, with the hash of itself."""
    manifest = msgspec.structs.replace(manifest, digest="")
    return _encode(msgspec.structs.replace(manifest, digest=_sha256(_encode(manifest))))


def _encode(manifest: Manifest) -> bytes:
    return msgspec.json.format(msgspec.json.encode(manifest), indent=2)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
