"""PPO's objective as one node of the graph, or without a graph, with its gradient by hand.

Equal to `srl.algorithms.ppo.surrogate.surrogate`, whose two dozen nodes take longer than the
networks at a few hundred samples. The names of the arguments are those of its records.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch


class SurrogateGradients(NamedTuple):
    """The loss, its terms, and its gradients."""

    loss: torch.Tensor
    terms: torch.Tensor
    """[5]: policy loss, value loss, entropy, approximate KL divergence, share of clipped ratios."""
    of_log_prob: torch.Tensor
    of_value: torch.Tensor
    of_entropy: float
    """The gradient is the same for every sample."""


def surrogate_with_gradients(
    now_log_prob: torch.Tensor,
    now_entropy: torch.Tensor,
    now_value: torch.Tensor,
    *,
    log_prob: torch.Tensor,
    behaviour_log_prob: torch.Tensor | None,
    value: torch.Tensor,
    advantage: torch.Tensor,
    target: torch.Tensor,
    value_scale: torch.Tensor | float,
    clip: float,
    value_clip: float | None,
    value_coefficient: float,
    entropy_coefficient: float,
    max_weight: float,
) -> SurrogateGradients:
    """The loss of [N] samples and its gradients, without a graph."""
    num = max(1, now_log_prob.numel())
    # One row for each term, so that one call makes all their means.
    terms = now_log_prob.new_empty(5, now_log_prob.numel())
    policy_loss, value_loss, entropies, approx_kl, clipped = terms.unbind()
    log_ratio = now_log_prob - log_prob
    ratio = log_ratio.exp()
    log_change = log_ratio
    if behaviour_log_prob is not None:
        weight = (log_prob - behaviour_log_prob).exp_().clamp_(max=max_weight)
        advantage = weight.mul_(advantage)
        log_change = now_log_prob - behaviour_log_prob
    unclipped = ratio * advantage
    bounded = ratio.clamp(1.0 - clip, 1.0 + clip).mul_(advantage)
    torch.minimum(unclipped, bounded, out=policy_loss).neg_()
    # Beyond the clip the smaller of the two is constant, so it has no gradient.
    of_log_prob = unclipped.masked_fill_(unclipped > bounded, 0.0).mul_(-1.0 / num)
    torch.expm1(log_change, out=approx_kl).sub_(log_change)
    torch.gt(ratio.sub_(1.0).abs_(), clip, out=clipped)

    error = (now_value - target).div_(value_scale)
    torch.mul(error, error, out=value_loss).mul_(0.5)
    of_value = error.mul_(value_coefficient / num).div_(value_scale)
    if value_clip is not None:
        moved = now_value - value
        clipped_value = moved.clamp(-value_clip, value_clip).add_(value)
        clipped_loss = clipped_value.sub_(target).div_(value_scale).square_().mul_(0.5)
        # Within the limit the two losses differ only by rounding.
        of_value.masked_fill_((moved.abs_() > value_clip) & (value_loss < clipped_loss), 0.0)
        torch.maximum(value_loss, clipped_loss, out=value_loss)
    entropies.copy_(now_entropy)

    means = terms.mean(1)
    policy_loss, value_loss, mean_entropy, *_ = means.unbind()
    loss = policy_loss.add(value_loss, alpha=value_coefficient)
    loss = loss.sub_(mean_entropy, alpha=entropy_coefficient)
    return SurrogateGradients(loss, means, of_log_prob, of_value, -entropy_coefficient / num)


def surrogate_node(
    now_log_prob: torch.Tensor, now_entropy: torch.Tensor, now_value: torch.Tensor, **given: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss, with gradients to the three positional arguments, and its [5] terms without.

    Takes what `surrogate_with_gradients` takes.
    """
    loss, terms = _Surrogate.apply(now_log_prob, now_entropy, now_value, given)  # type: ignore[no-untyped-call]
    return loss, terms


class _Surrogate(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        now_log_prob: torch.Tensor,
        now_entropy: torch.Tensor,
        now_value: torch.Tensor,
        given: dict[str, Any],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        result = surrogate_with_gradients(now_log_prob, now_entropy, now_value, **given)
        ctx.save_for_backward(result.of_log_prob, result.of_value)
        ctx.of_entropy = result.of_entropy
        ctx.mark_non_differentiable(result.terms)
        return result.loss, result.terms

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        of_log_prob, of_value = ctx.saved_tensors
        gradient = gradients[0]
        of_entropy = (gradient * ctx.of_entropy).expand_as(of_log_prob)
        return of_log_prob * gradient, of_entropy, of_value * gradient, None
