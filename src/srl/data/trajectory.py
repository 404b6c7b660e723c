"""Writes the ticks of one agent batch into fragments, directly into memory that the trainer reads.

Order of calls for a fragment: `open(slot)`, then `observe(step)` and `act(...)` for every tick
until `full`, then `close()`. `close` copies what overlaps with the next fragment to private memory.
So the slot can be committed before the next one is claimed.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Literal

import msgspec
import numpy as np

from srl.data.flags import all_true, any_true
from srl.data.memory_layout import Shape, layout_bytes, layout_views
from srl.data.records import EnvStep, Trajectory
from srl.data.spec import AgentSpec, ArraySpec, action_array, from_plain
from srl.data.tree import Tree, leaves, tree_map
from srl.errors import ConfigError


class TrajectorySpec(msgspec.Struct, frozen=True, kw_only=True):
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
    burn_in: int = 0
    state_every: int = 1
    """Policy state is stored at every tick that is a multiple of this."""
    cut: Literal["fixed", "episode"] = "fixed"
    """`fixed` cuts only at `length`, across episode ends; `episode` (one environment per group)
    also cuts at each episode end."""
    turn_based: bool = False

    def __post_init__(self) -> None:
        for name in ("extras", "policy_state", "env_state"):
            msgspec.structs.force_setattr(self, name, from_plain(getattr(self, name)))
        if self.length % self.state_every or self.burn_in % self.state_every:
            raise ConfigError(
                "trajectory: expected length and burn_in to be multiples of state_every, got "
                f"length {self.length}, burn_in {self.burn_in}, state_every {self.state_every}. "
                "Change one of them."
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
        return self.burn_in + self.length + 1

    def shapes(self, ticks: int | None = None) -> Trajectory:
        """A fragment as a record whose leaves are shapes."""
        ticks = self.capacity if ticks is None else ticks

        def per_tick(spec: ArraySpec) -> Shape:
            return Shape((ticks + spec.stack - 1, self.rows, *spec.shape), spec.dtype)

        def per_env(spec: ArraySpec) -> Shape:
            return Shape((ticks, self.envs, *spec.shape), spec.dtype)

        def per_chunk(spec: ArraySpec) -> Shape:
            return Shape((-(-ticks // self.state_every), self.rows, *spec.shape), spec.dtype)

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
        )

    @property
    def nbytes(self) -> int:
        """Bytes of a slot that holds a full fragment."""
        return layout_bytes(to_tree(self.shapes()))

    def views(self, memory: np.ndarray) -> Trajectory:
        """A slot's memory as a trajectory."""
        return from_tree(layout_views(to_tree(self.shapes()), memory))

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


class _Arrays:
    """A trajectory's arrays as lists, so that a tick needs no walk through trees."""

    def __init__(self, trajectory: Trajectory) -> None:
        tree = to_tree(trajectory)
        self.obs: list[np.ndarray] = leaves(tree.pop("obs"))
        self.policy_state: list[np.ndarray] = leaves(tree.pop("policy_state"))
        self.per_tick: list[np.ndarray] = leaves(tree)
        """All arrays but those of `obs` and `policy_state`."""
        self.extras: list[np.ndarray] = leaves(trajectory.extras)
        self.env_state: list[np.ndarray] = leaves(trajectory.env_state)


class FragmentWriter:
    """Writes one agent batch into fragments, one after another.

    When a fragment is cut, an action may still wait for its reward, because its agent is not on
    turn. Such an action moves to the cut: it becomes the bootstrap of this fragment and the first
    tick of the next one. So every action is learned from once.
    """

    def __init__(self, spec: TrajectorySpec) -> None:
        self.spec = spec
        self.tick = 0
        self._slot: Trajectory | None = None
        self._fresh = True
        """Nothing overlaps: this is the first fragment, or an episode's end cut the last one."""
        self._all_acted = False
        """True: every row acted at this tick. False says nothing."""
        self._last_acted = np.full(spec.rows, -1, np.int64)
        self._arange = np.arange(spec.rows)
        self._state_at_action = tree_map(
            lambda leaf: np.zeros((spec.rows, *leaf.shape), leaf.dtype), spec.policy_state
        )
        # What overlaps with the next fragment: its burn-in, and this fragment's bootstrap tick.
        self._carry = spec.allocate(spec.burn_in + 1)
        self._carry.policy_version.fill(-1)
        self._depths: list[int] = [leaf.stack - 1 for leaf in leaves(spec.agent.obs)]
        self._carry_arrays = self._arrays = _Arrays(self._carry)
        self._arrays_by_slot: dict[int, tuple[Trajectory, _Arrays]] = {}

    @property
    def is_open(self) -> bool:
        """Whether a fragment is being written."""
        return self._slot is not None

    @property
    def slot(self) -> Trajectory:
        """The slot of the fragment that is being written."""
        assert self._slot is not None, "no fragment is open"
        return self._slot

    @property
    def overlaps(self) -> bool:
        """Whether the open fragment begins with the last tick of the one before; valid until its
        first `observe`."""
        return not self._fresh

    @property
    def full(self) -> bool:
        """Whether the last tick was observed; close the fragment after this tick's reply."""
        return self.tick == self.spec.capacity - 1 or self._cuts_here()

    def _cuts_here(self) -> bool:
        """Whether the spec wants a cut at episode ends, and an episode ends with this tick."""
        if self.spec.cut != "episode":
            return False
        slot, t = self.slot, self.tick
        final = slot.terminated[t] | slot.truncated[t]
        return any_true(final) and all_true(final | ~slot.alive[t])

    def open(self, slot: Trajectory) -> None:
        """Starts a fragment in a claimed slot, with the ticks that overlap with the one before."""
        self._set_slot(slot)
        slot.policy_version.fill(-1)
        slot.reward.fill(0.0)
        # The values of a quiet tick: quiet ticks do not write their flags.
        slot.acted.fill(True)
        slot.alive.fill(True)
        for flags in (slot.is_first, slot.terminated, slot.truncated):
            flags.fill(False)
        self._copy_overlap(self._carry_arrays, 0, self._arrays, 0)
        self.tick = self.spec.burn_in
        # Only an action in this fragment can still earn reward: at most the one that moved here.
        self._last_acted = np.where(slot.acted[self.tick], self.tick, -1)

    def _set_slot(self, slot: Trajectory) -> None:
        """Makes `slot` the open one. The same slots come again, so their arrays are listed once."""
        self._slot = slot
        known = self._arrays_by_slot.get(id(slot))
        if known is None:
            known = self._arrays_by_slot[id(slot)] = (slot, _Arrays(slot))
        self._arrays = known[1]

    def observe(self, step: EnvStep, policy_state: list[np.ndarray]) -> None:
        """Writes the next tick: its observation, and the leaves of the policy state that its
        request is fed with. Without an overlap the first call writes the first tick.

        The step's reward goes to the action that earned it: to the action of the tick before, or to
        the row's last action where it did not act in that tick.
        """
        slot, arrays = self.slot, self._arrays
        self._reward(step.reward)
        self._all_acted = step.quiet
        observed = leaves(step.obs)
        if self._fresh:
            self._first_frames(observed)
        else:
            self.tick += 1
        t = self.tick
        for to, new, depth in zip(arrays.obs, observed, self._depths, strict=True):
            to[t + depth] = new
        if self._fresh or not step.quiet:
            self._fresh = False
            self._write_flags(step)
        if slot.action_mask is not None and step.action_mask is not None:
            slot.action_mask[t] = step.action_mask
        if arrays.env_state:
            for to, new in zip(arrays.env_state, leaves(step.env_state), strict=True):
                to[t] = new
        if policy_state:
            self._write_policy_state(policy_state)

    def _write_flags(self, step: EnvStep) -> None:
        slot, t = self.slot, self.tick
        slot.is_first[t] = step.is_first
        slot.terminated[t] = step.terminated
        slot.truncated[t] = step.truncated
        slot.alive[t] = step.alive
        slot.acted[t] = step.turn
        if not all_true(step.turn):
            # Some of these rows get no reply. They hold zeros.
            slot.action[t] = 0
            for to in self._arrays.extras:
                to[t] = 0
        if self.spec.turn_based:
            # Where an episode begins, no action has been taken yet that could earn reward.
            self._last_acted[step.is_first] = -1

    def _write_policy_state(self, policy_state: list[np.ndarray]) -> None:
        if self.tick % self.spec.state_every == 0:
            index = self.tick // self.spec.state_every
            for to, new in zip(self._arrays.policy_state, policy_state, strict=True):
                to[index] = new
        if self.spec.turn_based:
            acts = self.slot.acted[self.tick]
            for to, new in zip(leaves(self._state_at_action), policy_state, strict=True):
                to[acts] = new[acts]

    def act(
        self,
        action: np.ndarray,
        extras: list[np.ndarray],
        policy_version: int,
        rows: np.ndarray | None,
    ) -> None:
        """Writes the reply to this tick's request. `extras` are the leaves of its extras; `rows`
        are the rows that it has (None: all)."""
        slot, t = self.slot, self.tick
        at = t if rows is None else (t, rows)
        slot.action[at] = action
        for to, new in zip(self._arrays.extras, extras, strict=True):
            to[at] = new
        slot.policy_version[at] = policy_version
        if self.spec.turn_based:
            self._last_acted = np.where(slot.acted[t], t, self._last_acted)

    def _reward(self, reward: np.ndarray) -> None:
        slot = self.slot
        if not self.spec.turn_based:
            if self._all_acted:
                slot.reward[self.tick] = reward
            else:
                np.copyto(slot.reward[self.tick], reward, where=slot.acted[self.tick])
            return
        earned = self._last_acted >= 0
        slot.reward[self._last_acted[earned], self._arange[earned]] += reward[earned]

    def close(self) -> int:
        """Closes the fragment: keeps the overlap, and returns the number of ticks written."""
        slot, length = self.slot, self.tick + 1
        if self.spec.turn_based:
            self._move_open_actions()
        if self._cuts_here():
            # The next fragment starts with a new episode and shares nothing with this one.
            self._fresh = True
            self._last_acted.fill(-1)
            for array in leaves(to_tree(self._carry)):
                array.fill(0)
            self._carry.policy_version.fill(-1)
        else:
            start = length - 1 - self.spec.burn_in
            self._copy_overlap(self._arrays, start, self._carry_arrays, 0)
            self._hide_earlier_episodes(slot.is_first[: start + 1])
        self._slot = None
        return length

    def _move_open_actions(self) -> None:
        slot, t = self.slot, self.tick
        waiting = slot.alive[t] & ~slot.acted[t] & ~slot.terminated[t] & ~slot.truncated[t]
        record = to_tree(slot)
        states = record.pop("policy_state")
        record.pop("env_state")
        every = self.spec.state_every
        for row in np.flatnonzero(waiting & (self._last_acted >= 0)):
            at = int(self._last_acted[row])
            for array in leaves(record):
                array[t, row] = array[at, row]
            # Ticks from `at` to the cut become not alive: nothing changes the policy state there.
            for array, fed in zip(leaves(states), leaves(self._state_at_action), strict=True):
                array[-(-at // every) : t // every + 1, row] = fed[row]
            for flag in (slot.acted, slot.alive, slot.is_first):
                flag[at:t, row] = False
            slot.policy_version[at:t, row] = -1
            slot.reward[at:t, row] = 0.0

    def _first_frames(self, observed: list[np.ndarray]) -> None:
        """Fills the stack with the first frame, where nothing came before."""
        for to, new, depth in zip(self._arrays.obs, observed, self._depths, strict=True):
            to[self.tick : self.tick + depth] = new

    def _hide_earlier_episodes(self, is_first: np.ndarray) -> None:
        """Replaces frames of an earlier episode in front of the overlap by this episode's first
        frame. The next fragment needs this if it lacks the tick where the episode began."""
        if not any(self._depths):
            return
        ago = is_first[::-1].argmax(axis=0)
        for frames, depth in zip(self._carry_arrays.obs, self._depths, strict=True):
            for row in np.flatnonzero(is_first.any(axis=0) & (ago < depth)):
                first = depth - ago[row]
                frames[:first, row] = frames[first, row]

    def _copy_overlap(self, source: _Arrays, start: int, target: _Arrays, at: int) -> None:
        ticks, every = self.spec.burn_in + 1, self.spec.state_every
        for a, b, depth in zip(source.obs, target.obs, self._depths, strict=True):
            b[at : at + ticks + depth] = a[start : start + ticks + depth]
        for a, b in zip(source.per_tick, target.per_tick, strict=True):
            b[at : at + ticks] = a[start : start + ticks]
        chunks = self.spec.burn_in // every + 1
        for a, b in zip(source.policy_state, target.policy_state, strict=True):
            b[at // every : at // every + chunks] = a[start // every : start // every + chunks]

    def state(self) -> dict[str, Tree]:
        """Everything that `restore` needs, including the open fragment."""
        return {
            "tick": self.tick,
            "fresh": self._fresh,
            "last_acted": self._last_acted.copy(),
            "state_at_action": tree_map(np.copy, self._state_at_action),
            "carry": tree_map(np.copy, to_tree(self._carry)),
            "open": tree_map(np.copy, to_tree(self._slot)) if self._slot is not None else None,
        }

    def restore(self, state: dict[str, Tree], slot: Trajectory | None) -> None:
        """Continues from `state`; `slot` is the slot for the fragment if one was open."""
        self.tick, self._fresh = state["tick"], state["fresh"]
        self._all_acted = False
        self._last_acted = state["last_acted"].copy()
        tree_map(np.copyto, self._state_at_action, state["state_at_action"])
        tree_map(np.copyto, to_tree(self._carry), state["carry"])
        self._slot = None
        if slot is not None:
            self._set_slot(slot)
            tree_map(np.copyto, to_tree(slot), state["open"])
