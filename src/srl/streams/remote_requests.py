"""An inference stream on several hosts, as the bridges that carry requests and replies use it.

Slots have the same numbers on all hosts. On the client's host, the bridge takes a submitted slot as
a server would, and answers it once the reply has come. On a server's host, the bridge writes the
request into the slot of the same number, and submits it as the client would.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from srl.arena.arena import Arena
from srl.streams.inference import (
    ANSWERED,
    IDLE,
    SUBMITTED,
    TAKEN,
    InferenceMemory,
    InferenceSpec,
    reply_leaves,
    request_leaves,
    slots_with,
)


class RemoteRequests:
    """Both sides of an inference stream for a bridge: slots as flat bytes."""

    def __init__(self, spec: InferenceSpec, arena: Arena) -> None:
        self.spec = spec
        self.memory = memory = InferenceMemory(spec, arena)
        self._arena = arena
        self._lock_name = f"inference/{spec.name}"
        self._server = len(spec.servers)
        requests, replies = request_leaves(memory.request), reply_leaves(memory.reply)
        self._requests = _SlotBytes(requests, spec.rows)
        self._replies = _SlotBytes(replies, spec.rows)
        self.pixels = [array.dtype == "uint8" for array in requests]
        """For each array of a request: whether it holds bytes such as pixels."""
        memory.used_by_bridge[0] = 1

    def request_parts(self, slot: int, num_rows: int) -> list[memoryview]:
        """The bytes of a slot's request, array by array."""
        return self._requests.parts(slot, num_rows)

    def reply_parts(self, slot: int, num_rows: int) -> list[memoryview]:
        """The bytes of a slot's reply, array by array."""
        return self._replies.parts(slot, num_rows)

    # -- where the clients are -------------------------------------------------------------------

    def take(self) -> list[int]:
        """Takes all submitted slots."""
        memory = self.memory
        if not slots_with(memory.status, SUBMITTED):
            return []
        with self._arena.lock(self._lock_name):
            slots = slots_with(memory.status, SUBMITTED)
            for slot in slots:
                memory.server[slot] = self._server
                memory.status[slot] = TAKEN
        return slots

    def holds(self, slot: int) -> bool:
        """Whether a slot that was taken still waits for its reply. (Its client may have died.)"""
        return self.memory.status[slot] == TAKEN and self.memory.server[slot] == self._server

    def put_back(self, slots: Iterable[int]) -> None:
        """Submits taken slots again, for servers on this host or for the next `take`."""
        with self._arena.lock(self._lock_name):
            for slot in slots:
                if self.holds(slot):
                    self.memory.status[slot] = SUBMITTED
        self._arena.wake(*self.spec.servers)

    def answer(self, slots: Iterable[int]) -> None:
        """Marks slots as answered and wakes their clients; the caller has written the replies."""
        processes = set()
        for slot in slots:
            self.memory.status[slot] = ANSWERED
            processes.add(self.spec.clients[slot // self.spec.slots_per_client])
        self._arena.wake(*processes)

    # -- where the servers are -------------------------------------------------------------------

    def withdraw(self, slot: int) -> bool:
        """Makes a slot idle, so that it can be written again. False if a server has taken it."""
        with self._arena.lock(self._lock_name):
            if self.memory.status[slot] == TAKEN:
                return False
            self.memory.status[slot] = IDLE
            return True

    def submit(self, slots: Iterable[int]) -> None:
        """Submits slots whose requests the caller has written, and wakes the servers."""
        for slot in slots:
            self.memory.status[slot] = SUBMITTED
        self._arena.wake(*self.spec.servers)

    def answered(self) -> list[int]:
        """Slots with a reply, including those of clients on this host."""
        return slots_with(self.memory.status, ANSWERED)


class _SlotBytes:
    """Arrays [slots, rows, ...] as flat bytes."""

    def __init__(self, arrays: list[np.ndarray], rows: int) -> None:
        self._arrays = [
            (array.reshape(-1).view(np.uint8).data, rows * row, row)
            for array in arrays
            for row in (array[0, 0].nbytes,)
        ]

    def parts(self, slot: int, num_rows: int) -> list[memoryview]:
        """The bytes of a slot's first rows, array by array."""
        return [
            data[slot * size : slot * size + num_rows * row] for data, size, row in self._arrays
        ]
