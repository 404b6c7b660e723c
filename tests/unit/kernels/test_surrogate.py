"""PPO's objective and its kernel against the formula, differentiated by torch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from srl.algorithms.ppo.fast import fast_surrogate
from srl.algorithms.ppo.surrogate import LossTerms, LossWeights, SurrogateSamples, surrogate

Objective = Callable[..., tuple[torch.Tensor, LossTerms]]
OBJECTIVES = pytest.mark.parametrize("objective", [surrogate, fast_surrogate])


def reference(
    log_prob: torch.Tensor,
    entropy: torch.Tensor,
    value: torch.Tensor,
    samples: SurrogateSamples,
    weights: LossWeights,
) -> torch.Tensor:
    ratio = (log_prob - samples.log_prob).exp()
    clipped = ratio.clamp(1 - weights.clip, 1 + weights.clip)
    advantage = samples.advantage
    if samples.behaviour_log_prob is not None:
        advantage = advantage * (samples.log_prob - samples.behaviour_log_prob).exp().clamp(max=2.0)
    policy_loss = -torch.minimum(ratio * advantage, clipped * advantage).mean()
    error = ((value - samples.target) / samples.value_scale).square()
    if weights.value_clip is not None:
        bound = weights.value_clip
        near = samples.value + (value - samples.value).clamp(-bound, bound)
        error = torch.maximum(error, ((near - samples.target) / samples.value_scale).square())
    value_loss = 0.5 * error.mean()
    return (
        policy_loss
        + weights.value_coefficient * value_loss
        - weights.entropy_coefficient * entropy.mean()
    )


@OBJECTIVES
@pytest.mark.parametrize("value_clip", [None, 0.3])
@pytest.mark.parametrize("scale", [1.0, 2.5])
@pytest.mark.parametrize("older", [False, True])
def test_loss_and_gradients_are_those_of_the_formula(
    objective: Objective, value_clip: float | None, scale: float, older: bool
) -> None:
    torch.manual_seed(0)
    num = 64
    old_log_prob, value, advantage, target = torch.randn(4, num, dtype=torch.float64)
    behaviour_log_prob = old_log_prob + 0.5 * torch.randn(num).double() if older else None
    samples = SurrogateSamples(
        old_log_prob, behaviour_log_prob, value, advantage, target, torch.tensor(scale).double()
    )
    weights = LossWeights(0.2, value_clip, 0.5, 0.01)
    now = [
        old_log_prob + 0.3 * torch.randn(num).double(),
        torch.rand(num).double(),
        value + 0.5 * torch.randn(num).double(),
    ]
    ours, theirs = ([x.clone().requires_grad_() for x in now] for _ in range(2))
    loss, terms = objective(*ours, samples, weights)
    expected = reference(*theirs, samples, weights)
    torch.testing.assert_close(loss, expected)
    (3 * loss).backward()
    (3 * expected).backward()
    for mine, wanted in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.grad, wanted.grad)
    ratio = (now[0] - old_log_prob).exp()
    torch.testing.assert_close(terms.clip_fraction, ((ratio - 1).abs() > 0.2).double().mean())
    since = now[0] - (old_log_prob if behaviour_log_prob is None else behaviour_log_prob)
    torch.testing.assert_close(terms.approx_kl, (since.exp() - 1 - since).mean())
    torch.testing.assert_close(terms.entropy, now[1].mean())
    assert not terms.policy_loss.requires_grad


@OBJECTIVES
def test_a_ratio_without_bound_does_not_break_the_gradient(objective: Objective) -> None:
    """Where the clip holds, what lies beyond it does not matter, infinity included."""
    log_prob = torch.tensor([200.0, 0.0], requires_grad=True)
    ones, zeros = torch.ones(2), torch.zeros(2)
    samples = SurrogateSamples(zeros, None, zeros, ones, zeros, 1.0)
    loss, _ = objective(log_prob, zeros, zeros, samples, LossWeights(0.2, None, 0.5, 0.0))
    loss.backward()
    assert torch.isfinite(loss)
    assert log_prob.grad is not None
    assert log_prob.grad.tolist() == [0.0, -0.5]


@OBJECTIVES
def test_values_that_hardly_moved_are_not_clipped_by_rounding(objective: Objective) -> None:
    torch.manual_seed(0)
    old, now, target = torch.randn(3, 10_000)
    zeros = torch.zeros_like(old)
    found = []
    for value_clip in (None, 10.0):
        value = now.clone().requires_grad_()
        samples = SurrogateSamples(zeros, None, old, zeros, target, 1.0)
        loss, _ = objective(zeros, zeros, value, samples, LossWeights(0.2, value_clip, 0.5, 0.0))
        loss.backward()
        found.append(value.grad)
    assert torch.equal(*found)
