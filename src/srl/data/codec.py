"""Turns records and states into bytes and back, without pickle.

Messages have the header's length (4 bytes), the header, then the arrays' bytes one after another.
The header is msgpack: each array's path, dtype and shape, and small values. Files are safetensors,
with all other values as JSON in the metadata.
"""

from __future__ import annotations

import json
import struct
from math import prod
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load, load_file, save, save_file

from srl.data.tree import Tree, flatten, unflatten
from srl.errors import CheckpointError, SpecError

MAX_HEADER_BYTES = 1 << 20
MAX_STATE_HEADER_BYTES = 1 << 24
"""Limit for the header of a file of weights; the header of a hundred thousand arrays fits."""
_DTYPES = {
    name: np.dtype(name)
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64"),
    )
}


class _Field(msgspec.Struct, array_like=True, frozen=True):
    path: str
    dtype: str
    shape: tuple[int, ...]


class _Header(msgspec.Struct, frozen=True):
    fields: list[_Field]
    values: dict[str, int | float | str | bool | None] = {}


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Header)


def encode(arrays: Tree, values: dict[str, Any] | None = None) -> list[memoryview | bytes]:
    """The message as pieces to send one after another. Contiguous arrays are not copied."""
    flat = {path: _native(array) for path, array in flatten(arrays).items()}
    for path, array in flat.items():
        if array.dtype.name not in _DTYPES:
            raise SpecError(f"{path}: expected numbers or flags, got {array.dtype}. Cast it first.")
    fields = [_Field(path, array.dtype.name, array.shape) for path, array in flat.items()]
    header = _encoder.encode(_Header(fields, values or {}))
    return [
        struct.pack("<I", len(header)),
        header,
        *(array.reshape(-1).view(np.uint8).data for array in flat.values()),
    ]


def decode(data: bytes | memoryview) -> tuple[Tree, dict[str, Any]]:
    """Arrays (views of `data`) and values of an encoded message. A malformed message raises
    SpecError."""
    data = memoryview(data)
    if len(data) < 4:
        raise SpecError(f"message: expected at least 4 bytes, got {len(data)}. It was cut short.")
    (size,) = struct.unpack_from("<I", data)
    if size > MAX_HEADER_BYTES or 4 + size > len(data):
        raise SpecError(
            f"message: expected a header within {len(data) - 4} bytes, got one of {size}."
        )
    try:
        header = _decoder.decode(data[4 : 4 + size])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SpecError(
            f"message: expected a header of arrays and values, got other bytes ({error})."
        ) from None
    flat: dict[str, np.ndarray] = {}
    offset = 4 + size
    for entry in header.fields:
        dtype = _DTYPES.get(entry.dtype)
        if dtype is None or any(n < 0 for n in entry.shape) or entry.path in flat:
            raise SpecError(
                f"message: {entry.path!r}: expected one array of a known dtype and a valid shape, "
                f"got {entry.dtype}{list(entry.shape)}, or it comes twice."
            )
        count = prod(entry.shape)
        end = offset + count * dtype.itemsize
        if end > len(data):
            raise SpecError(
                f"message: {entry.path!r} needs {end - offset} bytes, got {len(data) - offset}."
            )
        try:
            flat[entry.path] = np.ndarray(entry.shape, dtype, data, offset)
        except (ValueError, OverflowError) as error:
            raise SpecError(
                f"message: {entry.path!r}: {list(entry.shape)} is not a valid shape ({error})."
            ) from None
        offset = end
    if offset != len(data):
        raise SpecError(f"message: expected {offset} bytes, got {len(data)}.")
    return unflatten(flat), header.values


def _native(array: np.ndarray) -> np.ndarray:
    """The array as a reader expects its bytes: contiguous and little-endian."""
    return np.asarray(array, array.dtype.newbyteorder("<"), order="C")


def save_state(path: Path, state: Tree) -> None:
    """Writes a worker's state: nested dicts and lists of arrays, bytes, strings, numbers (of any
    size) and None."""
    arrays, metadata = _split_arrays(state)
    save_file(arrays, path, metadata)


def dump_state(state: Tree) -> bytes:
    """The bytes that `save_state` would write."""
    return save(*_split_arrays(state))


def parse_state(data: bytes) -> Tree:
    """The inverse of `dump_state`."""
    (size,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + size])
    return _restore(json.loads(header["__metadata__"]["tree"]), load(data))


def _split_arrays(state: Tree) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Splits a state into its arrays, by number, and all other values as JSON text."""
    arrays: dict[str, np.ndarray] = {}

    def plain(value: Any) -> Any:
        if isinstance(value, np.ndarray | bytes):
            key = str(len(arrays))
            if isinstance(value, bytes):
                arrays[key] = np.frombuffer(value, np.uint8)
                return {"$bytes": key}
            arrays[key] = _native(value)
            return {"$array": key}
        if isinstance(value, np.generic):
            return value.item()
        if isinstance(value, dict):
            return {"$dict": [[plain(k), plain(v)] for k, v in value.items()]}
        if isinstance(value, list | tuple):
            return {"$tuple" if isinstance(value, tuple) else "$list": [plain(v) for v in value]}
        if value is None or isinstance(value, bool | int | float | str):
            return value
        raise CheckpointError(
            f"state: expected arrays and plain values, got {type(value).__name__}."
        )

    tree = json.dumps(plain(state))
    return arrays or {"empty": np.zeros(0, np.uint8)}, {"tree": tree}


def load_state(path: Path) -> Tree:
    """Reads what `save_state` wrote."""
    try:
        arrays = load_file(path)
        with safe_open(path, framework="numpy") as file:
            tree = json.loads(file.metadata()["tree"])
        return _restore(tree, arrays)
    except (
        *(OSError, SafetensorError, KeyError, TypeError, ValueError, AttributeError),
        RecursionError,
    ) as error:
        raise CheckpointError(
            f"{path.name}: expected a state file, got a file that cannot be read ({error})."
        ) from error


def state_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Shapes, by name, of the arrays in a state file that holds only arrays.

    Only the file's header is read. Raises CheckpointError if the header is too long, or if the file
    is larger than its arrays.
    """
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > MAX_STATE_HEADER_BYTES:
                raise ValueError(
                    f"its header has {length:,} bytes, the limit is {MAX_STATE_HEADER_BYTES:,}"
                )
            header = json.loads(file.read(length))
        tree = json.loads(header.pop("__metadata__")["tree"])
        keys = {name: reference["$array"] for name, reference in tree["$dict"]}
        shapes = {name: tuple(map(int, header[key]["shape"])) for name, key in keys.items()}
        size, limit = path.stat().st_size, 8 + length + sum(8 * prod(s) for s in shapes.values())
        if size > limit:
            raise ValueError(f"it has {size:,} bytes, but its arrays need at most {limit:,}")
        return shapes
    except (
        *(OSError, KeyError, TypeError, ValueError, AttributeError, IndexError),
        *(struct.error, RecursionError, OverflowError),
    ) as error:
        raise CheckpointError(
            f"{path.name}: expected a state file of arrays, got another file ({error})."
        ) from None


def _restore(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    """The inverse of `_split_arrays`. It removes each array that it uses from `arrays`, so no file
    can become a state that is larger than the file."""
    if not isinstance(value, dict):
        return value
    ((tag, content),) = value.items()
    match tag:
        case "$array":
            return _pop_array(arrays, content)
        case "$bytes":
            return _pop_array(arrays, content).tobytes()
        case "$dict":
            return {_restore(k, arrays): _restore(v, arrays) for k, v in content}
        case "$tuple":
            return tuple(_restore(v, arrays) for v in content)
        case "$list":
            return [_restore(v, arrays) for v in content]
        case _:
            raise ValueError(f"unknown tag {tag!r}")


def _pop_array(arrays: dict[str, np.ndarray], key: str) -> np.ndarray:
    if key not in arrays:
        raise ValueError(f"array {key!r} is missing, or the file refers to it twice")
    return arrays.pop(key)
