"""Records and states as bytes: everything comes back, and nothing malformed gets in."""

from __future__ import annotations

import contextlib
import json
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.numpy import save_file

from srl.data.codec import MAX_HEADER_BYTES, decode, encode, load_state, save_state
from srl.data.tree import flatten, leaves
from srl.errors import CheckpointError, SpecError

DTYPES = st.sampled_from(
    [
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", ">f4", ">i8"),
    ]
)
ARRAYS = DTYPES.flatmap(
    lambda dtype: hnp.arrays(
        dtype, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
    )
)
NAMES = st.text(st.characters(exclude_characters=".", exclude_categories=["Cs"]), min_size=1)
TREES = st.recursive(ARRAYS, lambda inner: st.dictionaries(NAMES, inner, min_size=1, max_size=3))
VALUES = st.dictionaries(
    st.text(st.characters(exclude_categories=["Cs"])),
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
)


def joined(tree: Any, values: dict[str, Any] | None = None) -> bytes:
    return b"".join(bytes(frame) for frame in encode(tree, values))


def assert_same(got: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        assert set(got) == set(expected)
        for key, value in expected.items():
            assert_same(got[key], value)
        return
    assert got.shape == expected.shape
    assert got.dtype == expected.dtype.newbyteorder("=")
    np.testing.assert_array_equal(got, expected)


@given(tree=TREES, values=VALUES)
@hypothesis_settings(max_examples=150)
def test_a_message_comes_back_as_it_was(tree: Any, values: dict[str, Any]) -> None:
    got, got_values = decode(joined(tree, values))
    assert_same(got, tree)
    assert got_values == values


def test_arrays_come_back_from_any_memory_layout() -> None:
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    tree = {"columns": base[:, ::2], "turned": base.T, "scalar": np.float32(3).reshape(())}
    assert_same(decode(joined(tree))[0], tree)


def test_contiguous_arrays_are_not_copied() -> None:
    array = np.zeros(1000, np.float32)
    frame = encode({"x": array})[-1]
    array[0] = 7.0
    assert np.frombuffer(frame, np.float32)[0] == 7.0
    data = joined({"x": array})
    assert np.shares_memory(decode(data)[0]["x"], np.frombuffer(data, np.uint8))


def test_what_no_number_is_is_refused_when_it_is_sent() -> None:
    with pytest.raises(SpecError, match=r"a\.b: expected numbers or flags, got <U5"):
        encode({"a": {"b": np.array(["words"])}})


# -- malformed messages --------------------------------------------------------------------------


@given(data=st.binary(max_size=300))
@hypothesis_settings(max_examples=300)
def test_random_bytes_are_a_spec_error_or_a_message(data: bytes) -> None:
    decode_or_spec_error(data)


@given(data=st.data(), tree=TREES, values=VALUES)
@hypothesis_settings(max_examples=300)
def test_mutated_messages_are_a_spec_error_or_a_message(
    data: st.DataObject, tree: Any, values: dict[str, Any]
) -> None:
    message = bytearray(joined(tree, values))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(message) - 1)) if message else 0
        match data.draw(st.sampled_from(["flip", "cut", "insert", "drop"])):
            case "flip":
                message[at : at + 1] = bytes([data.draw(st.integers(0, 255))])
            case "cut":
                del message[at:]
            case "insert":
                message[at:at] = data.draw(st.binary(max_size=8))
            case "drop":
                del message[at : at + data.draw(st.integers(1, 8))]
    decode_or_spec_error(bytes(message))


def decode_or_spec_error(data: bytes) -> None:
    try:
        tree, values = decode(data)
    except SpecError:
        return
    # What gets through is a message: no array reaches beyond the bytes that came.
    assert sum(array.nbytes for array in leaves(tree)) <= len(data)
    assert isinstance(values, dict)


HEADER = msgspec.msgpack.Encoder()


def crafted(fields: list[Any], body: bytes = b"", **rest: Any) -> bytes:
    header = HEADER.encode({"fields": fields, **rest})
    return struct.pack("<I", len(header)) + header + body


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"", "cut short"),
        (b"\0\0", "cut short"),
        (struct.pack("<I", 100), "expected a header"),
        (
            struct.pack("<I", MAX_HEADER_BYTES + 1) + bytes(2 * MAX_HEADER_BYTES),
            "expected a header",
        ),
        (struct.pack("<I", 4) + b"\xff\xff\xff\xff", "other bytes"),
        (crafted([["a", "float32", [2]]], bytes(4)), "needs 8 bytes, got 4"),
        (crafted([["a", "float32", [1]]], bytes(8)), "expected"),
        (crafted([["a", "object", [1]]], bytes(8)), "a valid shape, got"),
        (crafted([["a", "float32", [-1]]], bytes(8)), "a valid shape, got"),
        (crafted([["a", "uint8", [1]], ["a", "uint8", [1]]], bytes(2)), "a valid shape, got"),
        (crafted([["a", "uint8", [1]], ["a.b", "uint8", [1]]], bytes(2)), "goes through"),
        (crafted([["a.b", "uint8", [1]], ["a", "uint8", [1]]], bytes(2)), "a subtree there"),
        (crafted([["a", "float64", [2**40, 2**40]]], bytes(8)), "needs"),
        (crafted([["a", "uint8", [2**63, 0]]]), "is not a valid shape"),
        (crafted([["a", "uint8", [0] * 100]]), "is not a valid shape"),
        (crafted([[".".join("a" * 5000), "uint8", [1]]], bytes(1)), "levels"),
        (crafted([["a", "uint8", [1]]], bytes(1), values={"x": [1]}), "other bytes"),
    ],
)
def test_every_kind_of_malformed_message_says_what_is_wrong(message: bytes, reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        decode(message)


def test_a_message_cannot_make_its_reader_reserve_more_than_it_is_long() -> None:
    claims = [[f"x{i}", "float64", [2**33]] for i in range(50)]
    tracemalloc.start()
    with pytest.raises(SpecError):
        decode(crafted(claims, bytes(100)))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20


# -- states --------------------------------------------------------------------------------------

PLAIN = (
    st.none()
    | st.booleans()
    | st.integers(-(2**130), 2**130)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(max_size=20)
    | ARRAYS.filter(lambda array: array.dtype.isnative)
)
KEYS = st.text(max_size=5) | st.integers() | st.tuples(st.integers(), st.text(max_size=3))
STATES = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(KEYS, inner, max_size=3)
    ),
    max_leaves=8,
)


def assert_same_state(got: Any, expected: Any) -> None:
    assert type(got) is type(expected)
    if isinstance(expected, dict):
        assert list(got) == list(expected)
        for key in expected:
            assert_same_state(got[key], expected[key])
    elif isinstance(expected, list | tuple):
        assert len(got) == len(expected)
        for mine, other in zip(got, expected, strict=True):
            assert_same_state(mine, other)
    elif isinstance(expected, np.ndarray):
        assert got.dtype == expected.dtype
        assert got.shape == expected.shape
        np.testing.assert_array_equal(got, expected)
    else:
        assert got == expected


@given(state=STATES)
@hypothesis_settings(max_examples=150)
def test_a_state_comes_back_as_it_was(tmp_path_factory: pytest.TempPathFactory, state: Any) -> None:
    path = tmp_path_factory.getbasetemp() / "state.safetensors"
    save_state(path, state)
    assert_same_state(load_state(path), state)


def test_random_states_of_every_generator_survive(tmp_path: Path) -> None:
    import random

    generator = np.random.default_rng(3)
    generator.random(5)
    path = tmp_path / "state"
    save_state(path, {"numpy": generator.bit_generator.state, "python": random.getstate()})
    state = load_state(path)
    other = np.random.default_rng()
    other.bit_generator.state = state["numpy"]
    assert other.random() == generator.random()
    random.setstate(state["python"])


def test_numbers_of_numpy_become_plain_ones(tmp_path: Path) -> None:
    save_state(tmp_path / "s", {"a": np.int64(3), "b": np.float32(0.5), "c": np.bool_(True)})
    assert load_state(tmp_path / "s") == {"a": 3, "b": 0.5, "c": True}


def test_what_is_no_state_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="got set"):
        save_state(tmp_path / "s", {"a": {1, 2}})


@given(data=st.data())
@hypothesis_settings(max_examples=100)
def test_a_damaged_state_file_is_a_checkpoint_error_or_a_state(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.safetensors"
    save_state(path, {"a": np.arange(5), "b": [1, (2, b"xyz")], "c": {"d": None}})
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] = data.draw(st.integers(0, 255))
    del content[data.draw(st.integers(0, len(content))) :]
    path.write_bytes(content)
    with contextlib.suppress(CheckpointError):
        load_state(path)


@pytest.mark.parametrize(
    "tree",
    [
        {},
        {"$array": "7"},
        {"$unknown": []},
        {"$dict": [[1]]},
        {"$dict": [[{"$list": []}, 1]]},
        {"$bytes": 3},
        {"$list": 3},
        {"$array": "empty", "$list": []},
    ],
)
def test_a_crafted_state_file_is_a_checkpoint_error(tmp_path: Path, tree: Any) -> None:
    save_file({"empty": np.zeros(0)}, tmp_path / "s", metadata={"tree": json.dumps(tree)})
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_state(tmp_path / "s")


def test_a_deep_state_file_is_a_checkpoint_error(tmp_path: Path) -> None:
    deep = '{"$list":[' * 50_000 + "]}" * 50_000
    save_file({"empty": np.zeros(0)}, tmp_path / "s", metadata={"tree": deep})
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_state(tmp_path / "s")


@pytest.mark.parametrize("mark", ["$array", "$bytes"])
def test_a_state_file_does_not_multiply_its_arrays(tmp_path: Path, mark: str) -> None:
    tree = {"$list": [{mark: "0"}, {mark: "0"}]}
    save_file({"0": np.zeros(9, np.uint8)}, tmp_path / "s", metadata={"tree": json.dumps(tree)})
    with pytest.raises(CheckpointError, match="refers to it twice"):
        load_state(tmp_path / "s")


def test_a_missing_state_file_is_a_checkpoint_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nowhere"):
        load_state(tmp_path / "nowhere")


def test_a_flat_tree_is_the_same_tree() -> None:
    tree = {"a": {"b": 1, "c": {"d": 2}}, "e": 3}
    assert flatten(tree) == {"a.b": 1, "a.c.d": 2, "e": 3}
