"""Ranks in processes of their own, whatever carries their numbers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch

from srl.algorithms.ranks import Ranks

LOOK_SECONDS = 0.1
"""How often a rank that waits for others looks whether they are still there."""


class LinkedRanks(Ranks, ABC):
    """One rank's link to the others. It looks around while it waits for them, and leaves by a
    GroupBroken as soon as the group has ended or the run stops."""

    def __init__(
        self,
        rank: int,
        count: int,
        look: Callable[[float], None],
        stopping: Callable[[], bool],
    ) -> None:
        self.rank, self.count = rank, count
        self.giving_up = False
        """Some rank knew that the run stops when it came to the last sum, so all give up here."""
        self._look = look
        self._stopping = stopping

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of every rank's `x`; with it, whether any of them is to stop."""
        own = torch.cat([x.flatten(), x.new_full((1,), float(self._stopping()))])
        total = self._total(own)
        self.giving_up = bool(total[-1] > 0)
        return total[:-1].view_as(x)

    @abstractmethod
    def _total(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of every rank's `x` [n], the same to the bit for all of them."""

    @abstractmethod
    def broadcast(self, data: bytes, source: int) -> bytes:
        """The bytes of one rank."""

    @property
    def idle(self) -> bool:
        """Nothing is under way."""
        return True

    def close(self) -> None:
        """The group has ended."""
