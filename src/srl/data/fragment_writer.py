"""Writes the ticks of one agent batch into fragments, directly into memory that the trainer reads.

Order of calls for a fragment: `open(slot)`, then `observe(step)` and `act(...)` for every tick
until `full`, then `close()`. `close` copies what overlaps with the next fragment to private memory.
So the slot can be committed before the next one is claimed.
"""

from __future__ import annotations

import numpy as np

from srl.data.flags import all_true, any_true
from srl.data.records import EnvStep, Trajectory
from srl.data.trajectory import TrajectorySpec, to_tree
from srl.data.tree import Tree, leaves, tree_map


class _Arrays:
    """A trajectory's arrays as lists, so that a tick needs no walk through trees."""

    def __init__(self, trajectory: Trajectory) -> None:
        tree = to_tree(trajectory)
        del tree["row"]
        self.obs: list[np.ndarray] = leaves(tree.pop("obs"))
        self.policy_state: list[np.ndarray] = leaves(tree.pop("policy_state"))
        self.per_tick: list[np.ndarray] = leaves(tree)
        """All arrays with ticks but those of `obs` and `policy_state`."""
        self.extras: list[np.ndarray] = leaves(trajectory.extras)
        self.env_state: list[np.ndarray] = leaves(trajectory.env_state)


class FragmentWriter:
    """Writes one agent batch into fragments, one after another.

    When a fragment is cut, an action may still wait for its reward, because its agent is not on
    turn. Such an action moves to the cut: it becomes the bootstrap of this fragment and the first
    tick of the next one. So every action is learned from once, unless it is too old for the next
    fragment (`drop_open_actions`).
    """

    def __init__(self, spec: TrajectorySpec) -> None:
        assert spec.row is None, "actors have no data per row"
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
        # What overlaps with the next fragment: its burn-in, and this fragment's bootstrap.
        self._carry = spec.allocate(spec.overlap)
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
        """Whether the open fragment begins with the last ticks of the one before; valid until its
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
        # Without an overlap there are only burn-in ticks in which nobody is alive.
        ticks = self.spec.burn_in + 1 if self._fresh else self.spec.overlap
        self._copy_overlap(self._carry_arrays, 0, self._arrays, ticks)
        self.tick = ticks - 1
        # Only an action in this fragment can still earn reward: at most the one that moved here.
        self._last_acted = np.where(slot.acted[self.tick], self.tick, -1)

    def drop_open_actions(
        self, oldest_version: int, on_turn: np.ndarray, policy_state: list[np.ndarray]
    ) -> int:
        """Removes actions that moved here and are of a version before `oldest_version`; returns how
        many. Call this right after `open`, if the fragment overlaps with the one before.

        The environment has taken these actions, so they cannot be inferred again. Each one stays
        the bootstrap of the fragment before, and this one begins with the row's next action.
        `on_turn` are the rows whose action is still to be taken. `policy_state` are the leaves of
        the state that each row's next request is fed with.
        """
        slot, t = self.slot, self.tick
        too_old = slot.policy_version[t] < oldest_version
        rows = np.flatnonzero(slot.acted[t] & ~on_turn & too_old)
        if not rows.size:
            return 0
        # The burn-in of these rows goes, too: without the action it would end in another state.
        for flag in (slot.acted, slot.alive, slot.is_first, slot.terminated, slot.truncated):
            flag[: t + 1, rows] = False
        slot.policy_version[: t + 1, rows] = -1
        slot.reward[: t + 1, rows] = 0.0
        for stored, fed in zip(self._arrays.policy_state, policy_state, strict=True):
            stored[: t // self.spec.state_every + 1, rows] = fed[rows]
        self._last_acted[rows] = -1
        return int(rows.size)

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
            start = length - self.spec.overlap
            self._copy_overlap(self._arrays, start, self._carry_arrays, self.spec.overlap)
            self._hide_earlier_episodes(slot.is_first[: start + 1])
        self._slot = None
        return length

    def _move_open_actions(self) -> None:
        slot, t = self.slot, self.tick
        waiting = slot.alive[t] & ~slot.acted[t] & ~slot.terminated[t] & ~slot.truncated[t]
        record = to_tree(slot)
        states = record.pop("policy_state")
        del record["env_state"], record["row"]
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

    def _copy_overlap(self, source: _Arrays, start: int, target: _Arrays, ticks: int) -> None:
        """Copies `ticks` ticks from `start` on to the beginning of `target`."""
        for a, b, depth in zip(source.obs, target.obs, self._depths, strict=True):
            b[: ticks + depth] = a[start : start + ticks + depth]
        for a, b in zip(source.per_tick, target.per_tick, strict=True):
            b[:ticks] = a[start : start + ticks]
        first, chunks = start // self.spec.state_every, -(-ticks // self.spec.state_every)
        for a, b in zip(source.policy_state, target.policy_state, strict=True):
            b[:chunks] = a[first : first + chunks]

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
