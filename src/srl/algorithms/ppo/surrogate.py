"""PPO's objective: the clipped policy loss, the value loss and the entropy bonus."""

from __future__ import annotations

from typing import NamedTuple

import torch

MAX_WEIGHT = 2.0
"""Largest weight of one sample. It bounds the effect of an action that has become far more likely
since it was taken."""
MAX_LOG_RATIO = 20.0
"""Beyond it, the gradient of the ratio is cut off: infinity times the zero of the clip is NaN."""


class LossWeights(NamedTuple):
    """Settings of the objective, at one point of their schedules."""

    clip: float
    value_clip: float | None
    value_coefficient: float
    entropy_coefficient: float
    max_weight: float = MAX_WEIGHT


class LossTerms(NamedTuple):
    """Means over the samples, for metrics: scalars without gradients."""

    policy_loss: torch.Tensor
    value_loss: torch.Tensor
    entropy: torch.Tensor
    approx_kl: torch.Tensor
    clip_fraction: torch.Tensor


class SurrogateSamples(NamedTuple):
    """The data of [N] samples, without the current outputs of the policy."""

    log_prob: torch.Tensor
    """Proximal log-prob: the clip range lies around it."""
    behaviour_log_prob: torch.Tensor | None
    """Behaviour log-prob; None if it is the proximal log-prob."""
    value: torch.Tensor
    advantage: torch.Tensor
    target: torch.Tensor
    value_scale: torch.Tensor | float
    """Units of reward per unit of the critic's output."""


def surrogate(
    log_prob: torch.Tensor,
    entropy: torch.Tensor,
    value: torch.Tensor,
    samples: SurrogateSamples,
    weights: LossWeights,
) -> tuple[torch.Tensor, LossTerms]:
    """The loss of [N] samples, with gradients to the first three arguments, and its terms.

    Clipped policy loss + value_coefficient * half the squared error of the critic (in the units of
    its last layer) - entropy_coefficient * entropy. With a behaviour log-prob, advantages are
    weighted: by how much more likely their actions are under the proximal policy (Hilton et al.
    2022, "Batch size-invariance for policy optimization").
    """
    ratio = (log_prob - samples.log_prob).clamp(max=MAX_LOG_RATIO).exp()
    advantage, log_change = samples.advantage, (log_prob - samples.log_prob).detach()
    if samples.behaviour_log_prob is not None:
        weight = (samples.log_prob - samples.behaviour_log_prob).exp()
        advantage = advantage * weight.clamp(max=weights.max_weight)
        log_change = (log_prob - samples.behaviour_log_prob).detach()
    bounded = ratio.clamp(1.0 - weights.clip, 1.0 + weights.clip)
    policy_loss = -torch.minimum(ratio * advantage, bounded * advantage).mean()

    squared = ((value - samples.target) / samples.value_scale).square()
    if weights.value_clip is not None:
        moved = (value - samples.value).clamp(-weights.value_clip, weights.value_clip)
        clipped = ((samples.value + moved - samples.target) / samples.value_scale).square()
        # Within the limit both are the same number, but for rounding.
        beyond = (value - samples.value).abs() > weights.value_clip
        squared = torch.where(beyond, torch.maximum(squared, clipped), squared)
    value_loss = 0.5 * squared.mean()

    mean_entropy = entropy.mean()
    loss = (
        policy_loss
        + weights.value_coefficient * value_loss
        - weights.entropy_coefficient * mean_entropy
    )
    return loss, LossTerms(
        policy_loss.detach(),
        value_loss.detach(),
        mean_entropy.detach(),
        # Never negative and of low variance: Schulman 2020, "Approximating KL divergence".
        (log_change.expm1() - log_change).mean(),
        ((ratio - 1.0).abs() > weights.clip).to(ratio.dtype).mean(),
    )
