"""Running mean and variance that live in the policy, so that they travel with its weights."""

from __future__ import annotations

import torch
from torch import nn

from srl.errors import LearnError

EPSILON = 1e-8


class RunningNorm(nn.Module):
    """Normalises by the mean and variance of all it has been shown (Chan et al. 1979, parallel
    variance).

    The statistics change only in `track`, which the learner calls on the batches it consumes.
    """

    mean: torch.Tensor
    var: torch.Tensor
    count: torch.Tensor

    def __init__(self, shape: tuple[int, ...], clip: float = 10.0) -> None:
        super().__init__()
        self.shape = shape
        self.clip = clip
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("var", torch.ones(shape))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    @property
    def std(self) -> torch.Tensor:
        """The standard deviation so far; 1 before anything was shown."""
        return (self.var + EPSILON).sqrt()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., *shape] in units of standard deviations, clipped."""
        return ((x - self.mean) * (self.var + EPSILON).rsqrt()).clamp(-self.clip, self.clip)

    @torch.no_grad()
    def track(self, values: torch.Tensor, name: str = "values") -> None:
        """Takes [N, *shape] more values into the statistics; refuses NaN and infinity."""
        if not len(values):
            return
        # Float64: the difference of two large numbers decides over the variance.
        values = values.double()
        mean, var = values.mean(0), values.var(0, correction=0)
        if not bool(torch.isfinite(mean + var).all()):
            raise LearnError(
                f"{name}: expected finite numbers, got NaN or infinity among {len(values)} samples."
            )
        total = self.count + len(values)
        share = len(values) / total
        delta = mean - self.mean.double()
        new_var = (
            self.var.double() * (1 - share) + var * share + delta.square() * share * (1 - share)
        )
        self.mean.copy_(self.mean.double() + delta * share)
        self.var.copy_(new_var)
        self.count.copy_(total)
