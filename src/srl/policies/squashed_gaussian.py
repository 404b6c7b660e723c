"""A Gaussian squashed by tanh into the bounds of the actions: the policy of SAC."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F

from srl.data.spec import AgentSpec
from srl.policies.bounded_actor import BoundedActor
from srl.policies.squashed_gaussian_config import SquashedGaussianConfig

_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)
_LOG_TWO = math.log(2.0)


class SquashedSample(NamedTuple):
    """Samples of a distribution, with gradients of its parameters."""

    action: torch.Tensor
    """[N, n] unit actions."""
    log_prob: torch.Tensor
    """[N]: the log density of each, over unit actions."""


class SquashedGaussian(BoundedActor):
    """Chooses tanh(u), with u from a normal distribution whose mean and deviation a network gives.

    It is also `SamplesUnitActions`, which SAC asks for (Haarnoja et al. 2018).
    """

    Config = SquashedGaussianConfig
    config: SquashedGaussianConfig
    name = "squashed_gaussian"

    def __init__(self, agent: AgentSpec, config: SquashedGaussianConfig) -> None:
        super().__init__(agent, config, outputs=2)

    def explore(
        self, out: torch.Tensor, explore: torch.Tensor, generator: torch.Generator
    ) -> torch.Tensor:
        """As `BoundedActor.explore`: the deviation is multiplied by `explore`."""
        mean, log_std = self._mean_and_log_std(out)
        noise = torch.empty_like(mean).normal_(generator=generator).mul_(explore)
        return torch.addcmul(mean, noise, log_std.exp()).tanh_()

    def sample(self, seen: dict[str, torch.Tensor], noise: torch.Tensor) -> SquashedSample:
        """As `SamplesUnitActions.sample`."""
        return squashed_normal(*self._mean_and_log_std(self.outputs(seen)), noise)

    def _mean_and_log_std(self, out: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Means and log deviations before the tanh, [N, n] each."""
        mean, log_std = out.chunk(2, 1)
        return mean, log_std.clamp(self.config.log_std_min, self.config.log_std_max)


def squashed_normal(
    mean: torch.Tensor, log_std: torch.Tensor, noise: torch.Tensor
) -> SquashedSample:
    """tanh(u) for u = mean + noise * std, and its log density, summed over the numbers of an
    action.

    The density of u is divided by the slope of the tanh, 1 - tanh(u)^2, whose log is
    2 (log 2 - u - softplus(-2 u)). In this form nothing is lost where the tanh is nearly 1.
    """
    u = torch.addcmul(mean, noise, log_std.exp())
    log_density = noise.square().mul(-0.5) - log_std - _HALF_LOG_TWO_PI
    log_slope = 2.0 * (_LOG_TWO - u - F.softplus(-2.0 * u))
    return SquashedSample(u.tanh(), (log_density - log_slope).sum(-1))
