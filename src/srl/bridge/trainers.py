"""Ranks of one policy on several hosts: copies each rank's numbers to the hosts of the others.

Every host with a rank of the policy has a trainer table (`services/trainer_table.py`). A bridge
sends the rows of its host's ranks whenever they change, and once a second. A row holds the current
numbers, not changes, so messages need no answer. Ranks of a host that is gone are removed, which
ends their trainer group.
"""

from __future__ import annotations

from srl.arena.arena import Arena
from srl.bridge.messages import RankNumbers
from srl.bridge.messenger import PeerMessenger, WeightsRoute
from srl.data.counts import MAX_COUNT
from srl.errors import SpecError
from srl.services.trainer_table import ROW, BatchNumbers, RankProgress, TrainerTable

REPEAT_SECONDS = 1.0
"""How often a host's numbers are sent again, whether they have changed or not."""
COUNTED = len(RankProgress._fields) + len(BatchNumbers._fields)
"""How many of a rank's numbers (the last ones) are versions and counts."""


class RankExchange:
    """Exchanges the numbers of one policy's ranks with other hosts."""

    busy = False

    def __init__(
        self, number: int, weights: WeightsRoute, arena: Arena, messenger: PeerMessenger
    ) -> None:
        self._number = number
        self._processes = weights.trainers
        self._arena = arena
        self._messenger = messenger
        self._is_single = len(weights.trainers) < 2
        self._sent: dict[str, tuple[bytes, float]] = {}
        """What was last sent to each host, and when to send it again."""
        if not self._is_single:
            self._table = TrainerTable(arena, weights.spec.policy, len(weights.trainers))

    def follow(self, gone: frozenset[str]) -> None:
        """Applies a new address book: removes ranks whose hosts are `gone`."""
        if self._is_single:
            return
        self._sent.clear()
        former = self._messenger.former_host_by_process
        for rank, process in enumerate(self._processes):
            if former.get(process) in gone:
                self._table.remove(rank)
                self._arena.wake(*self._local_processes())

    def _local_processes(self) -> list[str]:
        return [self._processes[rank] for rank in self._messenger.indices_here(self._processes)]

    def turn(self, now: float) -> None:
        """Sends the numbers of this host's ranks to the other hosts."""
        if self._is_single:
            return
        hosts = self._messenger.hosts(self._processes)
        own = self._messenger.indices_here(self._processes) if hosts else []
        if not own:
            return
        seen = self._table.fingerprint()
        message: RankNumbers | None = None
        for host in hosts:
            before, due = self._sent.get(host, (b"", 0.0))
            if seen == before and now < due:
                continue
            if message is None:
                rows = {rank: self._table.row(rank) for rank in own}
                message = RankNumbers(self._number, self._table.epoch, rows)
            if self._messenger.send(host, message):
                self._sent[host] = (seen, now + REPEAT_SECONDS)

    def on_rank_numbers(self, host: str, message: RankNumbers) -> None:
        """Copies the numbers of another host's ranks into the table here."""
        for rank, row in message.rows.items():
            known = not self._is_single and rank < len(self._processes)
            if not known or self._messenger.host_by_process.get(self._processes[rank]) != host:
                raise SpecError(
                    f"rank numbers: {host} reports on rank {rank}, which it does not run."
                )
            if len(row) != ROW or not all(-1 <= number <= MAX_COUNT for number in row[-COUNTED:]):
                raise SpecError(
                    f"rank numbers: expected {ROW} numbers of a rank, the last {COUNTED} of them "
                    f"from -1 to {MAX_COUNT}, got {row}."
                )
        if self._table.merge(message.epoch, message.rows):
            self._arena.wake(*self._local_processes())
