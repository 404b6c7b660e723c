"""Records and states as bytes and back, without pickle.

On the wire: the header's length (4 bytes), the header (msgpack: each array's path, dtype, shape;
small values beside them), then the arrays' bytes one after another. In files: safetensors, with the
rest as JSON beside it.
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
    """Frames to send one after another; array bytes are not copied where they are contiguous."""
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
    """Arrays (views of `data`) and values of an encoded message; anything malformed
    is a SpecError."""
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
            f"message: expected a header of arrays and values, got garbage ({error})."
        ) from None
    flat: dict[str, np.ndarray] = {}
    offset = 4 + size
    for entry in header.fields:
        dtype = _DTYPES.get(entry.dtype)
        if dtype is None or any(n < 0 for n in entry.shape) or entry.path in flat:
            raise SpecError(
                f"message: {entry.path!r} has no valid array ({entry.dtype}{list(entry.shape)})."
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
            raise SpecError(f"message: {entry.path!r} has no valid shape ({error}).") from None
        offset = end
    if offset != len(data):
        raise SpecError(f"message: expected {offset} bytes, got {len(data)}.")
    return unflatten(flat), header.values


def _native(array: np.ndarray) -> np.ndarray:
    """The array as its bytes will be read: contiguous, in the byte order of all our machines."""
    return np.asarray(array, array.dtype.newbyteorder("<"), order="C")


def save_state(path: Path, state: Tree) -> None:
    """Writes a worker's state: nested dicts and lists of arrays, bytes, strings, numbers (of any
    size) and None."""
    arrays, metadata = _apart(state)
    save_file(arrays, path, metadata)


def dump_state(state: Tree) -> bytes:
    """What `save_state` would write."""
    return save(*_apart(state))


def parse_state(data: bytes) -> Tree:
    """The inverse of `dump_state`."""
    (size,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + size])
    return _restore(json.loads(header["__metadata__"]["tree"]), load(data))


def _apart(state: Tree) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Arrays by number, and all else as text."""
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
            f"{path.name}: expected a state file, got something unreadable ({error})."
        ) from error


def _restore(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    if not isinstance(value, dict):
        return value
    ((tag, content),) = value.items()
    match tag:
        case "$array":
            return arrays[content]
        case "$bytes":
            return arrays[content].tobytes()
        case "$dict":
            return {_restore(k, arrays): _restore(v, arrays) for k, v in content}
        case "$tuple":
            return tuple(_restore(v, arrays) for v in content)
        case "$list":
            return [_restore(v, arrays) for v in content]
        case _:
            raise ValueError(f"unknown mark {tag!r}")
