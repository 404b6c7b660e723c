"""Counters of a run's bridges: of the head's host, and summed over all hosts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from srl.arena.arena import Arena
from srl.bridge.counters import REPORTED, BridgeCounters


class Traffic:
    """Adds up what bridges refused, sent again and waited for."""

    def __init__(self, arena: Arena, refused: Callable[[], int]) -> None:
        """`arena` has the counters of this host's bridge; `refused` returns how often the control
        socket has refused something."""
        self._home = BridgeCounters(arena)
        self._refused = refused
        self._lost_hosts: Counter[str] = Counter()

    def home(self) -> dict[str, int]:
        """The counters of this host's bridge and of the control socket."""
        counts = self._home.reported()
        counts["refused"] += self._refused()
        return counts

    def lose(self, counts: Mapping[str, int]) -> None:
        """Keeps the last counters of a lost host."""
        self._lost_hosts.update(counts)

    def all(self, others: Iterable[Mapping[str, int]]) -> dict[str, float]:
        """The sums over this host, the `others` that are here, and lost hosts; waits in seconds."""
        total = self._lost_hosts + Counter(self.home())
        for counts in others:
            total.update(counts)
        return {
            f"between_hosts.{name.replace('_ns', '_seconds')}": (
                total[name] / 1e9 if name.endswith("_ns") else total[name]
            )
            for name in REPORTED
        }
