"""Saves what a replay keeps as segments while it comes in, and reads it back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from srl.data.codec import load_state
from srl.data.replay import Replay
from srl.data.replay_columns import replay_bytes
from srl.data.tree import Tree
from srl.errors import CheckpointError
from srl.services.checkpoint_parts import CheckpointPart
from srl.services.segments import SegmentFolder

SEGMENT_BYTES = 1 << 24
"""Bytes of a segment of a large replay: few enough to be copied and written at once."""
MOST_SEGMENTS = 1024
"""Larger replays have larger segments, and no more of them: each checkpoint has a link to each."""
LEAST_SEGMENTS = 8
"""Smaller replays have smaller segments, and no fewer of them: the open one is written anew for
each checkpoint."""
_HEADER_BYTES = 1 << 20


class ReplaySegments:
    """The segments of one replay: each has as many fragments, in the order of their arrival."""

    def __init__(self, replay: Replay, folder: SegmentFolder | None) -> None:
        """Without a folder nothing is saved."""
        self._replay, self._folder = replay, folder
        self._fragment_bytes = replay_bytes(replay.stored, 1)
        size = max(SEGMENT_BYTES, replay.nbytes // MOST_SEGMENTS)
        most = max(1, replay.capacity // LEAST_SEGMENTS)
        self.length = max(1, min(most, size // self._fragment_bytes))
        """Fragments of a segment."""
        self._found: tuple[Path, Sequence[CheckpointPart]] | None = None

    @property
    def layout(self) -> dict[str, Tree]:
        """What must be equal in the replay that content comes from."""
        stored = msgspec.json.encode(self._replay.stored).decode()
        return {"stored": stored, "capacity": self._replay.capacity, "length": self.length}

    def follow(self) -> None:
        """Seals the segment that the newest fragment completes."""
        if self._folder is None or self._replay.num_inserted % self.length:
            return
        number = self._replay.num_inserted // self.length - 1
        first = number * self.length
        self._folder.seal(number, self._replay.content(range(first, first + self.length)))
        self._folder.forget(self._replay.numbers.start // self.length)

    def save(self, folder: Path) -> None:
        """Puts all that the replay holds into an unfinished checkpoint."""
        if self._folder is None:
            return
        last, rest = divmod(self._replay.num_inserted, self.length)
        numbers = range(last * self.length, self._replay.num_inserted)
        self._folder.save(folder, (last, self._replay.content(numbers)) if rest else None)

    def find(self, folder: Path, parts: Sequence[CheckpointPart]) -> None:
        """Says where the content is that `restore` reads."""
        self._found = folder, parts

    def restore(self, state: dict[str, Tree]) -> bool:
        """Continues with what was found; returns whether there was anything."""
        if self._found is None:
            return False
        (folder, parts), self._found = self._found, None
        files = sorted(parts, key=lambda part: part.file)
        try:
            self._replay.restore(state, self._contents(folder, files))
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise CheckpointError(
                f"{folder}: expected what a replay of these settings keeps, got segments that do "
                f"not fit ({error}). Remove that checkpoint to go on from an earlier one."
            ) from error
        if self._folder is not None:
            for part in files:
                number = int(part.file.split(".")[-2])
                if number < self._replay.num_inserted // self.length:
                    self._folder.adopt(number, folder, part)
        return True

    def _contents(self, folder: Path, files: Sequence[CheckpointPart]) -> Iterator[Tree]:
        """The content of segments, one after another: all of them need not fit into memory."""
        most = self.length * (self._fragment_bytes + 64) + _HEADER_BYTES
        for part in files:
            if part.bytes > most:
                raise ValueError(f"{part.file} has {part.bytes:,} bytes, expected at most {most:,}")
            yield load_state(folder / part.file)

    def close(self) -> None:
        """Removes what no checkpoint has."""
        if self._folder is not None:
            self._folder.close()
