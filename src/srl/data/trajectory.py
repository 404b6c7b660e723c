"""The layout of a fragment, and trajectories as trees."""

from __future__ import annotations

from dataclasses import fields
from typing import Literal

import msgspec
import numpy as np

from srl.data.memory_layout import Shape, layout_bytes, layout_views, mark_unwritten
from srl.data.records import Trajectory
from srl.data.spec import AgentSpec, ArraySpec, action_array, from_plain
from srl.data.tree import Tree, leaves, tree_map
from srl.errors import ConfigError


class TrajectorySpec(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The layout of a fragment: what the algorithm asks for, and what the agent and the policy
    declare."""

    length: int
    """Ticks that a loss may see."""
    rows: int
    envs: int
    agent: AgentSpec
    extras: object = None
    """Tree of ArraySpec for the arrays that the policy adds to each reply."""
    policy_state: object = None
    """Tree of ArraySpec, or None for a policy without state."""
    env_state: object = None
    row: object = None
    """Tree of ArraySpec for what a row has once in a fragment, or None."""
    burn_in: int = 0
    bootstrap: int = 1
    """Ticks behind `length` that targets look ahead into."""
    state_every: int = 1
    """Policy state is stored at every tick that is a multiple of this."""
    cut: Literal["fixed", "episode"] = "fixed"
    """`fixed` cuts only at `length`, across episode ends; `episode` (one environment per group)
    also cuts at each episode end."""
    turn_based: bool = False

    def __post_init__(self) -> None:
        for name in ("extras", "policy_state", "env_state", "row"):
            msgspec.structs.force_setattr(self, name, from_plain(getattr(self, name)))
        if self.length % self.state_every or self.burn_in % self.state_every:
            raise ConfigError(
                "trajectory: expected length and burn_in to be multiples of state_every, got "
                f"length {self.length}, burn_in {self.burn_in}, state_every {self.state_every}. "
                "Change one of them."
            )
        if self.bootstrap < 1:
            raise ConfigError(f"trajectory: expected bootstrap >= 1, got {self.bootstrap}.")
        if self.bootstrap > 1 and (self.turn_based or self.cut == "episode"):
            kind = "a turn-based environment" if self.turn_based else "cut 'episode'"
            raise ConfigError(
                f"trajectory: bootstrap {self.bootstrap} expects agents that act at every tick and "
                f"cut 'fixed', got {kind}. Use bootstrap=1."
            )
        if self.cut == "episode" and self.envs != 1:
            raise ConfigError(
                f"trajectory: cut 'episode' expects one environment per group, got {self.envs}. "
                "Set actor.envs_per_group=1."
            )
        if self.turn_based and any(leaf.stack > 1 for leaf in leaves(self.agent.obs)):
            raise ConfigError(
                "trajectory: frame stacking by the system expects agents that act at every tick, "
                "got a turn-based environment. Stack frames inside the environment instead."
            )

    @property
    def capacity(self) -> int:
        """Ticks in a full fragment: burn-in, length, and the bootstrap."""
        return self.burn_in + self.length + self.bootstrap

    @property
    def overlap(self) -> int:
        """Ticks that a fragment shares with the one before: its burn-in, and the other's
        bootstrap."""
        return self.burn_in + self.bootstrap

    @property
    def num_agents(self) -> int:
        """Agents of the policy in each environment."""
        return self.rows // self.envs

    def shapes(self, ticks: int | None = None) -> Trajectory:
        """A fragment as a record whose leaves are shapes."""
        ticks = self.capacity if ticks is None else ticks

        def per_tick(spec: ArraySpec) -> Shape:
            return Shape((ticks + spec.stack - 1, self.rows, *spec.shape), spec.dtype)

        def per_env(spec: ArraySpec) -> Shape:
            return Shape((ticks, self.envs, *spec.shape), spec.dtype)

        def per_chunk(spec: ArraySpec) -> Shape:
            return Shape((-(-ticks // self.state_every), self.rows, *spec.shape), spec.dtype)

        def per_row(spec: ArraySpec) -> Shape:
            return Shape((self.rows, *spec.shape), spec.dtype)

        flag = Shape((ticks, self.rows), "bool")
        mask = self.agent.action_mask
        return Trajectory(
            obs=tree_map(per_tick, self.agent.obs),
            is_first=flag,  # type: ignore[arg-type]
            terminated=flag,  # type: ignore[arg-type]
            truncated=flag,  # type: ignore[arg-type]
            alive=flag,  # type: ignore[arg-type]
            acted=flag,  # type: ignore[arg-type]
            action=per_tick(action_array(self.agent.action)),  # type: ignore[arg-type]
            reward=Shape((ticks, self.rows), "float32"),  # type: ignore[arg-type]
            policy_version=Shape((ticks, self.rows), "int64"),  # type: ignore[arg-type]
            extras=tree_map(per_tick, self.extras),
            policy_state=tree_map(per_chunk, self.policy_state),
            action_mask=per_tick(mask) if mask else None,  # type: ignore[arg-type]
            env_state=tree_map(per_env, self.env_state),
            row=tree_map(per_row, self.row),
        )

    @property
    def nbytes(self) -> int:
        """Bytes of a slot that holds a full fragment."""
        return layout_bytes(to_tree(self.shapes()))

    def views(self, memory: np.ndarray) -> Trajectory:
        """A slot's memory as a trajectory."""
        return from_tree(layout_views(to_tree(self.shapes()), memory))

    def mark_unwritten(self, record: Trajectory, *, first: bool) -> None:
        """Makes unwritten steps visible: they have actions, but no policy version."""
        if first:
            mark_unwritten(to_tree(record))
        record.acted.fill(True)
        record.policy_version.fill(-1)

    def is_written(self, record: Trajectory, length: int) -> bool:
        """Whether every action of the first `length` ticks has a policy version."""
        return not (record.policy_version[:length][record.acted[:length]] == -1).any()

    def oldest_version(self, record: Trajectory, length: int) -> int | None:
        """The oldest policy version of the actions that a loss sees, if there are any."""
        steps = slice(self.burn_in, length - self.bootstrap)
        versions = record.policy_version[steps][record.acted[steps]]
        return int(versions.min()) if versions.size else None

    def parts(self, record: Trajectory, length: int) -> list[np.ndarray]:
        """The used bytes of every array."""
        missing, chunks = self.capacity - length, -(-length // self.state_every)
        found = []
        for name, tree in to_tree(record).items():
            for leaf in leaves(tree):
                used = chunks if name == "policy_state" else len(leaf) - missing
                used = len(leaf) if name == "row" else used
                found.append(leaf[:used].reshape(-1).view(np.uint8))
        return found

    def pixels(self) -> list[bool]:
        """For each of the `parts`: whether it has bytes such as pixels."""
        tree = to_tree(self.shapes())
        return [leaf.dtype == "uint8" for name in tree for leaf in leaves(tree[name])]

    def allocate(self, ticks: int | None = None) -> Trajectory:
        """A trajectory in private memory, zeroed."""
        shapes = to_tree(self.shapes(ticks))
        return from_tree(layout_views(shapes, np.zeros(layout_bytes(shapes), np.uint8)))


_FIELDS = tuple(f.name for f in fields(Trajectory))


def to_tree(record: Trajectory) -> dict[str, Tree]:
    """The record as a tree; its fields are the keys."""
    return {name: getattr(record, name) for name in _FIELDS}


def from_tree(tree: dict[str, Tree]) -> Trajectory:
    """The inverse of `to_tree`."""
    return Trajectory(**tree)


def copy_trajectory(source: Trajectory, target: Trajectory) -> None:
    """Copies every field; both trajectories must have the same spec."""
    tree_map(np.copyto, to_tree(target), to_tree(source))
