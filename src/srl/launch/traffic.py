"""What the gates of a run have counted: of every host, and of all together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from srl.arena.arena import Arena
from srl.gates.counters import TOLD, GateCounters


class Traffic:
    """Adds up what was refused, sent again and waited for between hosts."""

    def __init__(self, arena: Arena, refused: Callable[[], int]) -> None:
        """`arena` is where the gate at home counts, `refused` what the control socket has."""
        self._home = GateCounters(arena)
        self._refused = refused
        self._past: Counter[str] = Counter()

    def home(self) -> dict[str, int]:
        """Of the gate and the control socket at home."""
        counts = self._home.told()
        counts["refused"] += self._refused()
        return counts

    def lose(self, counts: Mapping[str, int]) -> None:
        """Keeps what a lost host had last said."""
        self._past.update(counts)

    def all(self, others: Iterable[Mapping[str, int]]) -> dict[str, float]:
        """Of home, of the `others` that are here, and of those that were; waits in seconds."""
        total = self._past + Counter(self.home())
        for counts in others:
            total.update(counts)
        return {
            f"between_hosts.{name.replace('_ns', '_seconds')}": (
                total[name] / 1e9 if name.endswith("_ns") else total[name]
            )
            for name in TOLD
        }
