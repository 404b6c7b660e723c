"""A gate's counters: in a region of its host's folder, where its agent (at home: the launcher)
reads them. With every beat they come to the head, which shows them."""

from __future__ import annotations

import numpy as np

from srl.arena.arena import Arena

COUNTERS = (
    "heartbeat_ns", "sent_messages", "sent_bytes", "received_messages", "received_bytes",
    "requests", "replies", "fragments", "weights", "resent", "stale", "rejected", "refused",
    "unsent", "wait_requests_ns", "wait_slots_ns",
)  # fmt: skip
"""`resent`: sent again for want of an answer. `stale`: came again, or too late, and was ignored.
`rejected`: did not fit the plan. `refused`: connections of strangers. `unsent`: found no room or no
connection, and were tried again. `wait_..._ns`: how long lanes waited for replies, and writers for
slots, of other hosts."""
TOLD = ("wait_requests_ns", "wait_slots_ns", "resent", "unsent", "stale", "rejected", "refused")
"""Those that the head shows."""
_INDEX = {name: i for i, name in enumerate(COUNTERS)}


class GateCounters:
    """The numbers, to write and to read."""

    def __init__(self, arena: Arena) -> None:
        self._cells = arena.region("gate", 8 * len(COUNTERS)).view(np.int64).data

    def add(self, name: str, amount: int = 1) -> None:
        """Adds to a counter."""
        self._cells[_INDEX[name]] += amount

    def set(self, name: str, value: int) -> None:
        """Sets a counter."""
        self._cells[_INDEX[name]] = value

    def get(self, name: str) -> int:
        """Reads a counter."""
        return int(self._cells[_INDEX[name]])

    def told(self) -> dict[str, int]:
        """What the head shows, by its name."""
        return {name: int(self._cells[_INDEX[name]]) for name in TOLD}

    def all(self) -> dict[str, int]:
        """Every counter by its name."""
        return {name: int(cell) for name, cell in zip(COUNTERS, self._cells, strict=True)}
