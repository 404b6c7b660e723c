"""A bridge's counters: numbers in a region of its host's folder.

The host agent reads them, and every heartbeat carries them to the head, which shows them. The head
reads those of its own host itself.
"""

from __future__ import annotations

import numpy as np

from srl.arena.arena import Arena

COUNTERS = (
    "heartbeat_ns", "sent_messages", "sent_bytes", "received_messages", "received_bytes",
    "requests", "replies", "fragments", "weights", "resent", "stale", "rejected", "refused",
    "unsent", "wait_requests_ns", "wait_slots_ns", "data_messages",
)  # fmt: skip
"""All counters. Some of them need an explanation:

- `resent`: messages that were sent again because no answer came.
- `stale`: messages that came twice or too late, and were ignored.
- `rejected`: messages that did not fit the plan.
- `refused`: connections without a valid key.
- `unsent`: messages that were not sent: the queue was full, or there was no connection. They are
  tried again later.
- `wait_requests_ns`, `wait_slots_ns`: how long requests waited for replies of other hosts, and
  writers for slots of other hosts.
- `data_messages`: received messages with a request, a reply, a fragment or weights in them.
"""
REPORTED = (
    "wait_requests_ns", "wait_slots_ns", "data_messages", "resent", "unsent", "stale", "rejected",
    "refused",
)  # fmt: skip
"""The counters that the head shows."""
_INDEX = {name: i for i, name in enumerate(COUNTERS)}


class BridgeCounters:
    """The counters of one host's bridge, to write and to read."""

    def __init__(self, arena: Arena) -> None:
        self._cells = arena.region("bridge", 8 * len(COUNTERS)).view(np.int64).data

    def add(self, name: str, amount: int = 1) -> None:
        """Adds to a counter."""
        self._cells[_INDEX[name]] += amount

    def set(self, name: str, value: int) -> None:
        """Sets a counter."""
        self._cells[_INDEX[name]] = value

    def get(self, name: str) -> int:
        """Reads a counter."""
        return int(self._cells[_INDEX[name]])

    def reported(self) -> dict[str, int]:
        """The counters that the head shows, by name."""
        return {name: int(self._cells[_INDEX[name]]) for name in REPORTED}

    def all(self) -> dict[str, int]:
        """All counters, by name."""
        return {name: int(cell) for name, cell in zip(COUNTERS, self._cells, strict=True)}
