"""One optimizer step as all learners take it: over all ranks, and only of finite numbers."""

from __future__ import annotations

import math

import torch

from srl.algorithms.collective import Collective
from srl.algorithms.learning.flat_optimizer import FlatOptimizer
from srl.algorithms.ops.masking import explained_variance
from srl.errors import LearnError

Metrics = dict[str, torch.Tensor]
"""Scalars by name."""


def sum_over_ranks(
    collective: Collective,
    optimizer: FlatOptimizer,
    loss: torch.Tensor,
    metrics: Metrics,
    share: float,
) -> tuple[torch.Tensor, Metrics]:
    """Sums the gradient (in place), the loss and the metrics over all ranks.

    `share` is this rank's share of the global minibatch.
    """
    if collective.count == 1:
        return loss, metrics
    numbers = torch.stack([loss, *metrics.values()]).to(optimizer.grad)
    own = torch.cat([optimizer.grad, numbers])
    total = collective.sum(own.mul_(share) if share else torch.zeros_like(own))
    size = optimizer.grad.numel()
    optimizer.grad.copy_(total[:size])
    numbers = total[size:]
    return numbers[0], dict(zip(metrics, numbers[1:].unbind(), strict=True))


def take_step(
    optimizer: FlatOptimizer, loss: torch.Tensor, max_grad_norm: float | None, update: int
) -> float:
    """Clips the gradient and moves the weights; returns how long the gradient was.

    A loss or gradient that is not finite is a LearnError, which names the number of the update.
    """
    norm = optimizer.clip(max_grad_norm)
    if not math.isfinite(float(loss) + norm):
        raise LearnError(
            f"update {update}: expected a finite loss and gradient, got loss "
            f"{float(loss):.4g} and gradient norm {norm:.4g}. The weights are as before this "
            "step. Look for NaN or huge numbers in observations and rewards "
            "(network.normalize_obs, algorithm.clip_reward), or lower algorithm.learning_rate."
        )
    optimizer.step()
    return norm


def means(records: list[Metrics]) -> dict[str, float]:
    """The mean of each metric over minibatches, with one transfer from the device."""
    if not records:
        return {}
    names = list(records[0])
    table = torch.stack([torch.stack([m[name].float() for name in names]) for m in records])
    return dict(zip(names, table.mean(0).tolist(), strict=True))


def target_metrics(value: torch.Tensor, advantage: torch.Tensor, target: torch.Tensor) -> Metrics:
    """How many samples [N] a batch has, how large they are, and how well the critic knew them."""
    if not len(target):
        return {"num_samples": target.new_zeros(())}
    return {
        "num_samples": target.new_tensor(len(target)),
        "explained_variance": explained_variance(value, target),
        "advantage_mean": advantage.mean(),
        "advantage_std": advantage.std(correction=0),
        "return_mean": target.mean(),
    }
