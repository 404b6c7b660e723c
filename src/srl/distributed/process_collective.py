"""Collectives between ranks in processes of their own, over any carrier."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch

from srl.algorithms.collective import Collective

LOOK_SECONDS = 0.1
"""Interval at which a rank that waits for others checks that they are still there."""


class ProcessCollective(Collective, ABC):
    """One rank's link to the others.

    While it waits for them it calls `look`, which raises CollectiveBroken when the group has ended
    or the run stops.
    """

    def __init__(
        self,
        rank: int,
        count: int,
        look: Callable[[float], None],
        stopping: Callable[[], bool],
    ) -> None:
        self.rank, self.count = rank, count
        self.giving_up = False
        """True if a rank said in the last sum that the run stops; then all ranks give up here."""
        self._look = look
        self._stopping = stopping

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of every rank's `x`. The same sum carries whether any rank is to stop."""
        own = torch.cat([x.flatten(), x.new_full((1,), float(self._stopping()))])
        total = self._total(own)
        self.giving_up = bool(total[-1] > 0)
        return total[:-1].view_as(x)

    @abstractmethod
    def _total(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of every rank's `x` [n], with the same bits on all ranks."""

    @abstractmethod
    def broadcast(self, data: bytes, source: int) -> bytes:
        """Returns the bytes of the rank `source` on every rank."""

    @property
    def idle(self) -> bool:
        """Whether no operation is under way."""
        return True

    def close(self) -> None:
        """Frees the link, after the group has ended."""
