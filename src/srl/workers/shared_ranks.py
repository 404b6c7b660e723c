"""Ranks on one host: numbers go through shared memory, which nobody but the run's user can open.

Every rank has two slots. In a *turn* each writes one of them, says so by a counter, rings the
others, and reads all slots once every counter is there. The next turn uses the other slot: whoever
writes it again, one turn later, knows that all have read it, because all have come to that turn.
What is larger than a slot takes several turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from srl.arena.shm import Bell, ShmArena, make_bell
from srl.workers.linked_ranks import LOOK_SECONDS, LinkedRanks

SLOT_BYTES = 1 << 20
_LINE = 64
"""Each counter has a cache line of its own."""


class SharedRanks(LinkedRanks):
    """One rank's link; `name` is that of the group, `processes` are those of its ranks."""

    def __init__(
        self,
        arena: ShmArena,
        name: str,
        processes: Sequence[str],
        rank: int,
        look: Callable[[float], None],
        stopping: Callable[[], bool],
    ) -> None:
        count = len(processes)
        super().__init__(rank, count, look, stopping)
        region = arena.region(name, count * (_LINE + 2 * SLOT_BYTES), "trainer.count")
        # Also where regions take memory as they are used: all of it is, at once.
        arena.reserve(name, "trainer.count")
        self._counters = region[: count * _LINE].view(np.int64)[:: _LINE // 8].data
        self._slots = region[count * _LINE :].reshape(2, count, SLOT_BYTES)
        self._turn = 0
        self._arena = arena
        # Not the bells of the processes: those ring for all else that they wait for.
        bells = [f"{process}/sums" for process in processes]
        for bell in bells:
            # All of them, so that none rings for a rank that has yet to open its own.
            make_bell(arena.folder, bell)
        self._bell = Bell(arena.folder, bells[rank])
        self._others = [bell for index, bell in enumerate(bells) if index != rank]

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        """Every rank's `x`: [count, ...]."""
        own = x.detach().flatten().view(torch.uint8).numpy()
        found = np.empty((self.count, own.size), np.uint8)
        for part, slots in self._turns(own):
            found[:, part] = slots
        return torch.from_numpy(found.reshape(-1)).view(x.dtype).view(self.count, *x.shape)

    def _total(self, x: torch.Tensor) -> torch.Tensor:
        own = x.detach().numpy()
        total = np.empty_like(own)
        for part, slots in self._turns(own):
            # In the order of ranks, so that all of them get the same bits.
            np.add(slots[0], slots[1], out=total[part])
            for slot in slots[2:]:
                total[part] += slot
        return torch.from_numpy(total)

    def broadcast(self, data: bytes, source: int) -> bytes:
        """The bytes of one rank."""
        size = int(self.gather(torch.tensor(len(data)))[source])
        own = np.frombuffer(data if self.rank == source else bytes(size), np.uint8)
        return b"".join(slots[source].tobytes() for _, slots in self._turns(own))

    def close(self) -> None:
        """Stops listening."""
        self._bell.close()

    def _turns(self, own: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
        """Part after part of [n] numbers: where it is, and every rank's [count, part]."""
        size = own.itemsize
        for start in range(0, own.size, SLOT_BYTES // size):
            part = slice(start, min(start + SLOT_BYTES // size, own.size))
            length = part.stop - part.start
            slots = self._slots[self._turn % 2, :, : length * size].view(own.dtype)
            slots[self.rank] = own[part]
            self._turn += 1
            self._counters[self.rank] = self._turn
            self._arena.ring(*self._others)
            self._await_all()
            yield part, slots

    def _await_all(self) -> None:
        start = time.monotonic()
        while min(self._counters) < self._turn:
            if not self._bell.wait(LOOK_SECONDS):
                self._look(time.monotonic() - start)
