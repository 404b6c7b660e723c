"""Parameters: versioned weights, one writer, many readers.

On one host the weights are in shared memory twice, with a sequence number. The writer fills the
half that is not current, and then changes the number. A reader copies the current half, and then
checks the number again. Readers copy only if the version has changed. Each half holds one snapshot:
parameters and buffers, normaliser statistics included. Between hosts the bytes of a half are sent
as they are in memory, once for each host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import msgspec
import numpy as np

from srl.arena.arena import Arena
from srl.data.memory_layout import Shape, layout_bytes, layout_views
from srl.data.records import Snapshot


class ParameterSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The weights of one policy: their shapes, and the processes to wake when they change."""

    policy: str
    shapes: dict[str, tuple[tuple[int, ...], str]]
    """(shape, dtype) by name."""
    readers: tuple[str, ...] = ()
    """Processes that wait for newer versions."""


class _Memory:
    """Two halves, and the numbers that say which one is current."""

    def __init__(self, spec: ParameterSpec, arena: Arena) -> None:
        half = _half(spec)
        size = max(64, layout_bytes(half))
        region = arena.region(
            f"parameters/{spec.policy}", parameter_bytes(spec), "the network's size"
        )
        numbers = region[:64].view(np.int64)
        self.number = numbers.data
        """0: publications begun, 1: publications done, 2 and 3: the version in each half plus 1,
        4: the newest version on other hosts plus 1."""
        self.flat = [region[64 + i * size : 64 + (i + 1) * size] for i in range(2)]
        self.halves = [layout_views(half, flat) for flat in self.flat]


def parameter_bytes(spec: ParameterSpec) -> int:
    """Bytes of a policy's region."""
    return 64 + 2 * max(64, layout_bytes(_half(spec)))


def _half(spec: ParameterSpec) -> dict[str, Shape]:
    return {name: Shape(shape, dtype) for name, (shape, dtype) in spec.shapes.items()}


class ParameterWriter:
    """The trainer's end."""

    def __init__(self, spec: ParameterSpec, arena: Arena) -> None:
        self.spec = spec
        self._arena = arena
        self._memory = _Memory(spec, arena)

    def publish(self, snapshot: Snapshot) -> None:
        """Makes newer weights the current ones, and wakes the processes that wait for them."""
        with self._next_half(snapshot.policy_version) as half:
            for name, array in self._memory.halves[half].items():
                array[...] = snapshot.weights[name]

    def publish_bytes(self, policy_version: int, data: np.ndarray) -> None:
        """Publishes bytes that `ParameterReader.read_bytes` returned on another host."""
        with self._next_half(policy_version) as half:
            self._memory.flat[half][...] = data

    def note_remote_version(self, policy_version: int) -> None:
        """Notes a version that another host has. A trainer here goes on above it."""
        number = self._memory.number
        number[4] = max(number[4], policy_version + 1)

    @contextmanager
    def _next_half(self, policy_version: int) -> Iterator[int]:
        number = self._memory.number
        begun = number[1] + 1
        half = begun % 2
        # This half is two publications old. A reader of it sees that `number[0]` has changed, and
        # copies again.
        number[0] = begun
        yield half
        number[2 + half] = policy_version + 1
        number[1] = begun
        self._arena.wake(*self.spec.readers)


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
    def newest_remote_version(self) -> int:
        """The newest version that another host is known to have; -1 if there is none."""
        return int(self._memory.number[4]) - 1

    @property
    def nbytes(self) -> int:
        """Bytes of the weights in memory."""
        return self._memory.flat[0].nbytes

    def read(self, into: Mapping[str, np.ndarray]) -> int:
        """Copies the newest weights into arrays of the same shapes, and returns their version."""

        def copy(half: int) -> None:
            for name, array in into.items():
                array[...] = self._memory.halves[half][name]

        return self._read(copy)

    def read_bytes(self, into: np.ndarray) -> int:
        """Copies the newest weights as uint8 [nbytes], for another host, and returns their
        version."""

        def copy(half: int) -> None:
            into[...] = self._memory.flat[half]

        return self._read(copy)

    def _read(self, copy: Callable[[int], None]) -> int:
        number = self._memory.number
        while True:
            done = number[1]
            version = int(number[2 + done % 2]) - 1
            copy(done % 2)
            # This half was overwritten only if a publication after the next one has begun.
            if number[0] <= done + 1:
                return version

    def snapshot(self) -> Snapshot:
        """The newest weights in arrays of their own."""
        weights = {
            name: np.empty(shape, dtype) for name, (shape, dtype) in self.spec.shapes.items()
        }
        return Snapshot(self.read(weights), weights)
