"""An inference stream on several hosts: what whoever carries requests and replies between them
needs.

Lanes have the same numbers everywhere. Where the client is, a relay takes a submitted lane as a
server would, and answers it once the reply has come. Where the servers are, it writes the request
into the lane of that number and submits it as the client would.
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
    lanes_with,
    reply_leaves,
    request_leaves,
)


class InferenceRelay:
    """Both sides of an inference stream, lane by lane, as flat bytes."""

    def __init__(self, spec: InferenceSpec, arena: Arena) -> None:
        self.spec = spec
        self.memory = memory = InferenceMemory(spec, arena)
        self._arena = arena
        self._lock_name = f"inference/{spec.name}"
        self._server = len(spec.servers)
        requests, replies = request_leaves(memory.request), reply_leaves(memory.reply)
        self._requests = _Bytes(requests, spec.rows)
        self._replies = _Bytes(replies, spec.rows)
        self.pixels = [array.dtype == "uint8" for array in requests]
        """Which of a request's arrays hold bytes such as pixels."""
        memory.relayed[0] = 1

    def request_parts(self, lane: int, num_rows: int) -> list[memoryview]:
        """The bytes of a lane's request, array by array."""
        return self._requests.of(lane, num_rows)

    def reply_parts(self, lane: int, num_rows: int) -> list[memoryview]:
        """The bytes of a lane's reply, array by array."""
        return self._replies.of(lane, num_rows)

    # -- where the clients are -------------------------------------------------------------------

    def take(self) -> list[int]:
        """Takes what was submitted."""
        memory = self.memory
        if not lanes_with(memory.status, SUBMITTED):
            return []
        with self._arena.lock(self._lock_name):
            lanes = lanes_with(memory.status, SUBMITTED)
            for lane in lanes:
                memory.server[lane] = self._server
                memory.status[lane] = TAKEN
        return lanes

    def holds(self, lane: int) -> bool:
        """Whether a lane that was taken still waits for its reply; its client may have died."""
        return self.memory.status[lane] == TAKEN and self.memory.server[lane] == self._server

    def put_back(self, lanes: Iterable[int]) -> None:
        """Gives taken lanes to others: servers here, or whoever takes them next."""
        with self._arena.lock(self._lock_name):
            for lane in lanes:
                if self.holds(lane):
                    self.memory.status[lane] = SUBMITTED
        self._arena.ring(*self.spec.servers)

    def answer(self, lanes: Iterable[int]) -> None:
        """The replies of lanes that are held have been written: wakes their clients."""
        processes = set()
        for lane in lanes:
            self.memory.status[lane] = ANSWERED
            processes.add(self.spec.clients[lane // self.spec.lanes_per_client])
        self._arena.ring(*processes)

    # -- where the servers are -------------------------------------------------------------------

    def withdraw(self, lane: int) -> bool:
        """Makes a lane idle, to be written again; False while a server is reading it."""
        with self._arena.lock(self._lock_name):
            if self.memory.status[lane] == TAKEN:
                return False
            self.memory.status[lane] = IDLE
            return True

    def submit(self, lanes: Iterable[int]) -> None:
        """Requests have been written: hands them to the servers."""
        for lane in lanes:
            self.memory.status[lane] = SUBMITTED
        self._arena.ring(*self.spec.servers)

    def answered(self) -> list[int]:
        """Lanes with a reply; those of clients on this host among them."""
        return lanes_with(self.memory.status, ANSWERED)


class _Bytes:
    """Arrays [lanes, rows, ...] as flat bytes."""

    def __init__(self, arrays: list[np.ndarray], rows: int) -> None:
        self._arrays = [
            (array.reshape(-1).view(np.uint8).data, rows * row, row)
            for array in arrays
            for row in (array[0, 0].nbytes,)
        ]

    def of(self, lane: int, num_rows: int) -> list[memoryview]:
        """The first rows of a lane."""
        return [
            data[lane * size : lane * size + num_rows * row] for data, size, row in self._arrays
        ]
