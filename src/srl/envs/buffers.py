"""Memory that a group writes its observations into, and the checks that every tick pays for.

Checks are on whole batches; only when one fails is the environment that broke its space looked for.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from srl.data.flags import all_true
from srl.data.records import EnvStep
from srl.data.spec import AgentSpec, ArraySpec, mask_parts
from srl.data.tree import Tree, tree_map
from srl.envs.spaces import children, obs_spec
from srl.errors import EnvError


class BadObservation(Exception):
    """An observation does not fit its space; the group, which knows where, makes it an EnvError."""


class _Leaf:
    """One array of the observation, [rows, ...]."""

    def __init__(self, space: spaces.Space[Any], rows: int, name: str) -> None:
        spec: ArraySpec = obs_spec(space)
        self.name = name
        self.spec = spec
        self.array = np.zeros((rows, *spec.shape), spec.dtype)
        self.shape = spec.shape
        self.dtype = np.dtype(space.dtype)
        self.start: Any = getattr(space, "start", 0)
        self.offset = bool(np.any(self.start))
        self.counts = isinstance(space, spaces.Discrete | spaces.MultiDiscrete)
        self.is_float = self.array.dtype.kind == "f"
        self._finite = np.zeros(self.array.shape if self.is_float else 0, bool)
        box = space if isinstance(space, spaces.Box) else None
        self.may_be_inf = None if box is None else np.isinf(box.low) | np.isinf(box.high)

    def write(self, row: int, value: Any) -> None:
        """Copies one observation in; its shape is compared, because assignment would broadcast."""
        if type(value) is not np.ndarray or value.dtype != self.dtype or value.shape != self.shape:
            value = self.fit(np.asarray(value), self.shape)
        self.array[row] = value - self.start if self.offset else value

    def write_all(self, values: Any) -> None:
        """Copies the observations of all rows in."""
        values = np.asarray(values)
        if values.dtype != self.dtype or values.shape != self.array.shape:
            values = self.fit(values, self.array.shape)
        self.array[...] = values - self.start if self.offset else values

    def fit(self, value: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """The value, if its shape is right and its dtype casts without loss (but floats narrow)."""
        if self.counts:
            castable = value.dtype.kind in "iu"
        elif self.is_float:
            castable = np.can_cast(value.dtype, self.array.dtype, "same_kind")
        else:
            castable = np.can_cast(value.dtype, self.array.dtype, "safe")
        if value.shape != shape or not castable:
            raise BadObservation(
                f"{self.name}: expected {_text(self.dtype, shape)}, "
                f"got {_text(value.dtype, value.shape)}"
            )
        return value

    def broken_row(self) -> tuple[int, str] | None:
        """The first row that holds NaN, or infinity where the space has a bound."""
        finite = np.isfinite(self.array, out=self._finite)
        if all_true(finite):
            return None
        bad = np.isnan(self.array)
        if self.may_be_inf is not None:
            bad |= ~finite & ~self.may_be_inf
        if not bad.any():
            return None
        place = np.unravel_index(int(np.argmax(bad)), bad.shape)
        at = ",".join(str(int(i)) for i in place[1:])
        found = self.array[place]
        return int(place[0]), f"{self.name}: expected finite numbers, got {found} at [{at}]"


class ObsBuffer:
    """The observations of some rows in one piece of memory that is written again at every tick."""

    def __init__(self, space: spaces.Space[Any], rows: int) -> None:
        self._leaves: list[_Leaf] = []
        self.arrays: Tree = self._build(space, rows, "obs")
        self._floats = [leaf for leaf in self._leaves if leaf.is_float]
        self._space = space
        self._only = self._leaves[0] if isinstance(self.arrays, np.ndarray) else None
        if self._only is not None:
            # The common case, one array, is called without the walk through the space.
            self.write = self._only.write  # type: ignore[method-assign]
            self.write_all = self._only.write_all  # type: ignore[method-assign]

    def _build(self, space: spaces.Space[Any], rows: int, name: str) -> Tree:
        if isinstance(space, spaces.Dict | spaces.Tuple):
            return {key: self._build(part, rows, f"{name}.{key}") for key, part in children(space)}
        leaf = _Leaf(space, rows, name)
        self._leaves.append(leaf)
        return leaf.array

    def write(self, row: int, value: Any) -> None:
        """Copies one environment's observation into its row."""
        for leaf, part in zip(self._leaves, self._parts(self._space, value, "obs"), strict=True):
            leaf.write(row, part)

    def write_all(self, values: Any) -> None:
        """Copies the observations of all rows, batched as Gymnasium's vector environments do."""
        for leaf, part in zip(self._leaves, self._parts(self._space, values, "obs"), strict=True):
            leaf.write_all(part)

    def take_over(self, values: Any) -> Tree:
        """The observations of all rows, which nobody else will write again: as they are where they
        fit without a change, else copied."""
        leaf = self._only
        if (
            leaf is None
            or leaf.offset
            or values.dtype != leaf.array.dtype
            or values.shape != leaf.array.shape
        ):
            self.write_all(values)
        else:
            self.arrays = leaf.array = values
        return self.arrays

    def clear(self, row: int) -> None:
        """Zeroes a row whose agent is not in the game."""
        for leaf in self._leaves:
            leaf.array[row] = 0

    def broken_row(self) -> tuple[int, str] | None:
        """The first row with a number that no network can read, and what is wrong with it."""
        for leaf in self._floats:
            found = leaf.broken_row()
            if found is not None:
                return found
        return None

    def _parts(self, space: spaces.Space[Any], value: Any, name: str) -> list[Any]:
        if isinstance(space, spaces.Dict):
            if not isinstance(value, dict) or set(value) != set(space.spaces):
                got = sorted(map(str, value)) if isinstance(value, dict) else type(value).__name__
                raise BadObservation(
                    f"{name}: expected a dict of {sorted(map(str, space.spaces))}, got {got}"
                )
            found: list[Any] = []
            for key, part in space.spaces.items():
                found += self._parts(part, value[key], f"{name}.{key}")
            return found
        if isinstance(space, spaces.Tuple):
            if not isinstance(value, tuple | list) or len(value) != len(space.spaces):
                raise BadObservation(
                    f"{name}: expected a tuple of {len(space.spaces)}, got {type(value).__name__}"
                )
            found = []
            for index, part in enumerate(space.spaces):
                found += self._parts(part, value[index], f"{name}.{index}")
            return found
        return [value]


def blank_step(
    agent: AgentSpec,
    obs: Tree,
    *,
    rows: int,
    envs: int,
    state: Tree = None,
    metrics: tuple[str, ...] = (),
) -> EnvStep:
    """An EnvStep over preallocated memory; `obs` is its own."""
    mask = agent.action_mask
    return EnvStep(
        obs=obs,
        reward=np.zeros(rows, np.float32),
        terminated=np.zeros(rows, bool),
        truncated=np.zeros(rows, bool),
        is_first=np.zeros(rows, bool),
        alive=np.ones(rows, bool),
        turn=np.ones(rows, bool),
        action_mask=np.ones((rows, *mask.shape), bool) if mask else None,
        state=tree_map(lambda leaf: np.zeros((envs, *leaf.shape), leaf.dtype), state),
        metrics={name: np.zeros(envs, np.float64) for name in metrics} if metrics else None,
    )


class MaskRows:
    """Writes action masks into the rows of a group's step."""

    def __init__(self, agent: AgentSpec, step: EnvStep) -> None:
        assert step.action_mask is not None
        self._rows = step.action_mask
        self._starts = np.cumsum([0, *mask_parts(agent.action)])[:-1]

    def write(self, row: int, value: Any) -> None:
        """Copies one mask into its row; every part of an action must have a choice."""
        value = np.asarray(value)
        if value.shape != self._rows.shape[1:]:
            got = _text(value.dtype, value.shape)
            raise BadObservation(f"action_mask: expected bool[{self._rows.shape[1]}], got {got}")
        if not np.logical_or.reduceat(value, self._starts).all():
            raise BadObservation(
                "action_mask: expected at least one allowed action (of each part, if it has "
                "several), got none"
            )
        self._rows[row] = value

    def write_all(self, values: Any, unasked: np.ndarray) -> bool:
        """Copies the masks of all rows at once; nobody acts on rows that are `unasked`. False if
        they do not fit, or one allows nothing: to be found out row by row."""
        if not isinstance(values, np.ndarray) or values.shape != self._rows.shape:
            return False
        if values.dtype.kind not in "biu":
            return False
        np.not_equal(values, 0, out=self._rows)
        self._rows[unasked] = True
        return all_true(np.logical_or.reduceat(self._rows, self._starts, axis=1))

    def allow_all(self, row: int) -> None:
        """For an observation that nobody acts on."""
        self._rows[row] = True


def step_state(step: EnvStep) -> dict[str, Tree]:
    """A copy of an EnvStep that a checkpoint can hold."""
    return {
        "obs": tree_map(np.copy, step.obs),
        "reward": step.reward.copy(),
        "terminated": step.terminated.copy(),
        "truncated": step.truncated.copy(),
        "is_first": step.is_first.copy(),
        "alive": step.alive.copy(),
        "turn": step.turn.copy(),
        "action_mask": None if step.action_mask is None else step.action_mask.copy(),
        "state": tree_map(np.copy, step.state),
        "metrics": tree_map(np.copy, step.metrics),
    }


def restore_step(step: EnvStep, state: dict[str, Tree]) -> None:
    """Writes what `step_state` copied back into the group's memory."""
    for name, value in state.items():
        target = getattr(step, name)
        if target is not None:
            tree_map(np.copyto, target, value)


def env_error(problem: str, index: int, call: str, fix: str) -> EnvError:
    """An EnvError in the house style: what was expected and got, where, and what to do."""
    which = f"environment {index}" if index >= 0 else "the environments"
    return EnvError(f"{problem}, from {which} in {call}(). {fix}")


NO_MASK = "info['action_mask']: expected a mask, got no such key"
FIX_SPACE = "Declare it in the environment's space or cast it in a wrapper."
FIX_NUMBERS = "Look for a division by zero or an unstable simulation, or clip it in a wrapper."


def _text(dtype: np.dtype[Any], shape: tuple[int, ...]) -> str:
    return f"{dtype}[{','.join(str(n) for n in shape)}]"
