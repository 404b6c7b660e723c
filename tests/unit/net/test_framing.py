"""The framing: what is sent is what is read, and nothing else is ever taken for a message."""

from __future__ import annotations

import tracemalloc

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from srl.bridge.messages import KINDS, Message, RequestBatch, SlotRequest, WeightsChunk
from srl.errors import SpecError
from srl.net import framing
from srl.net.framing import Framing, Packable

FRAMING: Framing[Message] = Framing(Message, {"plan": 1})
SIZES = st.lists(
    st.sampled_from([0, 1, 7, 100, 4096, 5000, (1 << 16) - 1, 1 << 16, 200_000]), max_size=8
)


def views(frames: list[memoryview | bytes]) -> list[memoryview]:
    return [memoryview(bytes(frame)) for frame in frames]


@given(sizes=SIZES, packed=st.booleans(), seed=st.integers(0, 9), flat=st.booleans())
@settings(max_examples=60)
def test_arrays_come_out_as_they_went_in(
    sizes: list[int], packed: bool, seed: int, flat: bool
) -> None:
    chance = np.random.default_rng(seed)
    arrays = [chance.integers(0, 2 if flat else 255, size, np.uint8) for size in sizes]
    parts = [Packable(a.data) if i % 2 else a.data for i, a in enumerate(arrays)]
    message, body = FRAMING.decode(views(FRAMING.encode(SlotRequest(3, [1]), parts, packed=packed)))
    assert message == SlotRequest(3, [1])
    targets = [np.full(size, 255, np.uint8) for size in sizes]
    body.copy_into(t.data for t in targets)
    for array, target in zip(arrays, targets, strict=True):
        np.testing.assert_array_equal(array, target)


def test_large_arrays_are_not_copied_and_small_ones_share_a_frame() -> None:
    large, small = np.zeros(1 << 20, np.uint8), np.ones(100, np.uint8)
    frames = FRAMING.encode(SlotRequest(0, [0]), [small.data, small.data, large.data, small.data])
    assert [len(frame) for frame in frames[1:]] == [200, 1 << 20, 100]
    large[5] = 7
    assert frames[2][5] == 7, "the sender's own memory"


def test_pixels_are_packed_where_it_helps() -> None:
    pixels = np.zeros((84, 84), np.uint8).reshape(-1)
    noise = np.random.default_rng(0).integers(0, 255, 84 * 84, np.uint8)
    frames = FRAMING.encode(
        SlotRequest(0, [0]), [Packable(pixels.data), Packable(noise.data)], packed=True
    )
    assert len(frames[1]) < 100
    assert len(frames[2]) == noise.nbytes


def test_what_does_not_fit_is_refused() -> None:
    data = np.arange(200_000, dtype=np.uint8) % 200
    for packed in (False, True):
        frames = views(FRAMING.encode(SlotRequest(0, [0]), [Packable(data.data)], packed=packed))
        for size in (0, 100, data.size - 1, data.size + 1, 2 * data.size):
            _, body = FRAMING.decode(frames)
            with pytest.raises(SpecError, match="message: expected"):
                body.copy_into([np.empty(size, np.uint8).data])
        _, body = FRAMING.decode(frames)
        with pytest.raises(SpecError, match="message: expected"):
            body.copy_into([np.empty(data.size, np.uint8).data, 1])
        _, body = FRAMING.decode(frames)
        body.copy_into([data.size])


def test_a_message_that_claims_to_be_huge_costs_nothing() -> None:
    header = msgspec.msgpack.encode([["SlotRequest", 0, [0]], [1 << 40]])
    tracemalloc.start()
    with pytest.raises(SpecError, match="cannot be"):
        FRAMING.decode([memoryview(header), memoryview(b"x" * 100)])
    header = msgspec.msgpack.encode([["SlotRequest", 0, [0]], [20_000]])
    _, body = FRAMING.decode([memoryview(header), memoryview(b"x" * 100)])
    with pytest.raises(SpecError):
        body.copy_into([np.empty(100, np.uint8).data])
    with pytest.raises(SpecError, match="header of at most"):
        FRAMING.decode([memoryview(b"x" * (framing.MAX_HEADER_BYTES + 1))])
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 4 << 20


@pytest.mark.parametrize(
    "header",
    [
        ["SlotRequest", 0, []], ["SlotRequest", -1, [0]], ["SlotRequest", 0, [-1]],
        ["SlotRequest", 0], ["SlotRequest", "0", [0]], ["SlotRequest", 1 << 63, [0]],
        ["RequestBatch", 0, [0] * 5000, [1], [1]], ["nothing"], [],
    ],
)  # fmt: skip
def test_headers_that_no_bridge_would_send_are_refused(header: list[object]) -> None:
    with pytest.raises(SpecError, match="expected a header"):
        FRAMING.decode([memoryview(msgspec.msgpack.encode([header, []]))])


def test_the_digest_stands_for_the_messages_and_the_specs() -> None:
    assert FRAMING.digest == Framing(Message, {"plan": 1}).digest
    assert FRAMING.digest != Framing(Message, {"plan": 2}).digest
    assert FRAMING.digest != Framing(SlotRequest | WeightsChunk, {"plan": 1}).digest


def test_every_kind_of_message_is_listed() -> None:
    tags = [kind.__struct_config__.tag for kind in Message.__args__]
    assert tuple(tags) == KINDS


# -- anything at all -----------------------------------------------------------------------------

Change = tuple[int, list[tuple[int, int]], int, list[int]]
TARGETS = st.lists(st.integers(0, 300), max_size=4)
RAW = st.lists(st.binary(max_size=300), max_size=6)
CHANGED = st.tuples(
    st.integers(0, 3), st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=4),
    st.integers(0, 400), SIZES,
)  # fmt: skip


def check_any(frames: list[bytes], targets: list[int]) -> None:
    """Decodes anything: it is a message that fits, or a SpecError."""
    try:
        _, body = FRAMING.decode([memoryview(frame) for frame in frames])
        body.copy_into(np.empty(size, np.uint8).data for size in targets)
    except SpecError:
        pass


@given(frames=RAW, targets=TARGETS)
@settings(max_examples=1000)
def test_any_bytes_are_a_message_or_an_error(frames: list[bytes], targets: list[int]) -> None:
    check_any(frames, targets)


@given(change=CHANGED)
@settings(max_examples=1000)
def test_a_message_that_was_changed_on_its_way_is_a_message_or_an_error(change: Change) -> None:
    check_changed(change)


def check_changed(change: Change) -> None:
    """Decodes a real message after some of its bytes were changed or cut off."""
    which, changes, cut, targets = change
    arrays = [Packable(np.zeros(5000, np.uint8).data), np.ones(70, np.uint8).data]
    request = RequestBatch(0, [0, 1], [3, 3], [1, 2])
    frames = [bytearray(f) for f in FRAMING.encode(request, arrays, packed=True)]
    frame = frames[which % len(frames)]
    for place, value in changes:
        frame[place % len(frame)] = value
    if cut < len(frame):
        del frame[cut:]
    check_any([bytes(f) for f in frames], targets or [5000, 70])
