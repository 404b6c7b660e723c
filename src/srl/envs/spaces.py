"""Gymnasium spaces as our specs, and actions on their way back.

Float64 observation boxes are declared as float32 and cast when they are written: networks compute
in float32, and half the bytes travel. All other dtypes are kept. A Discrete that does not start
at 0 is stored from 0.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from srl.data.spec import (
    ActionSpec,
    AgentSpec,
    ArraySpec,
    Box,
    Discrete,
    MultiBinary,
    MultiDiscrete,
)
from srl.data.tree import Tree
from srl.errors import ConfigError

_SUPPORTED = "Box, Discrete, MultiDiscrete, MultiBinary, and Dict or Tuple of them"


def obs_spec(space: spaces.Space[Any], *, stack: int = 1, name: str = "obs") -> Tree:
    """The tree of ArraySpec that an observation space declares; `stack` is for its Box leaves."""
    match space:
        case spaces.Dict() | spaces.Tuple():
            tree = {}
            for key, child in children(space):
                if "." in key:
                    raise ConfigError(
                        f"{name}: expected keys without dots, got {key!r}. Rename it in a wrapper."
                    )
                tree[key] = obs_spec(child, stack=stack, name=f"{name}.{key}")
            if not tree:
                raise ConfigError(
                    f"{name}: expected something to observe, got an empty {type(space).__name__}. "
                    "Remove it from the observation space."
                )
            return tree
        case spaces.Box():
            dtype = "float32" if space.dtype == np.float64 else np.dtype(space.dtype).name
            return ArraySpec(shape=tuple(space.shape), dtype=dtype, stack=stack)
        case spaces.Discrete():
            return ArraySpec(dtype="int64", categories=(int(space.n),))
        case spaces.MultiDiscrete():
            sizes = tuple(int(n) for n in space.nvec.reshape(-1))
            return ArraySpec(shape=tuple(space.nvec.shape), dtype="int64", categories=sizes)
        case spaces.MultiBinary():
            return ArraySpec(shape=tuple(space.shape), dtype="int8")
    raise ConfigError(
        f"{name}: expected {_SUPPORTED}, got {type(space).__name__}. "
        "Turn it into an array of fixed size in a wrapper."
    )


def children(space: spaces.Dict | spaces.Tuple) -> list[tuple[str, spaces.Space[Any]]]:
    """The parts of a Dict or Tuple by our key: a Tuple's are "0", "1", ..."""
    if isinstance(space, spaces.Dict):
        return [(str(key), child) for key, child in space.spaces.items()]
    return [(str(index), child) for index, child in enumerate(space.spaces)]


def obs_starts(space: spaces.Space[Any]) -> Tree:
    """What the categories of an observation begin with, 0 elsewhere; a tree as of `obs_spec`."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return {key: obs_starts(child) for key, child in children(space)}
    return np.asarray(getattr(space, "start", 0))


def action_spec(space: spaces.Space[Any], *, name: str = "action") -> ActionSpec:
    """The ActionSpec that an action space declares."""
    match space:
        case spaces.Discrete():
            return Discrete(int(space.n))
        case spaces.MultiDiscrete():
            return MultiDiscrete(tuple(int(n) for n in space.nvec.reshape(-1)))
        case spaces.MultiBinary():
            return MultiBinary(int(np.prod(space.shape)))
        case spaces.Box():
            return Box(
                shape=tuple(space.shape),
                low=tuple(space.low.astype(np.float64).reshape(-1).tolist()),
                high=tuple(space.high.astype(np.float64).reshape(-1).tolist()),
            )
    raise ConfigError(
        f"{name}: expected Box, Discrete, MultiDiscrete or MultiBinary, got "
        f"{type(space).__name__}. Flatten it in a wrapper (for example into a MultiDiscrete)."
    )


class AgentSpaces(NamedTuple):
    """What an agent sees and does, as its environment declares it."""

    observation: spaces.Space[Any]
    """Without a mask that comes with it."""
    action: spaces.Space[Any]


def split_mask(space: spaces.Space[Any]) -> tuple[spaces.Space[Any], bool]:
    """What is observed, and whether it comes as PettingZoo's {"observation", "action_mask"}."""
    if isinstance(space, spaces.Dict) and set(space.spaces) == {"observation", "action_mask"}:
        return space.spaces["observation"], True
    return space, False


def agent_spec(
    observation: spaces.Space[Any],
    action: spaces.Space[Any],
    *,
    has_action_mask: bool = False,
    stack: int = 1,
    agent: str = "",
) -> AgentSpec:
    """What one agent sees and does. A mask inside the observation is taken out of it."""
    seen, masked = split_mask(observation)
    where = f" of {agent}" if agent else ""
    return AgentSpec(
        obs=obs_spec(seen, stack=stack, name=f"obs{where}"),
        action=action_spec(action, name=f"action{where}"),
        has_action_mask=has_action_mask or masked,
    )


class ActionAdapter:
    """Actions as we store them into what the environment's own action space contains.

    Box actions are clipped to the bounds and cast to the space's dtype; records keep the unclipped.
    """

    def __init__(self, space: spaces.Space[Any]) -> None:
        self._dtype = np.dtype(space.dtype)
        self._shape = tuple(space.shape or ())
        start = np.asarray(getattr(space, "start", 0), self._dtype)
        self._start = start if start.any() else None
        self._box = space if isinstance(space, spaces.Box) else None
        self._rounds = self._box is not None and self._dtype.kind in "iu"

    def batch(self, actions: np.ndarray) -> np.ndarray:
        """Actions [rows, ...] as one new array in the space's dtype."""
        if self._box is not None:
            actions = np.minimum(np.maximum(actions, self._box.low), self._box.high)
            if self._rounds:
                actions = np.rint(actions)
        batch = actions.astype(self._dtype).reshape(len(actions), *self._shape)
        return batch if self._start is None else batch + self._start

    def write(self, actions: np.ndarray, out: np.ndarray) -> None:
        """The same into an array that is there; plain choices, without one in between."""
        plain = self._box is None and self._start is None and actions.shape == out.shape
        out[...] = actions if plain else self.batch(actions)

    def one(self, action: np.ndarray) -> Any:
        """One row's action."""
        return self.batch(action[None])[0]
