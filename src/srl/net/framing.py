"""Messages as frames: a small typed header, then array bytes as they lie in memory.

The first frame is msgpack. It holds the message, and the unpacked size of every further frame (0:
the frame is not packed). "Packed" means compressed with lz4. The further frames are one sequence of
bytes. Small arrays share a frame; a large array has its own, and is not copied before ZeroMQ gets
it. The receiver says where the bytes belong (`Body.copy_into`), and their number must be exact. So
a message can never make the receiver allocate memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, Generic, TypeVar

import lz4.block
import msgspec

from srl.data.counts import Natural
from srl.errors import SpecError

Buffer = memoryview | bytes
Frames = Sequence[Buffer]

MAX_HEADER_BYTES = 1 << 20
MAX_FRAMES = 4096
"""Largest number of frames of one message."""
OWN_FRAME_BYTES = 1 << 16
"""An array of this size or more has its own frame, and is not copied to be sent."""
SHARED_FRAME_BYTES = 1 << 20
"""Small arrays share frames up to about this size."""
PACK_BYTES = 1 << 12
"""Arrays below this size are not packed: it is not worth the time."""
MAX_GROWTH = 255
"""Largest ratio of unpacked to packed size that lz4 can reach."""

Message = TypeVar("Message")


class _Header(msgspec.Struct, Generic[Message], array_like=True, frozen=True):
    message: Message
    unpacked: list[Natural] = []
    """Unpacked size of each further frame, in bytes; 0: the frame is not packed."""


class Body:
    """The array bytes of a received message, to be copied to where they belong."""

    __slots__ = ("_frames", "_unpacked")

    def __init__(self, frames: list[memoryview], unpacked: list[int]) -> None:
        self._frames = frames
        self._unpacked = unpacked

    @property
    def nbytes(self) -> int:
        """Number of bytes as received: packed frames count with their packed size."""
        return sum(frame.nbytes for frame in self._frames)

    def copy_into(self, targets: Iterable[memoryview | int]) -> None:
        """Copies all bytes into the targets, one after another; an int skips so many bytes.

        Raises SpecError if the sizes differ. Targets that come before the error have been
        overwritten then, and hold no valid message.
        """
        remaining = iter(targets)
        for frame, unpacked in zip(self._frames, self._unpacked, strict=True):
            at, size = 0, unpacked or frame.nbytes
            while at < size:
                target = next(remaining, None)
                wanted = target if isinstance(target, int) else len(target or b"")
                if target is None or at + wanted > size or (unpacked and 0 < wanted < size):
                    expected = "no more bytes" if target is None else f"{wanted} bytes"
                    raise SpecError(
                        f"message: expected {expected}, got {size - at}. The hosts of this run "
                        "disagree about what they send."
                    )
                if wanted and not isinstance(target, int):
                    target[:] = _unpack(frame, size) if unpacked else frame[at : at + wanted]
                at += wanted
        left = sum(rest if isinstance(rest, int) else rest.nbytes for rest in remaining)
        if left:
            raise SpecError(f"message: expected {left} more bytes, got none. It was cut short.")


class Framing(Generic[Message]):
    """Encodes and decodes the messages of one union of types.

    `digest` is a hash of the types and of the arrays' specs. Both ends of a connection compare
    their digests before they send anything else.
    """

    def __init__(self, kinds: Any, specs: Any, *, max_header_bytes: int = MAX_HEADER_BYTES) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(_Header[kinds])
        self._max_header_bytes = max_header_bytes
        text = msgspec.json.encode([msgspec.json.schema(_Header[kinds]), specs], order="sorted")
        self.digest = hashlib.sha256(text).hexdigest()

    def encode(
        self, message: Message, arrays: Iterable[Buffer | Packable] = (), *, packed: bool = False
    ) -> list[Buffer]:
        """Returns a message's frames.

        `arrays` are flat bytes, which must not change until the message is answered. With `packed`,
        arrays that are `Packable` are compressed.
        """
        frames: list[Buffer] = [b""]
        unpacked: list[int] = []
        small: list[Buffer] = []
        shared = 0

        def flush() -> None:
            nonlocal shared
            if small:
                frames.append(b"".join(small))
                unpacked.append(0)
                small.clear()
                shared = 0

        for array in arrays:
            size = len(array)
            if packed and isinstance(array, Packable) and size >= PACK_BYTES:
                shorter = lz4.block.compress(array.data, store_size=False)
                if len(shorter) < size:
                    flush()
                    frames.append(shorter)
                    unpacked.append(size)
                    continue
            plain = array.data if isinstance(array, Packable) else array
            if size >= OWN_FRAME_BYTES:
                flush()
                frames.append(plain)
                unpacked.append(0)
            elif size:
                small.append(plain)
                shared += size
                if shared >= SHARED_FRAME_BYTES:
                    flush()
        flush()
        frames[0] = self._encoder.encode(_Header(message, unpacked))
        return frames

    def decode(self, frames: Sequence[memoryview]) -> tuple[Message, Body]:
        """Returns the message and its bytes; raises SpecError if anything is malformed."""
        if not 0 < len(frames) <= MAX_FRAMES:
            raise SpecError(f"message: expected 1 to {MAX_FRAMES} frames, got {len(frames)}.")
        first = frames[0]
        if first.nbytes > self._max_header_bytes:
            raise SpecError(
                f"message: expected a header of at most {self._max_header_bytes} bytes, got "
                f"{first.nbytes}."
            )
        try:
            header = self._decoder.decode(first)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise SpecError(f"message: expected a header, got something else ({error}).") from None
        body = list(frames[1:])
        if len(header.unpacked) != len(body):
            raise SpecError(
                f"message: expected {len(header.unpacked)} frames of arrays, got {len(body)}. It "
                "was cut short."
            )
        for frame, size in zip(body, header.unpacked, strict=True):
            if size > frame.nbytes * MAX_GROWTH:
                raise SpecError(f"message: {frame.nbytes} bytes cannot be {size} unpacked.")
        return header.message, Body(body, header.unpacked)


class Packable:
    """Bytes that are worth compressing, such as pixels."""

    __slots__ = ("data",)

    def __init__(self, data: memoryview) -> None:
        self.data = data

    def __len__(self) -> int:
        return self.data.nbytes


def _unpack(frame: memoryview, size: int) -> bytes:
    try:
        data: bytes = lz4.block.decompress(frame, uncompressed_size=size)
    except (lz4.block.LZ4BlockError, ValueError, OverflowError) as error:
        raise SpecError(f"message: expected packed bytes, got something else ({error}).") from None
    if len(data) != size:
        raise SpecError(f"message: expected {size} unpacked bytes, got {len(data)}.")
    return data
