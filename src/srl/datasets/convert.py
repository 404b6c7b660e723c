"""Values of Gymnasium spaces, batched over time, and the arrays that SRL stores for them.

SRL stores float64 as float32, and counts categories from 0 (`envs/spaces.py`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from srl.data.spec import AgentSpec, ArraySpec, Discrete, MultiDiscrete, action_array, mask_size
from srl.data.tree import Tree, tree_map
from srl.envs.spaces import (
    AgentSpaces,
    JointDiscrete,
    action_spec,
    agent_spaces,
    children,
    obs_spec,
)
from srl.errors import ConfigError, SpecError


def to_space(stored: Tree, space: spaces.Space[Any]) -> Any:
    """Stored observations [n, ...] as values of their space."""
    if isinstance(space, spaces.Dict):
        return {key: to_space(stored[key], part) for key, part in children(space)}
    if isinstance(space, spaces.Tuple):
        return tuple(to_space(stored[key], part) for key, part in children(space))
    return (stored + np.asarray(getattr(space, "start", 0))).astype(space.dtype, copy=False)


def from_space(value: Any, space: spaces.Space[Any], spec: Tree) -> Tree:
    """Values [n, ...] of a space as observations of a spec are stored."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = value if isinstance(value, dict) else dict(enumerate(value))
        by_key = {str(key): part for key, part in parts.items()}
        return {key: from_space(by_key[key], part, spec[key]) for key, part in children(space)}
    return _cast(np.asarray(value) - np.asarray(getattr(space, "start", 0)), spec)


def _cast(value: np.ndarray, spec: ArraySpec) -> np.ndarray:
    if value.shape[1:] != spec.shape:
        raise SpecError(f"expected {spec}, got {value.dtype}{list(value.shape[1:])}.")
    if value.dtype.kind == "f" and not np.isfinite(value).all():
        raise SpecError(f"expected finite numbers, got {value[~np.isfinite(value)][0]}.")
    if spec.categories:
        sizes = np.reshape(spec.categories, spec.shape)
        if not ((value >= 0) & (value < sizes)).all():
            raise SpecError(f"expected categories below {sizes.tolist()}, got others.")
    return value.astype(spec.dtype, copy=False)


class EpisodeSpaces:
    """The spaces of a dataset, and how its values become what an agent of an environment stores."""

    def __init__(
        self, observation: spaces.Space[Any], action: spaces.Space[Any], agent: AgentSpec
    ) -> None:
        """Raises a ConfigError unless the spaces are those of `agent`."""
        self.agent = agent
        self._spaces: AgentSpaces = agent_spaces(observation, action)
        self._action = _joint(self._spaces.action, agent)
        expected = tree_map(lambda leaf: ArraySpec(**_unstacked(leaf)), agent.obs)
        got = obs_spec(self._spaces.observation)
        if got != expected:
            raise ConfigError(f"observations {_shown(expected)}, got {_shown(got)}")
        if action_spec(self._action) != agent.action:
            raise ConfigError(f"actions {agent.action}, got {action_spec(self._action)}")

    def observations(self, value: Any, masks: Any) -> tuple[Tree, np.ndarray | None]:
        """The stored form of observations [n, ...], and their action masks, if the agent has any.

        `masks` are those that were recorded beside the observations.
        """
        seen, own = self._spaces.take_mask(value, {"action_mask": masks})
        obs = from_space(seen, self._spaces.observation, self.agent.obs)
        if not self.agent.has_action_mask:
            return obs, None
        if own is None:
            raise SpecError("expected action masks (infos/action_mask), got none.")
        return obs, np.asarray(own, bool).reshape(len(own), mask_size(self.agent.action))

    def actions(self, value: np.ndarray) -> np.ndarray:
        """The stored form of actions [n, ...]."""
        spec, space = action_array(self.agent.action), self._action
        joint = space.parts if isinstance(space, JointDiscrete) else None
        value = np.asarray(value) - np.asarray(getattr(joint or space, "start", 0))
        if joint is not None:
            sizes = tuple(int(n) for n in joint.nvec.reshape(-1))
            value = np.ravel_multi_index(tuple(value.reshape(len(value), -1).T), sizes)
        flat = value.reshape(len(value), *spec.shape)
        match self.agent.action:
            case Discrete(n):
                most: Any = n
            case MultiDiscrete(nvec):
                most = np.array(nvec)
            case _:
                return _cast(flat, spec)
        if not ((flat >= 0) & (flat < most)).all():
            raise SpecError(f"expected actions of {self.agent.action}, got others.")
        return _cast(flat, spec)


def _joint(space: spaces.Space[Any], agent: AgentSpec) -> spaces.Space[Any]:
    """The action space, where masks of the agent allow combinations of a MultiDiscrete."""
    if isinstance(space, spaces.MultiDiscrete) and isinstance(agent.action, Discrete):
        return JointDiscrete(space)
    return space


def _unstacked(leaf: ArraySpec) -> dict[str, Any]:
    return {"shape": leaf.shape, "dtype": leaf.dtype, "categories": leaf.categories}


def _shown(spec: Tree) -> str:
    return str(tree_map(str, spec)).replace("'", "")
