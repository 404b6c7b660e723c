"""The books of a run's sample streams: those of every host, and of hosts that are gone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from srl.arena.arena import Arena
from srl.streams.sample_books import Ledger, ledger, settled, together
from srl.workers.wiring import Plan


class Books:
    """Adds up where the fragments of every stream went."""

    def __init__(self, arena: Arena) -> None:
        """`arena` is where the streams lie at home."""
        self._arena = arena
        self._plan: Plan | None = None
        self._past: list[dict[str, Ledger]] = []

    def attach(self, plan: Plan) -> None:
        """Says which streams there are."""
        self._plan = plan

    def lose(self, books: Mapping[str, Ledger]) -> None:
        """Keeps what a lost host had last said; what was in flight there is dropped."""
        self._past.append({name: settled(kept) for name, kept in books.items()})

    def all(self, others: Iterable[Mapping[str, Ledger]]) -> dict[str, Ledger]:
        """The books of home, of the `others` that are here, and of those that were, by the names
        of streams in the graph."""
        assert self._plan is not None
        every = [*others, *self._past]
        found: dict[str, list[Ledger]] = {}
        for name, stream in self._plan.samples.items():
            books = found.setdefault(stream.stream, [])
            books.append(ledger(stream.spec, self._arena))
            books += [kept[name] for kept in every if name in kept]
        return {name: together(books) for name, books in found.items()}
