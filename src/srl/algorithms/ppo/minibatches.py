"""The random parts of a batch that optimizer steps learn from."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from srl.algorithms.ppo.rollout import Minibatch, Rollout
from srl.algorithms.ppo.whole import Whole


def minibatches(
    rollout: Rollout,
    whole: Whole,
    count: int,
    chunk_ticks: int,
    generator: torch.Generator,
    normalize: bool,
) -> Iterator[Minibatch]:
    """All samples once, in random order, in `count` parts (fewer if there are not enough); of each
    part what this rank has."""
    chunked = rollout.policy_state is not None
    starts = whole.chunk_starts(chunk_ticks) if chunked else whole.sample_index()
    if count > 1:
        order = torch.randperm(len(starts), generator=generator, device=generator.device)
        starts = starts[order.to(rollout.device)]
    burn_in = rollout.burn_in if chunked else 0
    ticks = torch.arange(burn_in + chunk_ticks, device=rollout.device) if chunked else None
    for part in starts.tensor_split(count):
        if not len(part):
            continue
        if whole.ranks.count == 1:
            yield rollout.gather(_spread(part, ticks, rollout.rows), burn_in, normalize)
        else:
            yield _own_part(rollout, whole, part, ticks, burn_in, normalize)


def _own_part(
    rollout: Rollout,
    whole: Whole,
    part: torch.Tensor,
    ticks: torch.Tensor | None,
    burn_in: int,
    normalize: bool,
) -> Minibatch:
    late = None if ticks is None else ticks[burn_in:]
    every = whole.samples(_spread(part, late, whole.rows))
    own = whole.mine(part)
    counts = len(own) > 0
    if not counts:
        # Everyone joins in every step: a rank without a sample computes with one that counts
        # nothing.
        own = torch.zeros(1, dtype=part.dtype, device=part.device)
    index = _spread(own, ticks, rollout.rows)
    found = rollout.gather(index, burn_in, normalize, every)
    found.share = len(found.advantage) / len(every) if counts else 0.0
    return found


def _spread(starts: torch.Tensor, ticks: torch.Tensor | None, rows: int) -> torch.Tensor:
    """Flat indices [n] of first ticks to those of all ticks: [ticks, n]; without memory every
    sample is by itself."""
    return starts.unsqueeze(0) if ticks is None else starts + (ticks * rows).unsqueeze(1)
