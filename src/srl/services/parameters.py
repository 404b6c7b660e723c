"""Parameters: versioned weights, one writer, many readers.

On one host the weights lie in shared memory twice, under a sequence number: the writer fills the
half that is not current and then moves the number; a reader copies the current half and looks at
the number again. Readers copy only when the version moved. Each half holds one snapshot: parameters
and buffers, normaliser statistics included. Between hosts the bytes of a half travel as they lie
there, once for each host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import msgspec
import numpy as np

from srl.arena.arena import Arena
from srl.data.layout import Shape, layout_bytes, layout_views
from srl.data.records import Snapshot


class ParameterSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One policy's weights: what they look like, and who is to be woken when they change."""

    policy: str
    shapes: dict[str, tuple[tuple[int, ...], str]]
    """Name to (shape, dtype)."""
    readers: tuple[str, ...] = ()
    """Processes that wait for newer versions."""


class _Memory:
    """Two halves and the numbers that say which one counts."""

    def __init__(self, spec: ParameterSpec, arena: Arena) -> None:
        half = {name: Shape(shape, dtype) for name, (shape, dtype) in spec.shapes.items()}
        size = max(64, layout_bytes(half))
        region = arena.region(f"parameters/{spec.policy}", 64 + 2 * size, "the network's size")
        numbers = region[:64].view(np.int64)
        self.number = numbers.data
        """0: publications begun, 1: publications done, 2 and 3: the version in each half plus 1,
        4: the newest version on other hosts plus 1."""
        self.flat = [region[64 + i * size : 64 + (i + 1) * size] for i in range(2)]
        self.halves = [layout_views(half, flat) for flat in self.flat]


class ParameterWriter:
    """The trainer's end."""

    def __init__(self, spec: ParameterSpec, arena: Arena) -> None:
        self.spec = spec
        self._arena = arena
        self._memory = _Memory(spec, arena)

    def publish(self, snapshot: Snapshot) -> None:
        """Makes newer weights the current ones, and wakes whoever waits for them."""
        with self._next_half(snapshot.policy_version) as half:
            for name, array in self._memory.halves[half].items():
                array[...] = snapshot.weights[name]

    def publish_bytes(self, policy_version: int, data: np.ndarray) -> None:
        """`publish` with what `ParameterReader.read_bytes` gave, on another host."""
        with self._next_half(policy_version) as half:
            self._memory.flat[half][...] = data

    def seen_elsewhere(self, policy_version: int) -> None:
        """Notes a version that another host has: who publishes goes on above it."""
        number = self._memory.number
        number[4] = max(number[4], policy_version + 1)

    @contextmanager
    def _next_half(self, policy_version: int) -> Iterator[int]:
        number = self._memory.number
        begun = number[1] + 1
        half = begun % 2
        # A reader of this half, now two publications old, sees that `begun` moved on, and copies
        # anew.
        number[0] = begun
        yield half
        number[2 + half] = policy_version + 1
        number[1] = begun
        self._arena.ring(*self.spec.readers)


class ParameterReader:
    """A policy worker's end; an actor uses only `version`."""

    def __init__(self, spec: ParameterSpec, arena: Arena) -> None:
        self.spec = spec
        self._memory = _Memory(spec, arena)

    @property
    def version(self) -> int:
        """The newest version, or -1 before the first."""
        number = self._memory.number
        while True:
            done = number[1]
            version: int = number[2 + done % 2] - 1
            if number[0] <= done + 1:
                return version

    @property
    def newest_elsewhere(self) -> int:
        """The newest version that another host is known to have, -1 if none is."""
        return int(self._memory.number[4]) - 1

    @property
    def nbytes(self) -> int:
        """Bytes of the weights as they lie in memory."""
        return self._memory.flat[0].nbytes

    def read(self, into: Mapping[str, np.ndarray]) -> int:
        """Copies the newest weights into arrays of the same shapes, and returns their version."""

        def copy(half: int) -> None:
            for name, array in into.items():
                array[...] = self._memory.halves[half][name]

        return self._read(copy)

    def read_bytes(self, into: np.ndarray) -> int:
        """`read` into uint8 [nbytes]: the weights as they lie in memory, for another host."""

        def copy(half: int) -> None:
            into[...] = self._memory.flat[half]

        return self._read(copy)

    def _read(self, copy: Callable[[int], None]) -> int:
        number = self._memory.number
        while True:
            done = number[1]
            version = int(number[2 + done % 2]) - 1
            copy(done % 2)
            # The half was overwritten meanwhile only if a publication after the next one has begun.
            if number[0] <= done + 1:
                return version

    def snapshot(self) -> Snapshot:
        """The newest weights in arrays of their own."""
        weights = {
            name: np.empty(shape, dtype) for name, (shape, dtype) in self.spec.shapes.items()
        }
        return Snapshot(self.read(weights), weights)
