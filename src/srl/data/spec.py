"""Shapes and dtypes of what travels, declared once by the environment and the policy."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np

from srl.data.tree import Tree, tree_map
from srl.errors import SpecError


class ArraySpec(msgspec.Struct, frozen=True, kw_only=True):
    """Shape and dtype of one leaf of a tree, for one row."""

    shape: tuple[int, ...] = ()
    dtype: str = "float32"
    stack: int = 1
    """Frames that the policy sees at once. Each frame is stored once and stacked when read, so the
    policy sees `(stack, *shape)`."""
    categories: tuple[int, ...] = ()
    """For integer leaves that hold categories: their number, for each element. Encoders make such
    leaves one-hot."""

    @property
    def seen_shape(self) -> tuple[int, ...]:
        """The shape a policy sees."""
        return (self.stack, *self.shape) if self.stack > 1 else self.shape

    def __str__(self) -> str:
        dims = ",".join(str(n) for n in self.shape)
        return f"{self.dtype}[{dims}]" + (f" stacked {self.stack}" if self.stack > 1 else "")


class Discrete(msgspec.Struct, frozen=True, tag="discrete"):
    """One choice of n; actions are int64[]."""

    n: int


class MultiDiscrete(msgspec.Struct, frozen=True, tag="multi_discrete"):
    """Several independent choices; actions are int64[len(nvec)]."""

    nvec: tuple[int, ...]


class MultiBinary(msgspec.Struct, frozen=True, tag="multi_binary"):
    """n independent switches; actions are int8[n]."""

    n: int


class Box(msgspec.Struct, frozen=True, tag="box"):
    """Real numbers between bounds (bounds may be infinite); actions are float32[shape]."""

    shape: tuple[int, ...]
    low: tuple[float | None, ...]
    """Flat, one per element. JSON has no infinity: null in a message becomes -inf here."""
    high: tuple[float | None, ...]
    """Flat, one per element; null becomes inf."""

    def __post_init__(self) -> None:
        for name, unbounded in (("low", -math.inf), ("high", math.inf)):
            bounds = tuple(unbounded if x is None else x for x in getattr(self, name))
            msgspec.structs.force_setattr(self, name, bounds)


ActionSpec = Discrete | MultiDiscrete | MultiBinary | Box


def action_array(action: ActionSpec) -> ArraySpec:
    """How an action of this kind is stored."""
    match action:
        case Discrete():
            return ArraySpec(dtype="int64")
        case MultiDiscrete():
            return ArraySpec(shape=(len(action.nvec),), dtype="int64")
        case MultiBinary():
            return ArraySpec(shape=(action.n,), dtype="int8")
        case Box():
            return ArraySpec(shape=action.shape)


def mask_size(action: ActionSpec) -> int:
    """The number of entries in an action mask: one for each choice of each part of the action."""
    return sum(mask_parts(action))


def mask_parts(action: ActionSpec) -> tuple[int, ...]:
    """The number of choices of each part of an action. The mask has the parts in this order."""
    match action:
        case Discrete():
            return (action.n,)
        case MultiDiscrete():
            return tuple(action.nvec)
        case MultiBinary():
            return (2,) * action.n
        case Box():
            raise SpecError(
                "action_mask: expected a discrete action space, got Box. Remove the mask."
            )


class AgentSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The observations and actions of one agent. Agents that share a policy have equal specs."""

    obs: Any
    """A tree of ArraySpec."""
    action: ActionSpec
    has_action_mask: bool = False

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "obs", from_plain(self.obs))

    @property
    def action_mask(self) -> ArraySpec | None:
        """The mask's spec: bool, True where allowed."""
        if not self.has_action_mask:
            return None
        return ArraySpec(shape=(mask_size(self.action),), dtype="bool")


class EnvSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that an environment declares once, before its first step."""

    agents: dict[str, AgentSpec]
    """By agent name, in row order. A single-agent environment has one, named "agent"."""
    env_state: Any = None
    """A tree of ArraySpec for the environment's global state, or None."""
    metrics: tuple[str, ...] = ()
    """Numbers that the environment reports at the end of an episode, beside return and length."""
    turn_based: bool = False
    """True where agents may be alive without acting in a tick."""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "env_state", from_plain(self.env_state))

    @property
    def first_agent(self) -> AgentSpec:
        """The agent of the first row."""
        return next(iter(self.agents.values()))


class TeamSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What the agents of one policy in one environment have together."""

    num_agents: int = 1
    """Their number. Rows are env-major, so `[B // num_agents, num_agents]` is a reshape."""
    env_state: Any = None
    """A tree of ArraySpec for the environment's global state, or None."""
    turn_based: bool = False
    """True where they may be alive without acting in a tick."""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "env_state", from_plain(self.env_state))


def action_bounds_warning(spec: EnvSpec) -> str:
    """A warning about action bounds that a new policy hardly ever reaches; "" if there are none.

    A new policy chooses numbers around 0 with a deviation near 1. If both bounds are on one side of
    0, nearly all of these numbers are clipped to the same bound.
    """
    for name, agent in spec.agents.items():
        if isinstance(agent.action, Box):
            for number, (low, high) in enumerate(
                zip(agent.action.low, agent.action.high, strict=True)
            ):
                if low is not None and high is not None and (low >= 1.0 or high <= -1.0):
                    return (
                        f"{name}: action {number} is bounded by [{low:g}, {high:g}], but a new "
                        "policy chooses numbers around 0, so nearly all of its actions are clipped "
                        "to one bound"
                    )
    return ""


RESCALE_ADVICE = "Let the environment take actions in [-1, 1] (gymnasium.wrappers.RescaleAction)."
"""The advice that belongs to a warning of `action_bounds_warning`."""


def to_plain(tree: Tree) -> Any:
    """A spec tree as plain JSON values."""
    return tree_map(msgspec.to_builtins, tree) if tree is not None else None


def from_plain(plain: Any) -> Tree:
    """The inverse of `to_plain`. A dict with the keys of an ArraySpec is a leaf; a leaf that is an
    ArraySpec already stays as it is."""
    if plain is None or isinstance(plain, ArraySpec):
        return plain
    if isinstance(plain, dict) and set(plain) == set(ArraySpec.__struct_fields__):
        return msgspec.convert(plain, ArraySpec)
    return {key: from_plain(value) for key, value in plain.items()}


def check(value: np.ndarray, spec: ArraySpec, name: str, where: str) -> None:
    """Raises SpecError if `value` ([rows, *shape]) does not fit `spec`. It is cheap enough for
    every step."""
    if value.shape[1:] != spec.shape or value.dtype != spec.dtype:
        got = f"{value.dtype}[{','.join(str(n) for n in value.shape[1:])}]"
        raise SpecError(
            f"{name}: expected {spec}, got {got}, from {where}. "
            "Declare it in the environment's space or cast it in a wrapper."
        )
