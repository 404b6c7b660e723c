"""Distributions over actions, batched over any leading axes, sampled with the caller's generator.

Every class has the same methods: `sample`, `mode`, `log_prob`, `entropy` and `kl`. The parts of an
action (the elements of a Box, the choices of a MultiDiscrete) are independent, so their log
probabilities add up. `sample` takes a temperature per row: 1 samples, 0 is the mode, and values
between are sharper than the policy.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Self

import torch
import torch.nn.functional as F

FORBIDDEN = -1e9
"""Logit of a choice that is not allowed. It is finite, so that 0 * log(0) stays 0 and a full mask
gives no NaN."""

_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)


class Distribution(ABC):
    """The interface of distributions over actions [..., *action shape]."""

    @abstractmethod
    def sample(
        self, generator: torch.Generator, temperature: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Samples actions; `temperature` [...] goes from 1 (sample, as None does) to 0 (mode)."""

    def draw(
        self, generator: torch.Generator, temperature: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Samples actions as `sample` does, and returns their log probabilities, too."""
        action = self.sample(generator, temperature)
        return action, self.log_prob(action)

    @property
    @abstractmethod
    def mode(self) -> torch.Tensor:
        """The most likely actions."""

    @abstractmethod
    def log_prob(self, action: torch.Tensor) -> torch.Tensor:
        """Log probability (density, for real numbers) of each action: [...]."""

    @abstractmethod
    def entropy(self) -> torch.Tensor:
        """Entropy in nats: [...]."""

    @abstractmethod
    def kl(self, other: Self) -> torch.Tensor:
        """KL divergence from this distribution to `other`, in nats: [...]."""


class Categorical(Distribution):
    """One choice of n: logits [..., n], mask [..., n] (True allowed), actions int64 [...]."""

    def __init__(self, logits: torch.Tensor, mask: torch.Tensor | None = None) -> None:
        if mask is not None:
            logits = logits.masked_fill(~mask, FORBIDDEN)
        self.log_probs = torch.log_softmax(logits, -1)

    def sample(
        self, generator: torch.Generator, temperature: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Samples by the Gumbel-max trick: the largest of log probability plus Gumbel noise."""
        return self._draw_choice(generator, temperature).squeeze(-1)

    def draw(
        self, generator: torch.Generator, temperature: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Samples choices, and returns their log probabilities, too."""
        choice = self._draw_choice(generator, temperature)
        return choice.squeeze(-1), self.log_probs.gather(-1, choice).squeeze(-1)

    def _draw_choice(
        self, generator: torch.Generator, temperature: torch.Tensor | None
    ) -> torch.Tensor:
        """Samples choices, [..., 1]."""
        # -log of exponential noise is Gumbel noise.
        noise = torch.empty_like(self.log_probs).exponential_(generator=generator).log_()
        if temperature is None:
            score = self.log_probs - noise
        else:
            factor = _expand(temperature, noise)
            score = torch.addcmul(self.log_probs, noise, factor, value=-1)
        return score.argmax(-1, keepdim=True)

    @property
    def mode(self) -> torch.Tensor:
        """The most likely choice."""
        return self.log_probs.argmax(-1)

    def log_prob(self, action: torch.Tensor) -> torch.Tensor:
        """Log probability of each choice."""
        return self.log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> torch.Tensor:
        """Entropy in nats."""
        return -(self.log_probs.exp() * self.log_probs).sum(-1)

    def kl(self, other: Categorical) -> torch.Tensor:
        """KL divergence to `other`."""
        return (self.log_probs.exp() * (self.log_probs - other.log_probs)).sum(-1)


class MultiCategorical(Distribution):
    """Several choices: logits and mask [..., sum(nvec)], part after part; actions int64 [...,
    len(nvec)].

    Parts are padded to the longest one, so that all of them go through one softmax.
    """

    def __init__(
        self, logits: torch.Tensor, nvec: tuple[int, ...], mask: torch.Tensor | None = None
    ) -> None:
        if mask is not None:
            logits = logits.masked_fill(~mask, FORBIDDEN)
        if len(set(nvec)) == 1:
            parts = logits.reshape(*logits.shape[:-1], len(nvec), nvec[0])
        else:
            longest = max(nvec)
            split = torch.split(logits, list(nvec), -1)
            padded = [
                F.pad(p, (0, longest - n), value=2 * FORBIDDEN)
                for p, n in zip(split, nvec, strict=True)
            ]
            parts = torch.stack(padded, -2)
        self.parts = Categorical(parts)

    def sample(
        self, generator: torch.Generator, temperature: torch.Tensor | None = None
    ) -> torch.Tensor:
        """One sample per part."""
        return self.parts.sample(generator, temperature)

    @property
    def mode(self) -> torch.Tensor:
        """The most likely choice of each part."""
        return self.parts.mode

    def log_prob(self, action: torch.Tensor) -> torch.Tensor:
        """Sum of the parts' log probabilities."""
        return self.parts.log_prob(action).sum(-1)

    def entropy(self) -> torch.Tensor:
        """Sum of the parts' entropies."""
        return self.parts.entropy().sum(-1)

    def kl(self, other: MultiCategorical) -> torch.Tensor:
        """Sum of the parts' divergences."""
        return self.parts.kl(other.parts).sum(-1)


class Bernoulli(Distribution):
    """n switches: logits of "on" [..., n], mask [..., 2 n] (off, on for each switch), actions int8
    [..., n]."""

    def __init__(self, logits: torch.Tensor, mask: torch.Tensor | None = None) -> None:
        both = torch.stack((torch.zeros_like(logits), logits), -1)
        self.parts = Categorical(
            both, None if mask is None else mask.reshape(*mask.shape[:-1], -1, 2)
        )

    def sample(
        self, generator: torch.Generator, temperature: torch.Tensor | None = None
    ) -> torch.Tensor:
        """One sample per switch."""
        return self.parts.sample(generator, temperature).to(torch.int8)

    @property
    def mode(self) -> torch.Tensor:
        """The more likely position of each switch."""
        return self.parts.mode.to(torch.int8)

    def log_prob(self, action: torch.Tensor) -> torch.Tensor:
        """Sum of the switches' log probabilities."""
        return self.parts.log_prob(action.long()).sum(-1)

    def entropy(self) -> torch.Tensor:
        """Sum of the switches' entropies."""
        return self.parts.entropy().sum(-1)

    def kl(self, other: Bernoulli) -> torch.Tensor:
        """Sum of the switches' divergences."""
        return self.parts.kl(other.parts).sum(-1)


class DiagGaussian(Distribution):
    """Independent normals: mean [..., *shape], log_std broadcast to it, actions float32 [...,
    *shape].

    Samples are not clipped to the bounds of the Box, so that their log probabilities stay exact.
    The environment's side clips them.
    """

    def __init__(self, mean: torch.Tensor, log_std: torch.Tensor, num_axes: int = 1) -> None:
        self.mean = mean
        self.log_std = log_std
        self._axes = tuple(range(-num_axes, 0))

    def sample(
        self, generator: torch.Generator, temperature: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Samples the mean plus scaled normal noise."""
        return torch.addcmul(self.mean, self._noise(generator, temperature), self.log_std.exp())

    def draw(
        self, generator: torch.Generator, temperature: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Samples actions, and returns their log densities, which follow from the noise alone."""
        noise = self._noise(generator, temperature)
        action = torch.addcmul(self.mean, noise, self.log_std.exp())
        return action, self._sum(noise.square_().mul_(-0.5).sub_(self.log_std + _HALF_LOG_TWO_PI))

    def _noise(self, generator: torch.Generator, temperature: torch.Tensor | None) -> torch.Tensor:
        """Normal noise in units of the standard deviation."""
        noise = torch.empty_like(self.mean).normal_(generator=generator)
        return noise if temperature is None else noise.mul_(_expand(temperature, noise))

    @property
    def mode(self) -> torch.Tensor:
        """The mean."""
        return self.mean

    def log_prob(self, action: torch.Tensor) -> torch.Tensor:
        """Log density, summed over the elements of an action."""
        scaled = (action - self.mean) * (-self.log_std).exp()
        return self._sum(-0.5 * scaled.square() - self.log_std - _HALF_LOG_TWO_PI)

    def entropy(self) -> torch.Tensor:
        """Differential entropy, summed over the elements of an action."""
        return self._sum((self.log_std + (0.5 + _HALF_LOG_TWO_PI)).expand_as(self.mean))

    def kl(self, other: DiagGaussian) -> torch.Tensor:
        """KL divergence to `other`."""
        variance, other_variance = (2 * self.log_std).exp(), (2 * other.log_std).exp()
        distance = (self.mean - other.mean).square()
        return self._sum(
            other.log_std - self.log_std + (variance + distance) / (2 * other_variance) - 0.5
        )

    def _sum(self, values: torch.Tensor) -> torch.Tensor:
        return values.sum(self._axes) if self._axes else values


def _expand(temperature: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The temperature of each row, with trailing axes added up to the rank of `like`."""
    if like.dim() == temperature.dim() + 1:  # The usual case, in the cheapest way.
        return temperature.unsqueeze(-1)
    return temperature.reshape(temperature.shape + (1,) * (like.dim() - temperature.dim()))
