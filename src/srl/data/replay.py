"""The memory of a replay: fragments that are kept, and windows of ticks that are drawn from them.

A fragment shares its last ticks with the next one of its origin, so only its own ticks are stored.
A window may go on from one fragment to the next. Frames of a stack are stored once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from srl.data.records import Trajectory
from srl.data.replay_columns import (
    Store,
    arrays,
    columns,
    replay_bytes,
    replay_capacity,
    stack_depth,
)
from srl.data.samplers import MakeSampler, Windows
from srl.data.trajectory import TrajectorySpec
from srl.data.tree import Tree, leaves
from srl.errors import ConfigError

_NONE = -1
"""In place of a slot: there is none."""


class Name(NamedTuple):
    """What tells the fragments of a replay apart, and which one continues which."""

    session: int
    origin: int
    """The agent batch that wrote it."""
    sequence: int
    """Its number among those of its origin."""


SHARD_BITS, INCARNATION_BITS, POSITION_BITS = 10, 8, 44
"""Bits of a window's key: the replay worker, how often it was started before, and the window's
number in it."""


def key_base(shard: int, incarnation: int) -> int:
    """What all keys of one replay worker have in common."""
    low = shard % (1 << SHARD_BITS) << INCARNATION_BITS | incarnation % (1 << INCARNATION_BITS)
    return low << POSITION_BITS


def shard_of(keys: np.ndarray) -> np.ndarray:
    """The replay worker that each key comes from."""
    found: np.ndarray = keys >> (POSITION_BITS + INCARNATION_BITS)
    return found


class Replay:
    """Keeps the newest fragments of a policy, and draws windows of them.

    A drawn window is one environment's: all its agents are drawn together, next to each other. It
    has `burn_in + length + bootstrap` ticks of the drawn spec, and may begin at any tick at which
    its policy state is stored.
    """

    def __init__(
        self,
        stored: TrajectorySpec,
        drawn: TrajectorySpec,
        capacity_steps: int,
        make_sampler: MakeSampler,
        *,
        key_base: int = 0,
    ) -> None:
        """`stored` are the fragments that are inserted, `drawn` is what `draw` fills. All keys of
        its windows begin with `key_base`."""
        _check_specs(stored, drawn)
        self.key_base = key_base
        self.stored, self.drawn = stored, drawn
        self._ticks, self._rows = stored.length, stored.rows
        self.capacity = replay_capacity(stored, drawn, capacity_steps)
        """Fragments that it keeps."""
        self._window = drawn.capacity
        self._depth = stack_depth(stored)
        align = stored.state_every if leaves(stored.policy_state) else 1
        self.sampler = make_sampler(self.capacity, self._ticks, align, stored.envs)
        self._stores = [Store(x.allocate(self.capacity), x) for x in columns(stored)]
        self._is_first = next(x.array for x in self._stores if x.column.field == "is_first")
        count = self.capacity
        self._before, self._after = np.full(count, _NONE), np.full(count, _NONE)
        """The slots with the fragments that come before and after a slot's fragment."""
        self._number = np.full(count, _NONE, np.int64)
        """The number of a slot's fragment, counted over all that were inserted."""
        self._slot_of: dict[Name, int] = {}
        self._name_of: list[Name | None] = [None] * count
        self.num_inserted = 0
        """Fragments inserted so far."""
        self.session = 0
        """Fragments of different sessions never continue each other, whatever their sequence."""

    # -- what it holds -----------------------------------------------------------------------------

    @property
    def num_stored(self) -> int:
        """Fragments in it."""
        return min(self.num_inserted, self.capacity)

    @property
    def stored_steps(self) -> int:
        """Environment steps in it."""
        return self.num_stored * self._ticks * self.stored.envs

    @property
    def nbytes(self) -> int:
        """Bytes of a full replay."""
        return replay_bytes(self.stored, self.capacity)

    @property
    def can_draw(self) -> bool:
        """Whether there is a window to draw."""
        return self.sampler.can_choose(self.drawn.envs)

    # -- saving ------------------------------------------------------------------------------------

    @property
    def numbers(self) -> range:
        """The numbers of the fragments that it holds."""
        return range(self.num_inserted - self.num_stored, self.num_inserted)

    def content(self, numbers: range) -> dict[str, Tree]:
        """A copy of fragments that it holds; they never change."""
        slots = np.array(numbers) % self.capacity
        names = [self._name_of[slot] for slot in slots.tolist()]
        return {
            "first": numbers.start,
            "names": np.array(names, np.int64).reshape(-1, len(Name._fields)),
            "columns": [self._by_slot(store)[slots] for store in self._stores],
        }

    def _by_slot(self, store: Store) -> np.ndarray:
        return store.array.reshape(self.capacity, store.column.entries, *store.column.shape)

    def state(self) -> dict[str, Tree]:
        """All that it needs beside its fragments to go on."""
        return {
            "num_inserted": self.num_inserted,
            "sampler": self.sampler.state(),
        }

    def restore(self, state: dict[str, Tree], contents: Iterable[dict[str, Tree]]) -> None:
        """Continues from `state`, and from what `content` returned for the fragments that it then
        held; an empty replay like that one takes over both."""
        self.num_inserted = int(state["num_inserted"])
        for content in contents:
            numbers = content["first"] + np.arange(len(content["names"]))
            held = (numbers >= self.numbers.start) & (numbers < self.num_inserted)
            slots = numbers[held] % self.capacity
            for store, saved in zip(self._stores, content["columns"], strict=True):
                self._by_slot(store)[slots] = saved[held]
            self._number[slots] = numbers[held]
            for slot, name in zip(slots.tolist(), content["names"][held].tolist(), strict=True):
                self._take_name(slot, Name(*name))
        if (missing := self.num_stored - len(self._slot_of)) > 0:
            raise ValueError(f"expected {self.num_stored} fragments, got {missing} fewer")
        self.sampler.restore(state["sampler"])

    # -- inserting ---------------------------------------------------------------------------------

    def insert(self, fragment: Trajectory, length: int, origin: int, sequence: int) -> None:
        """Stores a full fragment in place of the oldest one."""
        if length != self.stored.capacity:
            raise ValueError(f"expected a fragment of {self.stored.capacity} ticks, got {length}")
        slot = self.num_inserted % self.capacity
        self._evict(slot)
        own = self.stored.burn_in
        for (kept, column), array in zip(self._stores, arrays(fragment), strict=True):
            first = own // column.every + column.depth
            new = array[first : first + self._ticks // column.every]
            kept[slot * column.entries :][: column.entries].reshape(new.shape)[...] = new
        self._number[slot] = self.num_inserted
        self.num_inserted += 1
        self._take_name(slot, Name(self.session, origin, sequence))
        self._mark_starts(slot)

    def _take_name(self, slot: int, name: Name) -> None:
        """Names the fragment of a slot, and links it with those before and after it."""
        self._name_of[slot] = name
        self._slot_of[name] = slot
        self._link(self._slot_of.get(name._replace(sequence=name.sequence - 1), _NONE), slot)
        self._link(slot, self._slot_of.get(name._replace(sequence=name.sequence + 1), _NONE))

    def _link(self, before: int, after: int) -> None:
        if before != _NONE and after != _NONE:
            self._after[before], self._before[after] = after, before

    def _evict(self, slot: int) -> None:
        name = self._name_of[slot]
        if name is None:
            return
        del self._slot_of[name]
        self._name_of[slot] = None
        self.sampler.allow(slot, 0, 0)
        before, after = int(self._before[slot]), int(self._after[slot])
        self._before[slot] = self._after[slot] = _NONE
        if before != _NONE:
            self._after[before] = _NONE
            self._mark_starts(before)
        if after != _NONE:
            self._before[after] = _NONE
            self._mark_starts(after)

    def _mark_starts(self, slot: int) -> None:
        """Notes at which ticks windows may begin, in a slot and in those that reach into it."""
        reach = -(-max(self._window, self._depth) // self._ticks)
        near = [slot]
        for links in (self._before, self._after):
            at = slot
            for _ in range(reach):
                at = int(links[at])
                if at == _NONE:
                    break
                near.append(at)
        for at in near:
            earlier = self._count(self._before, at, self._depth)
            later = self._count(self._after, at, self._window)
            first = min(self._ticks, max(0, self._depth - earlier))
            end = min(self._ticks, max(0, self._ticks + later - self._window + 1))
            self.sampler.allow(at, first, end)

    def _count(self, links: np.ndarray, slot: int, enough: int) -> int:
        """Ticks in the fragments that come before or after a slot's fragment, up to `enough`."""
        count, at = 0, int(links[slot])
        while at != _NONE and count < enough:
            count, at = count + self._ticks, int(links[at])
        return count

    # -- drawing -----------------------------------------------------------------------------------

    def draw(self, into: Trajectory) -> None:
        """Fills `into` with windows that the sampler chooses."""
        windows, relative = self.sampler.choose(self.drawn.envs, self.num_stored)
        self._fill(into, *windows)
        self._fill_row(into.row, windows, relative)

    def feed(self, keys: np.ndarray, priorities: np.ndarray) -> int:
        """Changes the priorities of windows, by their keys; returns how many of the windows are
        still there."""
        position = keys - self.key_base
        mine = (position >= 0) & (position < 1 << POSITION_BITS)
        rest, env = np.divmod(position[mine], self.stored.envs)
        number, start = np.divmod(rest, self._ticks)
        slot = number % self.capacity
        there = (self._number[slot] == number) & self.sampler.allowed(slot, start)
        windows = Windows(slot[there], start[there], env[there])
        self.sampler.feed(windows, priorities[mine][there])
        return windows.slot.size

    def _fill(self, into: Trajectory, slot: np.ndarray, start: np.ndarray, env: np.ndarray) -> None:
        agents, ticks = self.stored.num_agents, self._ticks
        row = env[:, None] * agents + np.arange(agents)
        """[windows, agents] rows in a fragment."""
        at = start + np.arange(self._window)[:, None]
        slots = self._along(self._after, slot, at // ticks)
        at %= ticks
        # An entry's number counts the ticks of all slots, and then rows.
        tick = slots * ticks + at
        index = (tick[:, :, None] * self._rows + row).reshape(self._window, -1)
        shown = self._shown_frames(slot, start, row) if self._depth else None
        for (kept, column), array in zip(self._stores, arrays(into), strict=True):
            if column.depth and shown is not None:
                _take(kept, shown[self._depth - column.depth :], array[: column.depth])
                _take(kept, index, array[column.depth :])
            elif column.field == "env_state":
                _take(kept, tick * self.stored.envs + env, array)
            elif column.field == "policy_state":
                _take(kept, self._state_index(slots, at, row, column.every), array)
            else:
                _take(kept, index, array)

    def _fill_row(
        self, given: dict[str, np.ndarray] | None, windows: Windows, relative: np.ndarray | None
    ) -> None:
        """Writes the key of each window, and its weight: the probability of a uniform draw of it
        divided by that of this draw."""
        if not given:
            return
        slot, start, env = windows
        if "key" in given:
            key = (self._number[slot] * self._ticks + start) * self.stored.envs + env
            given["key"][...] = (key + self.key_base).repeat(self.stored.num_agents)
        if "weight" in given:
            weight = 1.0 if relative is None else (1.0 / relative).repeat(self.stored.num_agents)
            given["weight"][...] = weight

    def _along(self, links: np.ndarray, slot: np.ndarray, hops: np.ndarray) -> np.ndarray:
        """The slot of each tick of windows [ticks, windows], that many links from the first."""
        chain = [slot]
        for _ in range(int(hops.max())):
            chain.append(links[chain[-1]])
        found: np.ndarray = np.stack(chain)[hops, np.arange(slot.size)]
        return found

    def _state_index(
        self, slots: np.ndarray, at: np.ndarray, row: np.ndarray, every: int
    ) -> np.ndarray:
        """Entries of the policy states that windows have, every `state_every` ticks of theirs."""
        chosen = slice(None, None, self.drawn.state_every)
        per_slot = self._ticks // every
        chunk = slots[chosen] * per_slot + at[chosen] // every
        index: np.ndarray = (chunk[:, :, None] * self._rows + row).reshape(len(chunk), -1)
        return index

    def _shown_frames(self, slot: np.ndarray, start: np.ndarray, row: np.ndarray) -> np.ndarray:
        """Entries of the frames in front of windows [depth, rows]: the episode's first frame where
        the episode is younger than the stack."""
        ticks, depth = self._ticks, self._depth
        back = start - np.arange(depth + 1)[:, None]
        hops = -(back // ticks)
        slots = self._along(self._before, slot, hops)
        index = (slots * ticks + back % ticks)[:, :, None] * self._rows + row
        first = self._is_first[index]
        ago = np.where(first.any(axis=0), first.argmax(axis=0), depth)
        wanted = np.minimum(np.arange(depth, 0, -1)[:, None, None], ago)
        found: np.ndarray = np.take_along_axis(index, wanted, axis=0).reshape(depth, -1)
        return found


def _take(entries: np.ndarray, index: np.ndarray, into: np.ndarray) -> None:
    """Copies entries into an array whose leading axes are those of `index`."""
    flat = into.reshape(index.size, *entries.shape[1:])
    # With a mode other than "raise" numpy writes into `out` without a copy in between.
    np.take(entries, index.reshape(-1), axis=0, out=flat, mode="clip")


def _check_specs(stored: TrajectorySpec, drawn: TrajectorySpec) -> None:
    """Raises if windows of one spec cannot be drawn from fragments of the other."""
    if stored.cut != "fixed" or drawn.cut != "fixed":
        raise ConfigError("replay: expected fragments of cut 'fixed', got 'episode'.")
    for name in ("agent", "extras", "policy_state", "env_state", "num_agents"):
        if getattr(stored, name) != getattr(drawn, name):
            raise ConfigError(
                f"replay: expected the same {name} in what is stored and what is drawn, got "
                f"{getattr(stored, name)!r:.100} and {getattr(drawn, name)!r:.100}."
            )
    if leaves(stored.policy_state) and drawn.state_every % stored.state_every:
        raise ConfigError(
            "replay: expected state_every of what is drawn to be a multiple of that of what is "
            f"stored ({stored.state_every}), got {drawn.state_every}. Change one of them."
        )
