"""A sample stream on several hosts: the owner, where the readers are, lends slots to writers that
are elsewhere.

The owner alone hands out tickets. On another host the stream is *granted*: a writer finds only the
slots that the owner granted it there. Once it has committed one, the fragment goes to the slot that
the owner holds for it. These are the two ends as whoever carries fragments between the hosts sees
them; how they are carried is his affair.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence

import numpy as np

from srl.arena.arena import Arena
from srl.data.layout import mark_unwritten
from srl.data.records import Trajectory
from srl.data.trajectory import to_tree
from srl.data.tree import leaves
from srl.streams import sample_claims, sample_order
from srl.streams.sample import SampleSpec
from srl.streams.sample_memory import (
    FREE,
    GRANTED,
    HOST_LOST,
    LEFT,
    LOST,
    READY,
    WRITER_DIED,
    WRITING,
    SampleMemory,
)


class _End:
    """What both ends have: the stream's memory as bytes."""

    def __init__(self, spec: SampleSpec, arena: Arena) -> None:
        self.spec = spec
        self.memory = SampleMemory(spec, arena)
        self._arena = arena
        self._lock_name = f"sample/{spec.name}"

    def parts(self, index: int, length: int, *, whole: bool = True) -> list[np.ndarray]:
        """The bytes of a fragment, uint8 [...] each: the slot as a whole if it is full and `whole`
        is asked for, or else the used part of every array."""
        if whole and length == self.spec.trajectory.capacity:
            return [self.memory.raw[index]]
        item, missing = self.memory.items[index], self.spec.trajectory.capacity - length
        every = self.spec.trajectory.state_every
        chunks = -(-length // every)
        found = []
        for name, tree in to_tree(item).items():
            for leaf in leaves(tree):
                used = chunks if name == "policy_state" else len(leaf) - missing
                found.append(leaf[:used].reshape(-1).view(np.uint8))
        return found

    def pixels(self) -> list[bool]:
        """For each of the `parts` that are not whole: whether it holds bytes such as pixels."""
        tree = to_tree(self.spec.trajectory.shapes())
        return [leaf.dtype == "uint8" for name in tree for leaf in leaves(tree[name])]


class Lender(_End):
    """The owner's end."""

    def lend(self, writer: int, newest_version: int | None) -> tuple[int, int] | None:
        """A slot and its ticket for a writer elsewhere, or None if it has to wait: for a slot, or
        for newer weights than `newest_version` (None: which are the newest is not known here)."""
        newest = sys.maxsize if newest_version is None else newest_version
        with self._arena.lock(self._lock_name):
            index = sample_claims.claim_free(self.memory, self.spec, writer, newest)
            if isinstance(index, str):
                return None
            return index, int(self.memory.ticket[index])

    def commit(self, index: int, length: int, num_env_steps: int) -> None:
        """The fragment is in its slot: hands it to the readers."""
        with self._arena.lock(self._lock_name):
            waiting = sample_claims.commit(self.memory, self.spec, index, length, num_env_steps)
        self._arena.ring(*waiting)

    def take_back(self, indices: Sequence[int], *, lost: bool) -> None:
        """Takes lent slots back; `lost` says that fragments were begun in them."""
        with self._arena.lock(self._lock_name):
            sample_order.free_unwritten(self.memory, np.array(indices, np.int64))
            if lost:
                self.memory.dropped[WRITER_DIED] += len(indices)
        self._arena.ring(*self.spec.readers, *self.spec.writers)

    def lent_to(self, writers: Collection[int]) -> list[int]:
        """Slots that the given writers hold."""
        memory = self.memory
        held = np.flatnonzero(memory.status == WRITING)
        return [int(index) for index in held if memory.writer[index] in writers]


class Borrower(_End):
    """The end at the writers."""

    def __init__(self, spec: SampleSpec, arena: Arena) -> None:
        super().__init__(spec, arena)
        self._marked: set[int] = set()

    def begin(self) -> None:
        """Makes the stream a granted one here, with nothing granted yet."""
        memory = self.memory
        with self._arena.lock(self._lock_name):
            memory.granted[0] = 1
            self._forget(np.flatnonzero(np.isin(memory.status, (GRANTED, READY, LEFT, LOST))))
        self._arena.ring(*self.spec.writers)

    def _forget(self, indices: np.ndarray) -> None:
        """Frees slots that an owner who is gone had granted. What was in them is lost, and counted
        here, because nobody else can. Under the lock."""
        memory = self.memory
        status = memory.status[indices]
        written = memory.writer[indices[status == READY]]
        np.add.at(memory.produced, written, 1)
        memory.dropped[HOST_LOST] += written.size
        memory.dropped[WRITER_DIED] += int((status == LOST).sum())
        memory.status[indices] = FREE

    def take_over(self, newest_version: int) -> None:
        """Makes this host the owner: the last one is gone, and its numbers with it.

        What is being written here is numbered anew, and for newer weights than `newest_version`;
        everything else of the old owner is forgotten.
        """
        memory = self.memory
        if not memory.granted[0]:
            return
        with self._arena.lock(self._lock_name):
            writing = np.flatnonzero(memory.status == WRITING)
            self._forget(np.flatnonzero(memory.status != WRITING))
            memory.ticket[writing] = np.arange(writing.size)
            memory.next_ticket[0] = writing.size
            memory.num_returned[0] = memory.num_lost[0] = 0
            memory.base_version[0] = max(int(memory.base_version[0]), newest_version)
            memory.granted[0] = 0
        self._arena.ring(*self.spec.writers, *self.spec.readers)

    def wanting(self) -> list[int]:
        """Writers that wait for a slot."""
        # Of a copy: writers change theirs meanwhile, which numpy does not forgive.
        found: list[int] = np.flatnonzero(self.memory.waiting_writers != 0).tolist()
        return found

    def accept(self, writer: int, ticket: int) -> int | None:
        """Puts a granted slot where its writer finds it; None if that does not want it any more."""
        memory = self.memory
        with self._arena.lock(self._lock_name):
            free = np.flatnonzero(memory.status == FREE)
            if not free.size or not memory.waiting_writers[writer]:
                return None
            # The first ones first: only slots that are used take memory here.
            index = int(free[0])
            if index not in self._marked:
                self._marked.add(index)
                _mark(memory.items[index])
            memory.ticket[index] = ticket
            memory.writer[index] = writer
            memory.next_ticket[0] = max(int(memory.next_ticket[0]), ticket + 1)
            memory.waiting_writers[writer] = 0
            memory.status[index] = GRANTED
        self._arena.ring(self.spec.writers[writer])
        return index

    def ended(self) -> dict[int, int]:
        """Slots that their writers are done with, and how: READY, LEFT or LOST."""
        status = self.memory.status.tobytes()
        return {i: s for i, s in enumerate(status) if s in (READY, LEFT, LOST)}

    def free(self, index: int) -> None:
        """The owner has what was in a slot, or has it back."""
        with self._arena.lock(self._lock_name):
            if self.memory.status[index] in (READY, LEFT, LOST):
                self.memory.status[index] = FREE

    def forget(self, index: int) -> None:
        """Frees a slot whose owner is gone, once its writer is done with it."""
        with self._arena.lock(self._lock_name):
            if self.memory.status[index] in (READY, LEFT, LOST):
                self._forget(np.array([index]))

    def revoke(self, index: int) -> None:
        """A grant that no longer holds, if its writer has not begun: he is to ask again."""
        memory = self.memory
        with self._arena.lock(self._lock_name):
            if memory.status[index] != GRANTED:
                return
            memory.status[index] = FREE
            writer = int(memory.writer[index])
        self._arena.ring(self.spec.writers[writer])

    def holds_of(self, writer: int) -> bool:
        """Whether any slot here is still a writer's."""
        return bool(((self.memory.status != FREE) & (self.memory.writer == writer)).any())


def _mark(item: Trajectory) -> None:
    """A fresh slot says so."""
    mark_unwritten(to_tree(item))
    item.policy_version.fill(-1)
