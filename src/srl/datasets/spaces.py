"""Gymnasium spaces as JSON text, as Minari writes them into the metadata of a dataset."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from gymnasium import spaces

from srl.errors import ConfigError

_SUPPORTED = "Box, Discrete, MultiDiscrete, MultiBinary, and Dict or Tuple of them"


def space_to_json(space: spaces.Space[Any]) -> str:
    """A space as text."""
    return json.dumps(_to_plain(space))


def space_from_json(text: str, where: str) -> spaces.Space[Any]:
    """The inverse of `space_to_json`; `where` names the text in errors."""
    try:
        return _from_plain(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError, AssertionError) as error:
        raise ConfigError(
            f"{where}: expected a space that Minari has written ({_SUPPORTED}), got "
            f"{text!r:.100} ({error})."
        ) from None


def _to_plain(space: spaces.Space[Any]) -> dict[str, Any]:
    match space:
        case spaces.Box():
            bounds = {"low": space.low.tolist(), "high": space.high.tolist()}
            dtype = str(space.dtype)
            return {"type": "Box", "dtype": dtype, "shape": list(space.shape), **bounds}
        case spaces.Discrete():
            start, n = int(space.start), int(space.n)
            return {"type": "Discrete", "dtype": "int64", "start": start, "n": n}
        case spaces.MultiDiscrete():
            sizes = {"nvec": space.nvec.tolist(), "start": space.start.tolist()}
            return {"type": "MultiDiscrete", "dtype": str(space.dtype), **sizes}
        case spaces.MultiBinary():
            size = space.n if isinstance(space.n, int) else [int(n) for n in space.n]
            return {"type": "MultiBinary", "n": size}
        case spaces.Dict():
            parts = {str(key): _to_plain(part) for key, part in space.spaces.items()}
            return {"type": "Dict", "subspaces": parts}
        case spaces.Tuple():
            return {"type": "Tuple", "subspaces": [_to_plain(part) for part in space.spaces]}
    raise ConfigError(f"space: expected {_SUPPORTED}, got {type(space).__name__}.")


def _from_plain(plain: dict[str, Any]) -> spaces.Space[Any]:
    match plain["type"]:
        case "Box":
            dtype: Any = np.dtype(plain["dtype"])
            low, high = (np.array(plain[name], dtype) for name in ("low", "high"))
            return spaces.Box(low, high, tuple(plain["shape"]), dtype)
        case "Discrete":
            return spaces.Discrete(plain["n"], start=plain["start"])
        case "MultiDiscrete":
            start = plain.get("start")
            return spaces.MultiDiscrete(plain["nvec"], dtype=np.dtype(plain["dtype"]), start=start)
        case "MultiBinary":
            return spaces.MultiBinary(plain["n"])
        case "Dict":
            parts = {key: _from_plain(part) for key, part in plain["subspaces"].items()}
            return spaces.Dict(parts)
        case "Tuple":
            return spaces.Tuple([_from_plain(part) for part in plain["subspaces"]])
    raise ConfigError(f"space: expected {_SUPPORTED}, got {plain['type']!r:.100}.")


def is_image(space: spaces.Space[Any]) -> bool:
    """Whether Minari takes a space for an image, which it may store as a JPEG."""
    return (
        isinstance(space, spaces.Box)
        and len(space.shape) in (2, 3)
        and min(space.shape[:2]) >= 32
        and space.dtype == np.uint8
        and bool((space.low == 0).all() and (space.high == 255).all())
    )
