"""The trainers of one policy, as its algorithm sees them: sums and gathers over all of them.

Each trainer is a *rank*. All ranks make the same calls in the same order. Every number that decides
how an update goes on (is the gradient finite, has the policy moved too far) is of the global batch.
Every rank has this number, so that all ranks decide alike.
"""

from __future__ import annotations

import torch


class Collective:
    """The collective of one trainer alone; several use
    `srl.distributed.process_collective.ProcessCollective`."""

    rank = 0
    count = 1

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of every rank's `x`. It may be in the memory of `x`."""
        return x

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        """Every rank's `x`, which has the same shape on all ranks: [count, ...]."""
        return x.unsqueeze(0)


class CollectiveBroken(Exception):
    """A collective failed, because a rank has died or the run stops.

    An algorithm must not catch it: the trainer rolls the update back, and the ranks form a group
    again.
    """
