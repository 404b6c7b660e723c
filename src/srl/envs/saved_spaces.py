"""What an environment declares, as a small JSON file: enough to act without the environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from gymnasium import spaces

from srl.data.spec import (
    AgentSpec,
    ArraySpec,
    Box,
    Discrete,
    EnvSpec,
    MultiBinary,
    MultiDiscrete,
    to_plain,
)
from srl.data.tree import Tree, tree_map
from srl.envs.spaces import AgentSpaces, JointDiscrete, obs_starts


class SavedAgent(msgspec.Struct, frozen=True, kw_only=True):
    """What the specs of one agent do not say about its spaces."""

    starts: Any
    """The first category of each leaf of the observation, or 0: a tree of numbers or lists."""
    dtype: str
    """The dtype of actions, and their shape and first categories."""
    shape: tuple[int, ...]
    action_start: Any
    joint: tuple[int, ...] = ()
    """The choices of each part, where the action is one choice out of their combinations."""
    mask_dims: int = 0
    alone: bool = False
    """These two are as in `AgentSpaces`."""


class SavedSpaces(msgspec.Struct, frozen=True, kw_only=True):
    """The specs and the spaces of an environment's agents."""

    spec: EnvSpec
    agents: dict[str, SavedAgent]

    @classmethod
    def of(cls, spec: EnvSpec, spaces: Mapping[str, AgentSpaces]) -> SavedSpaces:
        """What is saved of an environment."""
        return cls(spec=spec, agents={name: _saved(own) for name, own in spaces.items()})

    def encoded(self) -> bytes:
        """As JSON."""
        spec = msgspec.to_builtins(self.spec)
        spec["env_state"] = to_plain(self.spec.env_state)
        for name, agent in self.spec.agents.items():
            spec["agents"][name]["obs"] = to_plain(agent.obs)
        return msgspec.json.encode({"spec": spec, "agents": self.agents})

    def agent(self, name: str) -> AgentSpaces:
        """The spaces of an agent. Those of its observations have no bounds: nothing needs them."""
        return _restored(self.spec.agents[name], self.agents[name])


def _saved(own: AgentSpaces) -> SavedAgent:
    action = own.action
    joint: tuple[int, ...] = ()
    if isinstance(action, JointDiscrete):
        joint = tuple(int(n) for n in action.parts.nvec.reshape(-1))
        action = action.parts
    return SavedAgent(
        starts=tree_map(lambda start: start.tolist(), obs_starts(own.observation)),
        dtype=np.dtype(action.dtype).name,
        shape=tuple(action.shape or ()),
        action_start=np.asarray(getattr(action, "start", 0)).tolist(),
        joint=joint,
        mask_dims=own.mask_dims,
        alone=own.alone,
    )


def _restored(agent: AgentSpec, saved: SavedAgent) -> AgentSpaces:
    action: spaces.Space[Any]
    dtype: Any = np.dtype(saved.dtype)
    start = saved.action_start
    match agent.action:
        case Discrete() if saved.joint:
            parts = spaces.MultiDiscrete(np.reshape(saved.joint, saved.shape), dtype, start=start)
            action = JointDiscrete(parts)
        case Discrete(n):
            action = spaces.Discrete(n, start=start)
        case MultiDiscrete(nvec):
            action = spaces.MultiDiscrete(np.reshape(nvec, saved.shape), dtype, start=start)
        case MultiBinary():
            action = spaces.MultiBinary(list(saved.shape))
        case Box(shape, low, high):
            bounds = (np.reshape(np.array(bound), shape).astype(dtype) for bound in (low, high))
            action = spaces.Box(*bounds, shape, dtype)
    return AgentSpaces(_observation(agent.obs, saved.starts), action, saved.mask_dims, saved.alone)


def _observation(spec: Tree, starts: Any) -> spaces.Space[Any]:
    if not isinstance(spec, ArraySpec):
        return spaces.Dict({key: _observation(spec[key], starts[key]) for key in spec})
    if not spec.categories:
        low, high = (-np.inf, np.inf) if spec.dtype.startswith("float") else (0, 1)
        return spaces.Box(low, high, spec.shape, np.dtype(spec.dtype).type)
    if not spec.shape:
        return spaces.Discrete(spec.categories[0], start=starts)
    sizes, first = (np.reshape(numbers, spec.shape) for numbers in (spec.categories, starts))
    return spaces.MultiDiscrete(sizes, start=first)
