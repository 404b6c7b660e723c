"""The random parts of a batch, one for each optimizer step."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from srl.algorithms.ppo.global_batch import GlobalBatch
from srl.algorithms.ppo.rollout import Minibatch, Rollout


def minibatches(
    rollout: Rollout,
    global_batch: GlobalBatch,
    count: int,
    chunk_ticks: int,
    generator: torch.Generator,
    normalize: bool,
) -> Iterator[Minibatch]:
    """Yields all samples once, in random order, in `count` parts (fewer if there are not enough
    samples). Of each part it yields the samples of this rank."""
    chunked = rollout.policy_state is not None
    starts = global_batch.chunk_starts(chunk_ticks) if chunked else global_batch.sample_index()
    if count > 1:
        order = torch.randperm(len(starts), generator=generator, device=generator.device)
        starts = starts[order.to(rollout.device)]
    burn_in = rollout.burn_in if chunked else 0
    ticks = torch.arange(burn_in + chunk_ticks, device=rollout.device) if chunked else None
    for part in starts.tensor_split(count):
        if not len(part):
            continue
        if global_batch.collective.count == 1:
            yield rollout.gather(_spread(part, ticks, rollout.rows), burn_in, normalize)
        else:
            yield _own_part(rollout, global_batch, part, ticks, burn_in, normalize)


def _own_part(
    rollout: Rollout,
    global_batch: GlobalBatch,
    part: torch.Tensor,
    ticks: torch.Tensor | None,
    burn_in: int,
    normalize: bool,
) -> Minibatch:
    loss_ticks = None if ticks is None else ticks[burn_in:]
    advantages = global_batch.samples(_spread(part, loss_ticks, global_batch.rows))
    own = global_batch.mine(part)
    counts = len(own) > 0
    if not counts:
        # All ranks join in every step: a rank without a sample computes with one that does not
        # count.
        own = torch.zeros(1, dtype=part.dtype, device=part.device)
    index = _spread(own, ticks, rollout.rows)
    found = rollout.gather(index, burn_in, normalize, advantages)
    found.share = len(found.advantage) / len(advantages) if counts else 0.0
    return found


def _spread(starts: torch.Tensor, ticks: torch.Tensor | None, rows: int) -> torch.Tensor:
    """Flat indices [n] of first ticks to those of all ticks, [ticks, n]. Without memory each sample
    is one tick."""
    return starts.unsqueeze(0) if ticks is None else starts + (ticks * rows).unsqueeze(1)
