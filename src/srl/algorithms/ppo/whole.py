"""The batch of all ranks: what each of them has to know of it, in the order in which one trainer
alone would have it.

A batch is cut into fragments, and fragment n is with rank n mod count. The numbers that normalise,
count or sum up are of the whole batch; they are gathered once for each learner step. So minibatches
are the same however many trainers there are: each rank takes those samples of a minibatch that it
has, and counts in it as much as they do.
"""

from __future__ import annotations

import torch

from srl.algorithms.ppo.rollout import Rollout
from srl.algorithms.ranks import Ranks


class Whole:
    """Counts, values, advantages and targets of every rank's rows."""

    def __init__(self, rollout: Rollout, num_items: int, ranks: Ranks) -> None:
        self.ranks = ranks
        self.burn_in = rollout.burn_in
        self._local_rows = rollout.rows
        self._rows_per_item = rollout.rows // max(1, num_items)
        self.counts = rollout.counts
        self.value, self.advantage = rollout.value[:-1], rollout.advantage
        self.target = rollout.target
        if ranks.count > 1:
            known = (rollout.counts[:-1].float(), self.value, self.advantage, self.target)
            counts, self.value, self.advantage, self.target = self._gather(torch.stack(known))
            none = torch.zeros_like(counts[:1], dtype=torch.bool)
            # The last tick only bootstraps.
            self.counts = torch.cat([counts > 0, none])
        self.rows = self.counts.shape[1]

    def _gather(self, x: torch.Tensor) -> torch.Tensor:
        """[..., rows] of each rank to [..., rows of all], fragments by their numbers."""
        every = self.ranks.gather(x)
        items = every.view(*every.shape[:-1], -1, self._rows_per_item)
        return items.movedim(0, -2).flatten(-3)

    def select(self, x: torch.Tensor) -> torch.Tensor:
        """[T, B] to the [N] samples that count."""
        return x[self.counts[: x.shape[0]]]

    def sample_index(self) -> torch.Tensor:
        """The flat index of every sample that counts: [N]."""
        index: torch.Tensor = self.counts.flatten().nonzero().squeeze(1)
        return index

    def chunk_starts(self, chunk_ticks: int) -> torch.Tensor:
        """Where each chunk that has samples starts (with its burn-in), as a flat index: [n]."""
        loss_ticks = self.counts[self.burn_in : -1].reshape(-1, chunk_ticks, self.rows)
        chunk, row = loss_ticks.any(1).nonzero(as_tuple=True)
        starts: torch.Tensor = chunk * chunk_ticks * self.rows + row
        return starts

    def samples(self, index: torch.Tensor) -> torch.Tensor:
        """The advantages of the samples among a flat index."""
        index = index.flatten()
        return self.advantage.flatten()[index[self.counts.flatten()[index]]]

    def mine(self, index: torch.Tensor) -> torch.Tensor:
        """Of a flat index into the whole batch, this rank's part as an index into its own."""
        tick, row = index // self.rows, index % self.rows
        item, within = row // self._rows_per_item, row % self._rows_per_item
        local = item // self.ranks.count * self._rows_per_item + within
        own = item % self.ranks.count == self.ranks.rank
        found: torch.Tensor = (tick * self._local_rows + local)[own]
        return found
