"""How a replay chooses windows: uniformly, by priority, or in the order of their arrival.

A window is known by its slot, the first tick in the slot's fragment, and its environment. The
replay tells a sampler which windows there are (`allow`), and asks it to choose some.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

import numpy as np

from srl.data.tree import Tree


class Windows(NamedTuple):
    """Windows, each with its slot, its first tick and its environment: [N] int64 each."""

    slot: np.ndarray
    start: np.ndarray
    env: np.ndarray


SamplerName = Literal["uniform", "prioritized", "fifo"]


class Sampler(ABC):
    """Chooses windows of those that there are."""

    def __init__(self, slots: int, ticks: int, align: int, envs: int, seed: int) -> None:
        """`ticks` are those of a slot's fragment; windows begin at multiples of `align`."""
        self.align, self.envs = align, envs
        self.per_slot = -(-ticks // align)
        """Ticks of a fragment at which a window could begin."""
        self.rng = np.random.default_rng(seed)
        self._first, self._end = np.zeros(slots, np.int64), np.zeros(slots, np.int64)
        """The starts that are allowed in each slot, counted in steps of `align`."""
        self.num_starts = 0
        """Starts that are allowed, in all slots together."""

    def allow(self, slot: int, first: int, end: int) -> None:
        """Says that a slot's windows begin at ticks from `first` to before `end` now."""
        first, end = -(-first // self.align), -(-end // self.align)
        end = max(first, end)
        old = int(self._first[slot]), int(self._end[slot])
        if old == (first, end):
            return
        self.num_starts += (end - first) - (old[1] - old[0])
        self._first[slot], self._end[slot] = first, end
        self._changed(slot, old, (first, end))

    def _changed(self, slot: int, old: tuple[int, int], new: tuple[int, int]) -> None:
        """Notes that other starts are allowed in a slot."""
        return

    def allowed(self, slot: np.ndarray, start: np.ndarray) -> np.ndarray:
        """Whether windows of these slots may begin at these ticks."""
        step = start // self.align
        found: np.ndarray = (step >= self._first[slot]) & (step < self._end[slot])
        return found

    def can_choose(self, count: int) -> bool:
        """Whether so many windows can be chosen."""
        return self.num_starts > 0

    def state(self) -> dict[str, Tree]:
        """All that a choice depends on."""
        return {
            "first": self._first.copy(),
            "end": self._end.copy(),
            "num_starts": self.num_starts,
            "rng": self.rng.bit_generator.state,
        }

    def restore(self, state: dict[str, Tree]) -> None:
        """Continues from `state`."""
        self._first[...], self._end[...] = state["first"], state["end"]
        self.num_starts = state["num_starts"]
        self.rng.bit_generator.state = state["rng"]

    @abstractmethod
    def choose(self, count: int, num_stored: int) -> tuple[Windows, np.ndarray | None]:
        """Windows of the first `num_stored` slots, and the probability of each relative to a
        uniform choice (None: all 1)."""

    def feed(self, windows: Windows, priorities: np.ndarray) -> None:
        """Changes the priorities of windows, all of which are allowed."""
        return


class UniformSampler(Sampler):
    """Chooses every window with the same probability."""

    def choose(self, count: int, num_stored: int) -> tuple[Windows, np.ndarray | None]:
        """Windows, drawn with replacement."""
        slots, starts = np.empty(count, np.int64), np.empty(count, np.int64)
        found = 0
        while found < count:
            number = 2 * (count - found) + 8
            slot = self.rng.integers(num_stored, size=number)
            start = self.rng.integers(self.per_slot, size=number) * self.align
            good = np.flatnonzero(self.allowed(slot, start))[: count - found]
            slots[found : found + good.size] = slot[good]
            starts[found : found + good.size] = start[good]
            found += good.size
        return Windows(slots, starts, self.rng.integers(self.envs, size=count)), None


class PrioritizedSampler(Sampler):
    """Chooses windows in proportion to a power of their priority (Schaul et al. 2016).

    A new window has the highest priority so far. Sums over blocks of windows make a choice and a
    change cheap: both look at one block for each window.
    """

    def __init__(
        self, slots: int, ticks: int, align: int, envs: int, seed: int, *, exponent: float
    ) -> None:
        super().__init__(slots, ticks, align, envs, seed)
        self._exponent = exponent
        size = slots * self.per_slot * envs
        self._block = max(64, 1 << (size.bit_length() // 2))
        blocks = -(-size // self._block)
        self._mass = np.zeros((blocks, self._block))
        """The priority of every window to the power of the exponent; 0 where none may begin."""
        self._flat = self._mass.reshape(-1)
        self._sums = np.zeros(blocks)
        self._highest = 1.0
        """The largest mass that a window has had."""

    def _changed(self, slot: int, old: tuple[int, int], new: tuple[int, int]) -> None:
        size = self.per_slot * self.envs
        masses = self._flat[slot * size : (slot + 1) * size].reshape(self.per_slot, self.envs)
        masses[: new[0]] = masses[new[1] :] = 0.0
        fresh = masses[new[0] : new[1]]
        fresh[fresh == 0.0] = self._highest
        first, last = slot * size // self._block, ((slot + 1) * size - 1) // self._block
        self._sums[first : last + 1] = self._mass[first : last + 1].sum(1)

    def state(self) -> dict[str, Tree]:
        """Also the priorities."""
        own = {"mass": self._mass.copy(), "sums": self._sums.copy(), "highest": self._highest}
        return {**super().state(), **own}

    def restore(self, state: dict[str, Tree]) -> None:
        """Continues from `state`."""
        super().restore(state)
        self._mass[...], self._sums[...] = state["mass"], state["sums"]
        self._highest = state["highest"]

    def choose(self, count: int, num_stored: int) -> tuple[Windows, np.ndarray | None]:
        """One window of each of `count` equal shares of the mass."""
        ends = self._sums.cumsum()
        index = np.empty(count, np.int64)
        missing = np.arange(count)
        while missing.size:
            at = (missing + self.rng.random(missing.size)) / count * ends[-1]
            block = np.minimum(np.searchsorted(ends, at, side="right"), ends.size - 1)
            rest = at - (ends[block] - self._sums[block])
            inner = (self._mass[block].cumsum(1) <= rest[:, None]).sum(1)
            index[missing] = block * self._block + np.minimum(inner, self._block - 1)
            # Rounding may lead to a window next to the right one that must not begin.
            missing = missing[self._flat[index[missing]] == 0.0]
        relative = self._flat[index] / ends[-1] * (self.num_starts * self.envs)
        step, env = np.divmod(index, self.envs)
        slot, start = np.divmod(step, self.per_slot)
        return Windows(slot, start * self.align, env), relative

    def feed(self, windows: Windows, priorities: np.ndarray) -> None:
        """Changes priorities. A priority of 0 becomes a very small one."""
        step = windows.slot * self.per_slot + windows.start // self.align
        index = step * self.envs + windows.env
        masses = np.maximum(priorities.astype(np.float64), 1e-6) ** self._exponent
        self._flat[index] = masses
        self._highest = max(self._highest, float(masses.max(initial=0.0)))
        blocks = np.unique(index // self._block)
        self._sums[blocks] = self._mass[blocks].sum(1)


class FifoSampler(Sampler):
    """Chooses windows in the order of their arrival, each a limited number of times.

    Windows do not overlap: they begin at multiples of their own length.
    """

    def __init__(
        self, slots: int, ticks: int, align: int, envs: int, seed: int, *, length: int, uses: int
    ) -> None:
        super().__init__(slots, ticks, length, envs, seed)
        self._uses = uses
        self._queue: deque[np.ndarray] = deque()
        """[N, 4] slot, step, environment and uses left of windows, in the order of their turn."""
        self._num_queued = 0

    def _changed(self, slot: int, old: tuple[int, int], new: tuple[int, int]) -> None:
        steps = [step for step in range(*new) if not old[0] <= step < old[1]]
        if steps:
            step, env = np.divmod(np.arange(len(steps) * self.envs), self.envs)
            entries = np.empty((step.size, 4), np.int64)
            entries[:] = 0, 0, 0, self._uses
            entries[:, 0], entries[:, 1], entries[:, 2] = slot, np.array(steps)[step], env
            self._push(entries)
        if gone := [step for step in range(*old) if not new[0] <= step < new[1]]:
            self._remove(slot, gone)

    def state(self) -> dict[str, Tree]:
        """Also the windows that wait, in their order."""
        queue = np.concatenate([np.empty((0, 4), np.int64), *self._queue])
        return {**super().state(), "queue": queue}

    def restore(self, state: dict[str, Tree]) -> None:
        """Continues from `state`."""
        super().restore(state)
        self._queue.clear()
        self._num_queued = 0
        self._push(state["queue"].copy())

    def _push(self, entries: np.ndarray) -> None:
        self._queue.append(entries)
        self._num_queued += len(entries)

    def _remove(self, slot: int, steps: list[int]) -> None:
        """Takes windows out that are gone before they were used up."""
        entries = np.concatenate(self._queue)
        kept = entries[~((entries[:, 0] == slot) & np.isin(entries[:, 1], steps))]
        self._queue.clear()
        self._num_queued = 0
        self._push(kept)

    def can_choose(self, count: int) -> bool:
        """Whether enough windows wait for their turn."""
        return self._num_queued >= count

    def choose(self, count: int, num_stored: int) -> tuple[Windows, np.ndarray | None]:
        """The next windows; those that may be used again wait for another turn."""
        taken: list[np.ndarray] = []
        missing = count
        while missing:
            entries = self._queue.popleft()
            taken.append(entries[:missing])
            if len(entries) > missing:
                self._queue.appendleft(entries[missing:])
            missing -= len(taken[-1])
        chosen = np.concatenate(taken)
        self._num_queued -= count
        chosen[:, 3] -= 1
        again = chosen[chosen[:, 3] > 0]
        if len(again):
            self._push(again)
        return Windows(chosen[:, 0], chosen[:, 1] * self.align, chosen[:, 2]), None


MakeSampler = Callable[[int, int, int, int], Sampler]
"""Makes a sampler for so many slots of fragments of so many ticks, where windows begin at multiples
of a number of ticks, with so many environments."""


def sampler_maker(
    name: SamplerName, *, seed: int, exponent: float, length: int, uses: int
) -> MakeSampler:
    """What makes the sampler with a name; each uses what it needs of the settings."""
    match name:
        case "uniform":
            return partial(UniformSampler, seed=seed)
        case "prioritized":
            return partial(PrioritizedSampler, seed=seed, exponent=exponent)
        case "fifo":
            return partial(FifoSampler, seed=seed, length=length, uses=uses)
