"""Segments: files with what a worker keeps, written once and shared by checkpoints.

A replay may keep gigabytes, of which little changes between two checkpoints. So it cuts what it
keeps into segments. A *sealed* segment never changes: it is written and hashed once, into a folder
of its worker, and each checkpoint gets a hard link to it. The last segment is still open, and is
written anew for each checkpoint.

checkpoints/
    .segments-replay%2F0-1/         a worker's sealed segments (its name, and its incarnation)
        replay%2F0.000000007.segment
    000000012/
        replay%2F0.000000007.segment    the same file
        replay%2F0.000000008.segment    the open one
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from urllib.parse import quote, unquote

import msgspec
from safetensors import SafetensorError

from srl.data.codec import save_state
from srl.data.tree import Tree
from srl.errors import CheckpointError, ConfigError
from srl.files import read_limited
from srl.services.checkpoint_parts import (
    UNFINISHED,
    CheckpointPart,
    cannot_write,
    copy_part,
    part_of,
    sync,
)

FOLDERS = ".segments-"
"""Begin of the names of workers' folders."""
MAX_LIST_BYTES = 1 << 24
"""Largest list of segments that is read."""
_LIST, _SUFFIX = ".segments", ".segment"
_NAME = re.compile(r"\.\d{9,18}\.segment")
_decode = msgspec.json.Decoder(list[CheckpointPart]).decode


def segment_file(worker: str, number: int) -> str:
    """The file name of a segment."""
    return f"{quote(worker, safe=' ')}.{number:09d}{_SUFFIX}"


def is_segment_of(file: str, worker: str) -> bool:
    """Whether a file name is that of a worker's segment."""
    start = quote(worker, safe=" ")
    return file.startswith(start) and _NAME.fullmatch(file[len(start) :]) is not None


class SegmentFolder:
    """The sealed segments of one worker, for the checkpoints of a run."""

    def __init__(self, checkpoints: Path, worker: str, incarnation: int) -> None:
        """`checkpoints` is the run's folder of checkpoints. Segments of earlier incarnations are
        removed; checkpoints keep theirs."""
        self._checkpoints, self._worker = checkpoints, worker
        self._start = f"{FOLDERS}{quote(worker, safe=' ')}-"
        self._folder = checkpoints / f"{self._start}{incarnation}"
        self._sealed: dict[int, CheckpointPart] = {}
        """By the numbers of the segments."""
        self._clear()

    def _clear(self) -> None:
        for path in self._checkpoints.glob(f"{self._start}*"):
            shutil.rmtree(path, ignore_errors=True)

    def seal(self, number: int, content: Tree) -> None:
        """Writes a segment that will never change."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_write(self._checkpoints, "a folder", error) from error
        self._sealed[number] = _write(self._folder, segment_file(self._worker, number), content)

    def adopt(self, number: int, folder: Path, part: CheckpointPart) -> None:
        """Takes over a sealed segment of a checkpoint, without writing it again."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_write(self._checkpoints, "a folder", error) from error
        link_file(folder / part.file, self._folder)
        self._sealed[number] = part

    def forget(self, before: int) -> None:
        """Removes the segments with numbers below `before`; checkpoints keep theirs."""
        for number in [number for number in self._sealed if number < before]:
            (self._folder / self._sealed.pop(number).file).unlink(missing_ok=True)

    def save(self, folder: Path, rest: tuple[int, Tree] | None) -> None:
        """Puts all segments into an unfinished checkpoint: links to sealed ones, and the open one,
        `rest`, with its number."""
        parts = list(self._sealed.values())
        for part in parts:
            link_file(self._folder / part.file, folder)
        if rest is not None:
            parts.append(_write(folder, segment_file(self._worker, rest[0]), rest[1]))
        path = folder / f"{quote(self._worker, safe=' ')}{_LIST}"
        try:
            path.write_bytes(msgspec.json.encode(parts))
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise cannot_write(folder.parent, path.name, error) from error

    def close(self) -> None:
        """Removes the folder; checkpoints keep what they have."""
        self._clear()


def collect_segments(folder: Path) -> dict[str, list[CheckpointPart]]:
    """The segments in an unfinished checkpoint, by worker, as the workers have listed them. Their
    lists are removed."""
    found = {}
    for path in sorted(folder.glob(f"*{_LIST}")):
        worker = unquote(path.name.removesuffix(_LIST))
        try:
            found[worker] = _decode(read_limited(path, MAX_LIST_BYTES))
        except (ConfigError, msgspec.DecodeError) as error:
            raise CheckpointError(f"{path.name}: expected a list of segments ({error})") from None
        path.unlink()
    return found


def copy_segments(parts: list[CheckpointPart], worker: str, source: Path, folder: Path) -> None:
    """Gives an unfinished checkpoint the segments that a worker has in an earlier one."""
    for part in parts:
        link_file(source / part.file, folder)
    (folder / f"{quote(worker, safe=' ')}{_LIST}").write_bytes(msgspec.json.encode(parts))


def link_file(path: Path, folder: Path) -> None:
    """Gives a folder a hard link to a file; a copy, where the file system has no links."""
    try:
        os.link(path, folder / path.name)
    except OSError:
        copy_part(path, folder)


def _write(folder: Path, name: str, content: Tree) -> CheckpointPart:
    path = folder / name
    unfinished = folder / (name + UNFINISHED)
    try:
        save_state(unfinished, content)
        sync(unfinished)
        os.replace(unfinished, path)
        return part_of(path)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise cannot_write(folder.parent, f"segment {name}", error) from error
