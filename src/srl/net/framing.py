"""Messages as frames: a small typed header, then array bytes as they lie in memory.

The first frame is msgpack: the message, and for every further frame how long it is once unpacked
(0: it travels as it is). What follows is one run of bytes, cut into frames: small arrays share
one, large ones have their own and are not copied on their way to the library. A receiver says where
the bytes belong (`Body.copy_into`); their number must be exact. So nothing is ever allocated
because a message says so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Generic, TypeVar

import lz4.block
import msgspec

from srl.errors import SpecError

Buffer = memoryview | bytes
Frames = Sequence[Buffer]

MAX_HEADER_BYTES = 1 << 20
MAX_FRAMES = 4096
"""Of one message."""
OWN_FRAME_BYTES = 1 << 16
"""An array from this size on is a frame of its own, and is not copied to be sent."""
SHARED_FRAME_BYTES = 1 << 20
"""Small arrays share frames up to about this size."""
PACK_BYTES = 1 << 12
"""Arrays below this are not worth packing."""
MAX_GROWTH = 255
"""lz4 cannot shrink anything by more than this."""

Message = TypeVar("Message")
Natural = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
"""A number that a message may carry: not negative, and no larger than memory can hold."""


class _Header(msgspec.Struct, Generic[Message], array_like=True, frozen=True):
    message: Message
    unpacked: list[Natural] = []
    """Bytes of each further frame once unpacked; 0: it is not packed."""


class Body:
    """The bytes of a received message, to be put where they belong."""

    __slots__ = ("_frames", "_unpacked")

    def __init__(self, frames: list[memoryview], unpacked: list[int]) -> None:
        self._frames = frames
        self._unpacked = unpacked

    @property
    def nbytes(self) -> int:
        """Bytes as they travelled."""
        return sum(frame.nbytes for frame in self._frames)

    def copy_into(self, targets: Iterable[memoryview | int]) -> None:
        """Copies everything into the targets, one after another; a number skips so many bytes.
        SpecError if it does not fit.

        Targets are written from the first on: whoever gets the error has not got a message.
        """
        places = iter(targets)
        for frame, unpacked in zip(self._frames, self._unpacked, strict=True):
            at, size = 0, unpacked or frame.nbytes
            while at < size:
                target = next(places, None)
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
        left = sum(place if isinstance(place, int) else place.nbytes for place in places)
        if left:
            raise SpecError(f"message: expected {left} more bytes, got none. It was cut short.")


class Framing(Generic[Message]):
    """Encodes and decodes the messages of one union of types.

    Its `digest` stands for the types and for the specs that the arrays have; both ends of a
    connection compare theirs before anything else is said.
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
        """A message's frames. `arrays` are flat bytes, which must stay as they are until the
        message is answered; `packed` packs those that are `Packable`."""
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
        """The message and its bytes; anything malformed is a SpecError."""
        if not 0 < len(frames) <= MAX_FRAMES:
            raise SpecError(f"message: expected 1 to {MAX_FRAMES} frames, got {len(frames)}.")
        head = frames[0]
        if head.nbytes > self._max_header_bytes:
            raise SpecError(
                f"message: expected a header of at most {self._max_header_bytes} bytes, got "
                f"{head.nbytes}."
            )
        try:
            header = self._decoder.decode(head)
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
    """Bytes that are worth packing: pixels."""

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
