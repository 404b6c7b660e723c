"""The trainers of one policy as its algorithm sees them: what is whole is summed over all of them.

Each trainer is a *rank*. All ranks make the same calls in the same order; whatever decides how an
update goes on (is the gradient finite, has the policy moved too far) is a number of the whole batch
that every rank has, so that all of them decide alike.
"""

from __future__ import annotations

import torch


class Ranks:
    """One trainer alone; several are `srl.workers.linked_ranks.LinkedRanks`."""

    rank = 0
    count = 1

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of every rank's `x`, in its memory or elsewhere."""
        return x

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        """Every rank's `x`, which has the same shape everywhere: [count, ...]."""
        return x.unsqueeze(0)


class GroupBroken(Exception):
    """A sum over ranks cannot be had: one of them has died, or the run stops. An algorithm lets it
    pass: the trainer undoes the update, and the ranks meet again."""
