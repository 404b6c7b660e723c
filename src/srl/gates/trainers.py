"""Trainers of one policy on several hosts: what each rank says of itself is carried to the others.

The numbers by which they agree (`services/trainers.py`) lie on every host that has one of them. A
gate sends those of its own ranks whenever they change, and once a second. They say what holds, not
what has changed, so that nothing is to be acknowledged. Ranks of a host that is gone are forgotten,
which ends their group.
"""

from __future__ import annotations

from srl.arena.arena import Arena
from srl.data.counts import MOST
from srl.errors import SpecError
from srl.gates.messages import Ranks
from srl.gates.post import Post, Weights
from srl.services.trainers import ROW, BatchNumbers, Standing, Trainers

AGAIN_SECONDS = 1.0
COUNTED = len(Standing._fields) + len(BatchNumbers._fields)
"""How many of a rank's numbers are versions and counts."""


class Grouping:
    """One policy's trainers."""

    busy = False

    def __init__(self, number: int, weights: Weights, arena: Arena, post: Post) -> None:
        self._number = number
        self._processes = weights.trainers
        self._arena = arena
        self._post = post
        self._alone = len(weights.trainers) < 2
        self._sent: dict[str, tuple[bytes, float]] = {}
        """What each host was told, and when to say it again."""
        if not self._alone:
            self._trainers = Trainers(arena, weights.spec.policy, len(weights.trainers))

    def follow(self, gone: frozenset[str]) -> None:
        """Forgets ranks whose hosts are gone."""
        if self._alone:
            return
        self._sent.clear()
        former = self._post.former_homes
        for rank, process in enumerate(self._processes):
            if former.get(process) in gone:
                self._trainers.remove(rank)
                self._arena.ring(*self._here())

    def _here(self) -> list[str]:
        return [self._processes[rank] for rank in self._post.at_home(self._processes)]

    def turn(self, now: float) -> None:
        """Tells the other hosts how things are with the ranks here."""
        if self._alone:
            return
        hosts = self._post.hosts(self._processes)
        own = self._post.at_home(self._processes) if hosts else []
        if not own:
            return
        seen = self._trainers.fingerprint()
        message: Ranks | None = None
        for host in hosts:
            before, due = self._sent.get(host, (b"", 0.0))
            if seen == before and now < due:
                continue
            if message is None:
                rows = {rank: self._trainers.row(rank) for rank in own}
                message = Ranks(self._number, self._trainers.epoch, rows)
            if self._post.send(host, message):
                self._sent[host] = (seen, now + AGAIN_SECONDS)

    def ranks(self, host: str, message: Ranks) -> None:
        """Another host says how things are with its ranks."""
        for rank, row in message.rows.items():
            known = not self._alone and rank < len(self._processes)
            if not known or self._post.homes.get(self._processes[rank]) != host:
                raise SpecError(f"ranks: {host} speaks for trainer {rank}, which is not there.")
            if len(row) != ROW or not all(-1 <= number <= MOST for number in row[-COUNTED:]):
                raise SpecError(
                    f"ranks: expected {ROW} numbers of a trainer, the last {COUNTED} of them from "
                    f"-1 to {MOST}, got {row}."
                )
        if self._trainers.merge(message.epoch, message.rows):
            self._arena.ring(*self._here())
