"""Gradients of log probabilities and entropies, for a batch of [N] actions.

All are gradients of sum(of_log_prob * log_prob(action) + of_entropy * entropy). They equal those
that autograd finds through `log_prob` and `entropy` of the distributions in `srl.policies`.
"""

from __future__ import annotations

import torch


def categorical_gradient(
    log_probs: torch.Tensor, action: torch.Tensor, of_log_prob: torch.Tensor, of_entropy: float
) -> torch.Tensor:
    """The gradient of the logits, from the log probabilities [N, n] of all choices.

    It is 0 for choices that are not allowed.
    """
    probs = log_probs.exp()
    weight = of_log_prob.unsqueeze(-1)
    gradient = probs * -weight
    gradient.scatter_add_(-1, action.unsqueeze(-1), weight)
    if of_entropy:
        surprise = probs * log_probs
        entropy = surprise.sum(-1, keepdim=True).neg_()
        gradient.sub_(surprise.addcmul_(probs, entropy), alpha=of_entropy)
    return gradient


def gaussian_gradient(
    mean: torch.Tensor,
    log_std: torch.Tensor,
    action: torch.Tensor,
    of_log_prob: torch.Tensor,
    of_entropy: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of the means [N, n] and of the log standard deviations [n]."""
    inverse = (-log_std).exp()
    scaled = (action - mean).mul_(inverse)
    of_mean = scaled * of_log_prob.unsqueeze(-1)
    of_log_std = (of_mean * scaled).sum(0).sub_(of_log_prob.sum())
    return of_mean.mul_(inverse), of_log_std.add_(of_entropy * len(action))
