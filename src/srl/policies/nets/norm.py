"""Running mean and variance as buffers of the policy, so that they travel with its weights."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from srl.errors import LearnError

EPSILON = 1e-8


class RunningNorm(nn.Module):
    """Normalises by the running mean and variance of all tracked values.

    The statistics are combined as by Chan et al. 1979 (parallel variance). They change only in
    `track`, which the learner calls with the batches that it consumes.
    """

    mean: torch.Tensor
    var: torch.Tensor
    count: torch.Tensor

    def __init__(self, shape: tuple[int, ...], clip: float = 10.0) -> None:
        super().__init__()
        self.shape = shape
        self.clip = clip
        self.gather: Callable[[torch.Tensor], torch.Tensor] | None = None
        """Set where several trainers learn together: gathers the numbers of all, [trainers,
        ...]."""
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("var", torch.ones(shape))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    @property
    def std(self) -> torch.Tensor:
        """The standard deviation so far; 1 before any values."""
        return (self.var + EPSILON).sqrt()

    @property
    def factor(self) -> torch.Tensor:
        """One over the standard deviation so far."""
        return (self.var + EPSILON).rsqrt()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., *shape] in units of standard deviations, clipped."""
        return ((x - self.mean) * self.factor).clamp(-self.clip, self.clip)

    @torch.no_grad()
    def track(self, values: torch.Tensor, name: str = "values") -> None:
        """Updates the statistics with [N, *shape] values. NaN or infinity is a LearnError."""
        # Float64, because the variance comes from differences of large numbers.
        values = values.double()
        count = float(len(values))
        if len(values):
            mean, var = values.mean(0), values.var(0, correction=0)
        else:
            mean, var = torch.zeros_like(self.mean).double(), torch.zeros_like(self.var).double()
        if self.gather is not None:
            count, mean, var = self._combined(count, mean, var)
        if not count:
            return
        if not bool(torch.isfinite(mean + var).all()):
            raise LearnError(
                f"{name}: expected finite numbers, got NaN or infinity among {count:.0f} samples."
            )
        total = self.count + count
        share = count / total
        delta = mean - self.mean.double()
        new_var = (
            self.var.double() * (1 - share) + var * share + delta.square() * share * (1 - share)
        )
        self.mean.copy_(self.mean.double() + delta * share)
        self.var.copy_(new_var)
        self.count.copy_(total)

    def _combined(
        self, count: float, mean: torch.Tensor, var: torch.Tensor
    ) -> tuple[float, torch.Tensor, torch.Tensor]:
        """The moments of all trainers' values, from those of each trainer."""
        assert self.gather is not None
        counts, means, variances = self.gather(
            torch.stack([torch.full_like(mean, count), mean, var])
        ).unbind(1)
        total = counts.sum(0).clamp(min=1.0)
        mean = (counts * means).sum(0) / total
        var = (counts * (variances + (means - mean).square())).sum(0) / total
        return float(counts.sum(0).max()), mean, var


@torch.no_grad()
def track_returns(scale: RunningNorm, head: nn.Module, returns: torch.Tensor) -> None:
    """Updates the statistics of returns with [N] of them, and rescales a critic's last layer.

    No value changes by that (van Hasselt et al. 2016, "Learning values across many orders of
    magnitude"). The first returns only set the unit in which a fresh critic predicts. Unlike in the
    paper, only the scale is normalised. With the mean subtracted, the critic would take an unknown
    situation for an average one.
    """
    fresh, old_std = not float(scale.count), scale.std
    scale.track(returns, "returns (rewards or values)")
    if fresh:
        return
    for parameter in head.parameters():
        parameter.mul_(old_std / scale.std)
