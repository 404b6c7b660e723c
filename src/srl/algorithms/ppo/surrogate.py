"""PPO's objective as one node of the graph, with its gradient written by hand.

At a few hundred samples autograd would spend more time on the two dozen nodes of this sum than the
networks take.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

MAX_WEIGHT = 2.0
"""Largest weight of one sample. It bounds the effect of an action that has become far more likely
since it was taken."""


class LossWeights(NamedTuple):
    """Settings of the objective, at one point of their schedules."""

    clip: float
    value_clip: float | None
    value_coefficient: float
    entropy_coefficient: float


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
) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss of [N] samples, with gradients to the first three arguments, and its [5]
    `LossTerms`.

    Clipped policy loss + value_coefficient * half the squared error of the critic (in the units of
    its last layer) - entropy_coefficient * entropy. With a behaviour log-prob, advantages are
    weighted: by how much more likely their actions are under the proximal policy (Hilton et al.
    2022, "Batch size-invariance for policy optimization").
    """
    loss, terms = _Surrogate.apply(log_prob, entropy, value, samples, weights)  # type: ignore[no-untyped-call]
    return loss, terms


class SurrogateGradients(NamedTuple):
    """The loss, its terms, and its gradients."""

    loss: torch.Tensor
    terms: torch.Tensor
    """[5], in the order of `LossTerms`."""
    of_log_prob: torch.Tensor
    of_value: torch.Tensor
    of_entropy: float
    """The gradient is the same for every sample."""


def surrogate_with_gradients(
    log_prob: torch.Tensor,
    entropy: torch.Tensor,
    value: torch.Tensor,
    samples: SurrogateSamples,
    weights: LossWeights,
) -> SurrogateGradients:
    """The loss of [N] samples and its gradients, without a graph."""
    clip, scale, num = weights.clip, samples.value_scale, max(1, log_prob.numel())
    # One row for each term, so that one call makes all their means.
    terms = log_prob.new_empty(5, log_prob.numel())
    policy_loss, value_loss, entropies, approx_kl, clipped = terms.unbind()
    log_ratio = log_prob - samples.log_prob
    ratio = log_ratio.exp()
    advantage, log_change = samples.advantage, log_ratio
    if samples.behaviour_log_prob is not None:
        weight = (samples.log_prob - samples.behaviour_log_prob).exp_().clamp_(max=MAX_WEIGHT)
        advantage = weight.mul_(advantage)
        log_change = log_prob - samples.behaviour_log_prob
    unclipped = ratio * advantage
    bounded = ratio.clamp(1.0 - clip, 1.0 + clip).mul_(advantage)
    torch.minimum(unclipped, bounded, out=policy_loss).neg_()
    # Beyond the clip the smaller of the two is constant, so it has no gradient.
    of_log_prob = unclipped.masked_fill_(unclipped > bounded, 0.0).mul_(-1.0 / num)
    # Never negative and of low variance: Schulman 2020, "Approximating KL divergence".
    torch.expm1(log_change, out=approx_kl).sub_(log_change)
    torch.gt(ratio.sub_(1.0).abs_(), clip, out=clipped)

    error = (value - samples.target).div_(scale)
    torch.mul(error, error, out=value_loss).mul_(0.5)
    of_value = error.mul_(weights.value_coefficient / num).div_(scale)
    if weights.value_clip is not None:
        limit = weights.value_clip
        moved = value - samples.value
        clipped_value = moved.clamp(-limit, limit).add_(samples.value)
        clipped_loss = clipped_value.sub_(samples.target).div_(scale).square_().mul_(0.5)
        # Within the limit the two losses differ only by rounding.
        of_value.masked_fill_((moved.abs_() > limit) & (value_loss < clipped_loss), 0.0)
        torch.maximum(value_loss, clipped_loss, out=value_loss)
    entropies.copy_(entropy)

    means = terms.mean(1)
    policy_loss, value_loss, mean_entropy, *_ = means.unbind()
    loss = policy_loss.add(value_loss, alpha=weights.value_coefficient)
    loss = loss.sub_(mean_entropy, alpha=weights.entropy_coefficient)
    of_entropy = -weights.entropy_coefficient / num
    return SurrogateGradients(loss, means, of_log_prob, of_value, of_entropy)


class _Surrogate(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        log_prob: torch.Tensor,
        entropy: torch.Tensor,
        value: torch.Tensor,
        samples: SurrogateSamples,
        weights: LossWeights,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        result = surrogate_with_gradients(log_prob, entropy, value, samples, weights)
        ctx.save_for_backward(result.of_log_prob, result.of_value)
        ctx.of_entropy = result.of_entropy
        ctx.mark_non_differentiable(result.terms)
        return result.loss, result.terms

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        of_log_prob, of_value = ctx.saved_tensors
        gradient = gradients[0]
        of_entropy = (gradient * ctx.of_entropy).expand_as(of_log_prob)
        return of_log_prob * gradient, of_entropy, of_value * gradient, None, None
