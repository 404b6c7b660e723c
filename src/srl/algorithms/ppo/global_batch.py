"""The global batch: the numbers of all ranks that each rank needs, in the order of one trainer
alone.

A batch is cut into fragments, and fragment n is on rank n mod count. Numbers that normalise, count
or sum up are of the global batch. They are gathered once for each learner step. So minibatches are
the same for any number of trainers. Each rank takes those samples of a minibatch that it has, and
counts in it by their number.
"""

from __future__ import annotations

import torch

from srl.algorithms.collective import Collective
from srl.algorithms.learning.step import Metrics, target_metrics
from srl.algorithms.ppo.rollout import Rollout


class GlobalBatch:
    """Counts, values, advantages and targets of every rank's rows."""

    def __init__(self, rollout: Rollout, num_items: int, collective: Collective) -> None:
        self.collective = collective
        self.burn_in = rollout.burn_in
        self._local_rows = rollout.rows
        self._rows_per_item = rollout.rows // max(1, num_items)
        self.counts = rollout.counts
        self.value, self.advantage = rollout.value[:-1], rollout.advantage
        self.target = rollout.target
        if collective.count > 1:
            known = (rollout.counts[:-1].float(), self.value, self.advantage, self.target)
            counts, self.value, self.advantage, self.target = self._gather(torch.stack(known))
            none = torch.zeros_like(counts[:1], dtype=torch.bool)
            # The last tick only bootstraps.
            self.counts = torch.cat([counts > 0, none])
        self.rows = self.counts.shape[1]

    def _gather(self, x: torch.Tensor) -> torch.Tensor:
        """[..., rows] of each rank to [..., rows of all ranks], with fragments in the order of
        their numbers."""
        gathered = self.collective.gather(x)
        items = gathered.view(*gathered.shape[:-1], -1, self._rows_per_item)
        return items.movedim(0, -2).flatten(-3)

    def select(self, x: torch.Tensor) -> torch.Tensor:
        """Selects the [N] samples that count from [T, B]."""
        return x[self.counts[: x.shape[0]]]

    def metrics(self) -> Metrics:
        """Those of `target_metrics`, of the samples of all ranks."""
        return target_metrics(*map(self.select, (self.value, self.advantage, self.target)))

    def sample_index(self) -> torch.Tensor:
        """The flat index of every sample that counts, [N]."""
        index: torch.Tensor = self.counts.flatten().nonzero().squeeze(1)
        return index

    def chunk_starts(self, chunk_ticks: int) -> torch.Tensor:
        """The flat index at which each chunk with samples starts (with its burn-in), [n]."""
        loss_ticks = self.counts[self.burn_in : -1].reshape(-1, chunk_ticks, self.rows)
        chunk, row = loss_ticks.any(1).nonzero(as_tuple=True)
        starts: torch.Tensor = chunk * chunk_ticks * self.rows + row
        return starts

    def samples(self, index: torch.Tensor) -> torch.Tensor:
        """The advantages of the samples that a flat index points to."""
        index = index.flatten()
        return self.advantage.flatten()[index[self.counts.flatten()[index]]]

    def mine(self, index: torch.Tensor) -> torch.Tensor:
        """This rank's part of a flat index into the global batch, as an index into its own
        batch."""
        tick, row = index // self.rows, index % self.rows
        item, within = row // self._rows_per_item, row % self._rows_per_item
        local = item // self.collective.count * self._rows_per_item + within
        own = item % self.collective.count == self.collective.rank
        found: torch.Tensor = (tick * self._local_rows + local)[own]
        return found
