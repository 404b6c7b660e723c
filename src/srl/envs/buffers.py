"""Memory that a group writes its observations into, and the checks of every tick.

A check looks at all rows at once. If it fails, it then looks for the row that broke its space.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from srl.data.flags import all_true
from srl.data.records import EnvStep
from srl.data.spec import AgentSpec, ArraySpec, mask_parts
from srl.data.tree import Tree, tree_map
from srl.envs.spaces import children, obs_spec
from srl.errors import EnvError


class BadObservation(Exception):
    """An observation does not fit its space; the group adds where, and raises an EnvError."""


class BrokenRow(NamedTuple):
    """A row whose observation no network can use."""

    row: int
    problem: str
    fix: str


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
        self.is_category = isinstance(space, spaces.Discrete | spaces.MultiDiscrete)
        self.is_float = self.array.dtype.kind == "f"
        # Read as unsigned, negative numbers are too large as well: one comparison finds both.
        sizes = np.array(spec.categories or 0, np.uint64)
        self._sizes = sizes.reshape(spec.shape) if self.is_category else sizes
        self._valid = np.zeros(self.array.shape if self.is_float or self.is_category else 0, bool)
        box = space if isinstance(space, spaces.Box) else None
        self.may_be_inf = None if box is None else np.isinf(box.low) | np.isinf(box.high)

    def write(self, row: int, value: Any) -> None:
        """Copies one observation in. Checks its shape, because assignment would broadcast."""
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
        """The value, if its shape is right and its dtype casts without loss (floats may narrow)."""
        if self.is_category:
            castable = value.dtype.kind in "iu"
        elif self.is_float:
            castable = np.can_cast(value.dtype, self.array.dtype, "same_kind")
        else:
            castable = np.can_cast(value.dtype, self.array.dtype, "safe")
        if value.shape != shape or not castable:
            raise BadObservation(
                f"{self.name}: expected {_dtype_text(self.dtype, shape)}, "
                f"got {_dtype_text(value.dtype, value.shape)}"
            )
        return value

    def broken_row(self) -> BrokenRow | None:
        """The first row with a number that is not finite, or a category that does not exist."""
        return self._unknown_category() if self.is_category else self._not_finite()

    def _not_finite(self) -> BrokenRow | None:
        """The first row that holds NaN, or infinity where the space has a bound."""
        finite = np.isfinite(self.array, out=self._valid)
        if all_true(finite):
            return None
        bad = np.isnan(self.array)
        if self.may_be_inf is not None:
            bad |= ~finite & ~self.may_be_inf
        if not bad.any():
            return None
        position = _first(bad)
        problem = f"{self.name}: expected finite numbers, got {self.array[position]}{_at(position)}"
        return BrokenRow(position[0], problem, FIX_NUMBERS)

    def _unknown_category(self) -> BrokenRow | None:
        """The first row that holds a category outside the space."""
        known = np.less(self.array.view(np.uint64), self._sizes, out=self._valid)
        if all_true(known):
            return None
        position = _first(~known)
        least = int(np.broadcast_to(self.start, self.shape)[position[1:]])
        most = least + int(self._sizes[position[1:]]) - 1
        got = int(self.array[position]) + least
        problem = f"{self.name}: expected a number from {least} to {most}, got {got}{_at(position)}"
        return BrokenRow(position[0], problem, FIX_CATEGORY)


class ObsBuffer:
    """The observations of some rows, in memory that is written again at every tick."""

    def __init__(self, space: spaces.Space[Any], rows: int, name: str = "obs") -> None:
        self._leaves: list[_Leaf] = []
        self._name = name
        self.arrays: Tree = self._build(space, rows, name)
        self._checked = [leaf for leaf in self._leaves if leaf.is_float or leaf.is_category]
        self._space = space
        self._single_leaf = self._leaves[0] if isinstance(self.arrays, np.ndarray) else None
        if self._single_leaf is not None:
            # In the common case of one array, calls skip the walk through the space.
            self.write = self._single_leaf.write  # type: ignore[method-assign]
            self.write_all = self._single_leaf.write_all  # type: ignore[method-assign]

    def _build(self, space: spaces.Space[Any], rows: int, name: str) -> Tree:
        if isinstance(space, spaces.Dict | spaces.Tuple):
            return {key: self._build(part, rows, f"{name}.{key}") for key, part in children(space)}
        leaf = _Leaf(space, rows, name)
        self._leaves.append(leaf)
        return leaf.array

    def write(self, row: int, value: Any) -> None:
        """Copies one environment's observation into its row."""
        for leaf, part in zip(
            self._leaves, self._parts(self._space, value, self._name), strict=True
        ):
            leaf.write(row, part)

    def write_all(self, values: Any) -> None:
        """Copies the observations of all rows, batched as Gymnasium's vector environments do."""
        for leaf, part in zip(
            self._leaves, self._parts(self._space, values, self._name), strict=True
        ):
            leaf.write_all(part)

    def take_over(self, values: Any) -> Tree:
        """Takes the observations of all rows without a copy, if they fit without a change.

        Else copies them. The caller must make sure that nothing writes `values` again.
        """
        leaf = self._single_leaf
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

    def broken_row(self) -> BrokenRow | None:
        """The first row with a number that no network can use, and what is wrong with it."""
        for leaf in self._checked:
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
    env_state: Tree = None,
    metrics: tuple[str, ...] = (),
) -> EnvStep:
    """An EnvStep over new memory, except for `obs`, which it uses as it is."""
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
        env_state=tree_map(lambda leaf: np.zeros((envs, *leaf.shape), leaf.dtype), env_state),
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
            got = _dtype_text(value.dtype, value.shape)
            raise BadObservation(f"action_mask: expected bool[{self._rows.shape[1]}], got {got}")
        if not np.logical_or.reduceat(value, self._starts).all():
            raise BadObservation(
                "action_mask: expected at least one allowed action (of each part, if it has "
                "several), got none"
            )
        self._rows[row] = value

    def write_all(self, values: Any, final: np.ndarray) -> bool:
        """Copies the masks of all rows at once. Rows that are `final` allow everything.

        No agent acts on a final row. Returns False if the masks do not fit, or if one allows
        nothing: the caller then writes row by row to find the error.
        """
        if not isinstance(values, np.ndarray) or values.shape != self._rows.shape:
            return False
        if values.dtype.kind not in "biu":
            return False
        np.not_equal(values, 0, out=self._rows)
        self._rows[final] = True
        return all_true(np.logical_or.reduceat(self._rows, self._starts, axis=1))

    def allow_all(self, row: int) -> None:
        """Allows every choice, for an observation that no agent acts on."""
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
        "env_state": tree_map(np.copy, step.env_state),
        "metrics": tree_map(np.copy, step.metrics),
    }


def restore_step(step: EnvStep, state: dict[str, Tree]) -> None:
    """Writes the arrays that `step_state` copied back into the group's memory."""
    for name, value in state.items():
        target = getattr(step, name)
        if target is not None:
            tree_map(np.copyto, target, value)


def env_error(problem: str, index: int, call: str, fix: str) -> EnvError:
    """An EnvError that says what was expected and got, where, and what to do."""
    which = f"environment {index}" if index >= 0 else "the environments"
    return EnvError(f"{problem}, from {which} in {call}(). {fix}")


NO_MASK = "info['action_mask']: expected a mask, got no such key"
FIX_SPACE = "Declare it in the environment's space or cast it in a wrapper."
FIX_NUMBERS = "Look for a division by zero or an unstable simulation, or clip it in a wrapper."
FIX_CATEGORY = "Declare a larger space (its n or nvec), or correct the environment."


def _first(bad: np.ndarray) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(bad)), bad.shape))


def _at(position: tuple[int, ...]) -> str:
    """The position of a number in its row's array, as text; empty if the row has only one."""
    return f" at [{','.join(map(str, position[1:]))}]" if len(position) > 1 else ""


def _dtype_text(dtype: np.dtype[Any], shape: tuple[int, ...]) -> str:
    return f"{dtype}[{','.join(str(n) for n in shape)}]"
