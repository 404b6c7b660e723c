"""Turns Gymnasium spaces into specs, and stored actions into actions of the environment.

Float64 observation boxes are declared as float32 and cast when they are written, because networks
compute in float32 and records need half the bytes. All other dtypes stay. A Discrete that does not
start at 0 is stored from 0.
"""

from __future__ import annotations

from collections.abc import Mapping
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
    mask_parts,
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
    """The parts of a Dict or Tuple with their keys; a Tuple's keys are "0", "1" and so on."""
    if isinstance(space, spaces.Dict):
        return [(str(key), child) for key, child in space.spaces.items()]
    return [(str(index), child) for index, child in enumerate(space.spaces)]


def obs_starts(space: spaces.Space[Any]) -> Tree:
    """The first category of each leaf of an observation, or 0; a tree like that of `obs_spec`."""
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


class JointDiscrete(spaces.Discrete):  # type: ignore[misc]
    """One choice out of all combinations of a MultiDiscrete, for masks that allow combinations."""

    def __init__(self, parts: spaces.MultiDiscrete) -> None:
        super().__init__(int(np.prod(parts.nvec)))
        self.parts = parts


class AgentSpaces(NamedTuple):
    """An agent's spaces, as its environment declares them."""

    observation: spaces.Space[Any]
    """Without the action mask, if that comes with the observation."""
    action: spaces.Space[Any]
    mask_dims: int = 0
    """Dimensions of the mask that comes with the observation; 0 if there is none."""
    alone: bool = False
    """Whether the Dict holds only the key "observation" beside the mask."""

    def take_mask(self, obs: Any, info: Mapping[str, Any]) -> tuple[Any, Any]:
        """The observation without its mask, and the mask [..., choices], or None.

        The mask comes with the observation, or else in the info. `obs` may be a batch.
        """
        if not self.mask_dims or not isinstance(obs, dict) or _MASK not in obs:
            return obs, info.get(_MASK)
        mask = np.asarray(obs[_MASK])
        if self.mask_dims > 1 and mask.ndim >= self.mask_dims:
            mask = mask.reshape(*mask.shape[: mask.ndim - self.mask_dims], -1)
        if self.alone and set(obs) == {"observation", _MASK}:
            return obs["observation"], mask
        return {key: value for key, value in obs.items() if key != _MASK}, mask


_MASK = "action_mask"


def agent_spaces(observation: spaces.Space[Any], action: spaces.Space[Any]) -> AgentSpaces:
    """An agent's spaces.

    A leaf `action_mask` of a Dict is the mask of an action with choices. It is taken out of the
    observation.
    """
    leaf = observation.spaces.get(_MASK) if isinstance(observation, spaces.Dict) else None
    if leaf is None or isinstance(action, spaces.Box):
        return AgentSpaces(observation, action)
    rest = {key: child for key, child in observation.spaces.items() if key != _MASK}
    alone = set(rest) == {"observation"}
    seen = rest["observation"] if alone else spaces.Dict(rest)
    parts = mask_parts(action_spec(action))
    shape = tuple(leaf.shape or ())
    if shape == (sum(parts),) or (len(set(parts)) == 1 and shape == (len(parts), parts[0])):
        return AgentSpaces(seen, action, len(shape), alone)
    if isinstance(action, spaces.MultiDiscrete) and shape == parts:
        return AgentSpaces(seen, JointDiscrete(action), len(shape), alone)
    combined = f", or {list(parts)} for combinations of them" if len(parts) > 1 else ""
    raise ConfigError(
        f"obs.{_MASK}: expected the mask of {action}, shape [{sum(parts)}]{combined}, got shape "
        f"{list(shape)}. Give it one entry for each choice, or rename the key if it is not a mask."
    )


def agent_spec(
    observation: spaces.Space[Any],
    action: spaces.Space[Any],
    *,
    has_action_mask: bool = False,
    stack: int = 1,
    agent: str = "",
) -> AgentSpec:
    """The spec of one agent. A mask inside the observation is taken out of it."""
    own = agent_spaces(observation, action)
    where = f" of {agent}" if agent else ""
    return AgentSpec(
        obs=obs_spec(own.observation, stack=stack, name=f"obs{where}"),
        action=action_spec(own.action, name=f"action{where}"),
        has_action_mask=has_action_mask or own.mask_dims > 0,
    )


class ActionAdapter:
    """Turns stored actions into actions of the environment's own action space.

    Box actions are clipped to the bounds and cast to the space's dtype. Records keep the unclipped
    actions.
    """

    def __init__(self, space: spaces.Space[Any]) -> None:
        self._joint_sizes: tuple[int, ...] | None = None
        if isinstance(space, JointDiscrete):
            space = space.parts
            self._joint_sizes = tuple(int(n) for n in space.nvec.reshape(-1))
        self._dtype = np.dtype(space.dtype)
        self._shape = tuple(space.shape or ())
        start = np.asarray(getattr(space, "start", 0), self._dtype)
        self._start = start if start.any() else None
        self._box = space if isinstance(space, spaces.Box) else None
        self._rounds = self._box is not None and self._dtype.kind in "iu"

    def batch(self, actions: np.ndarray) -> np.ndarray:
        """Actions [rows, ...] as one new array in the space's dtype."""
        if self._joint_sizes is not None:
            actions = np.stack(np.unravel_index(actions, self._joint_sizes), axis=-1)
        elif self._box is not None:
            actions = np.minimum(np.maximum(actions, self._box.low), self._box.high)
            if self._rounds:
                actions = np.rint(actions)
        batch = actions.astype(self._dtype).reshape(len(actions), *self._shape)
        return batch if self._start is None else batch + self._start

    def write(self, actions: np.ndarray, out: np.ndarray) -> None:
        """Writes actions into an existing array; plain choices need no new array."""
        direct = self._box is None and self._joint_sizes is None and self._start is None
        plain = direct and actions.shape == out.shape
        out[...] = actions if plain else self.batch(actions)

    def one(self, action: np.ndarray) -> Any:
        """One row's action."""
        return self.batch(action[None])[0]
