"""PPO's objective as one node of the graph, its gradient written by hand.

On a few hundred samples autograd would spend more time on the two dozen nodes of this sum than the
networks take.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

MAX_WEIGHT = 2.0
"""Of one sample: bounds what an action can do that has become far likelier since it was taken."""


class Weights(NamedTuple):
    """Settings of the objective at one time."""

    clip: float
    value_clip: float | None
    value_coefficient: float
    entropy_coefficient: float


class Terms(NamedTuple):
    """Means over the samples, for the log: scalars without gradients."""

    policy_loss: torch.Tensor
    value_loss: torch.Tensor
    entropy: torch.Tensor
    approx_kl: torch.Tensor
    clip_fraction: torch.Tensor


class Samples(NamedTuple):
    """What is known of [N] samples beside what the policy thinks of them now."""

    log_prob: torch.Tensor
    """Of the policy that the clip range lies around."""
    taken: torch.Tensor | None
    """Of the policy that took the actions, if that is another."""
    value: torch.Tensor
    advantage: torch.Tensor
    target: torch.Tensor
    value_scale: torch.Tensor | float
    """Units of reward per unit of the critic's output."""


def surrogate(
    log_prob: torch.Tensor,
    entropy: torch.Tensor,
    value: torch.Tensor,
    samples: Samples,
    weights: Weights,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss of [N] samples, with gradients to the first three, and its [5] `Terms`.

    Clipped policy loss + value_coefficient * half the squared error of the critic (in the units
    that its last layer predicts in) - entropy_coefficient * entropy. Where another policy took the
    actions, advantages are weighted by how much likelier they have become in between (Hilton et al.
    2022, "Batch size-invariance for policy optimization").
    """
    loss, terms = _Surrogate.apply(log_prob, entropy, value, samples, weights)  # type: ignore[no-untyped-call]
    return loss, terms


class Pulled(NamedTuple):
    """The loss, its terms, and its gradients."""

    loss: torch.Tensor
    terms: torch.Tensor
    """[5], in the order of `Terms`."""
    of_log_prob: torch.Tensor
    of_value: torch.Tensor
    of_entropy: float
    """The same for every sample."""


def surrogate_by_hand(
    log_prob: torch.Tensor,
    entropy: torch.Tensor,
    value: torch.Tensor,
    samples: Samples,
    weights: Weights,
) -> Pulled:
    """The loss of [N] samples and its gradients, without a graph."""
    clip, scale, num = weights.clip, samples.value_scale, max(1, log_prob.numel())
    # One row for each term, so that one call makes all their means.
    terms = log_prob.new_empty(5, log_prob.numel())
    policy_loss, value_loss, entropies, approx_kl, clipped = terms.unbind()
    log_ratio = log_prob - samples.log_prob
    ratio = log_ratio.exp()
    advantage, since = samples.advantage, log_ratio
    if samples.taken is not None:
        weight = (samples.log_prob - samples.taken).exp_().clamp_(max=MAX_WEIGHT)
        advantage, since = weight.mul_(advantage), log_prob - samples.taken
    free = ratio * advantage
    bound = ratio.clamp(1.0 - clip, 1.0 + clip).mul_(advantage)
    torch.minimum(free, bound, out=policy_loss).neg_()
    # Beyond the clip the smaller of the two does not move with the ratio.
    of_log_prob = free.masked_fill_(free > bound, 0.0).mul_(-1.0 / num)
    # Never negative and of low variance: Schulman 2020, "Approximating KL divergence".
    torch.expm1(since, out=approx_kl).sub_(since)
    torch.gt(ratio.sub_(1.0).abs_(), clip, out=clipped)

    error = (value - samples.target).div_(scale)
    torch.mul(error, error, out=value_loss).mul_(0.5)
    of_value = error.mul_(weights.value_coefficient / num).div_(scale)
    if weights.value_clip is not None:
        limit = weights.value_clip
        moved = value - samples.value
        near = moved.clamp(-limit, limit).add_(samples.value)
        worse = near.sub_(samples.target).div_(scale).square_().mul_(0.5)
        # (Within the limit the two differ by rounding alone.)
        of_value.masked_fill_((moved.abs_() > limit) & (value_loss < worse), 0.0)
        torch.maximum(value_loss, worse, out=value_loss)
    entropies.copy_(entropy)

    means = terms.mean(1)
    policy_loss, value_loss, mean_entropy, *_ = means.unbind()
    loss = policy_loss.add(value_loss, alpha=weights.value_coefficient)
    loss = loss.sub_(mean_entropy, alpha=weights.entropy_coefficient)
    of_entropy = -weights.entropy_coefficient / num
    return Pulled(loss, means, of_log_prob, of_value, of_entropy)


class _Surrogate(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        log_prob: torch.Tensor,
        entropy: torch.Tensor,
        value: torch.Tensor,
        samples: Samples,
        weights: Weights,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        pulled = surrogate_by_hand(log_prob, entropy, value, samples, weights)
        ctx.save_for_backward(pulled.of_log_prob, pulled.of_value)
        ctx.of_entropy = pulled.of_entropy
        ctx.mark_non_differentiable(pulled.terms)
        return pulled.loss, pulled.terms

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        of_log_prob, of_value = ctx.saved_tensors
        gradient = gradients[0]
        of_entropy = (gradient * ctx.of_entropy).expand_as(of_log_prob)
        return of_log_prob * gradient, of_entropy, of_value * gradient, None, None
