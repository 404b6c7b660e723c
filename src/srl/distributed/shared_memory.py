"""Collectives between ranks on one host, by shared memory that only the run's user can open.

Every rank has two slots. In a *turn* each rank writes one of them, sets its counter, and wakes the
others. It reads all slots when every counter has reached this turn. The next turn uses the other
slot. A rank that writes a slot again knows that all ranks have read it, because all have reached
the turn between. Data that is larger than a slot takes several turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from srl.arena.shm import ShmArena, WakePipe, make_wake_pipe
from srl.distributed.process_collective import LOOK_SECONDS, ProcessCollective

SLOT_BYTES = 1 << 20
_LINE = 64
"""Each counter has a cache line of its own."""


class SharedMemoryCollective(ProcessCollective):
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
        # Take all memory at once, also where regions take it only as they are used.
        arena.reserve(name, "trainer.count")
        self._counters = region[: count * _LINE].view(np.int64)[:: _LINE // 8].data
        self._slots = region[count * _LINE :].reshape(2, count, SLOT_BYTES)
        self._turn = 0
        self._arena = arena
        # Pipes of their own: the processes' wake pipes also wake them for everything else.
        wake_pipes = [f"{process}/sums" for process in processes]
        for wake_pipe in wake_pipes:
            # Make all of them, so that no rank wakes another whose pipe does not exist yet.
            make_wake_pipe(arena.folder, wake_pipe)
        self._wake_pipe = WakePipe(arena.folder, wake_pipes[rank])
        self._others = [wake_pipe for index, wake_pipe in enumerate(wake_pipes) if index != rank]

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
            # In the order of ranks, so that all ranks get the same bits.
            np.add(slots[0], slots[1], out=total[part])
            for slot in slots[2:]:
                total[part] += slot
        return torch.from_numpy(total)

    def broadcast(self, data: bytes, source: int) -> bytes:
        """Returns the bytes of the rank `source` on every rank."""
        size = int(self.gather(torch.tensor(len(data)))[source])
        own = np.frombuffer(data if self.rank == source else bytes(size), np.uint8)
        return b"".join(slots[source].tobytes() for _, slots in self._turns(own))

    def close(self) -> None:
        """Closes the wake pipe."""
        self._wake_pipe.close()

    def _turns(self, own: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
        """Exchanges [n] numbers part by part: yields where the part is, and every rank's [count,
        part]."""
        size = own.itemsize
        for start in range(0, own.size, SLOT_BYTES // size):
            part = slice(start, min(start + SLOT_BYTES // size, own.size))
            length = part.stop - part.start
            slots = self._slots[self._turn % 2, :, : length * size].view(own.dtype)
            slots[self.rank] = own[part]
            self._turn += 1
            self._counters[self.rank] = self._turn
            self._arena.wake(*self._others)
            self._await_all()
            yield part, slots

    def _await_all(self) -> None:
        start = time.monotonic()
        while min(self._counters) < self._turn:
            if not self._wake_pipe.wait(LOOK_SECONDS):
                self._look(time.monotonic() - start)
