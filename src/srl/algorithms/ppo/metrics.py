"""The numbers that PPO reports."""

from __future__ import annotations

import torch

from srl.algorithms.ops.masking import explained_variance
from srl.algorithms.ppo.global_batch import GlobalBatch

Metrics = dict[str, torch.Tensor]
"""Scalars by name."""


def batch_metrics(global_batch: GlobalBatch) -> Metrics:
    """Metrics of the global batch, before it is learned from."""
    advantage = global_batch.select(global_batch.advantage)
    target = global_batch.select(global_batch.target)
    if not len(target):
        return {"num_samples": target.new_zeros(())}
    return {
        "num_samples": target.new_tensor(len(target)),
        "explained_variance": explained_variance(global_batch.select(global_batch.value), target),
        "advantage_mean": advantage.mean(),
        "advantage_std": advantage.std(correction=0),
        "return_mean": target.mean(),
    }


def means(records: list[Metrics]) -> dict[str, float]:
    """The mean of each metric over minibatches, with one transfer from the device."""
    if not records:
        return {}
    names = list(records[0])
    table = torch.stack([torch.stack([m[name].float() for name in names]) for m in records])
    return dict(zip(names, table.mean(0).tolist(), strict=True))
