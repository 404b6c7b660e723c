"""Samples actions from the outputs of packed towers, with numpy.

Equal to `Categorical.draw` and `DiagGaussian.draw` in `srl.policies.distributions`, and to
`epsilon_greedy` in `srl.policies.exploration`, for a few rows on a CPU. There a call of numpy costs
a third of a call of torch, and new memory costs as much as the arithmetic. So a sampler is made
once for a number of rows, and keeps all memory that it writes. The noise comes from the caller's
torch generator: the same numbers as in those functions.
"""

from __future__ import annotations

import math

import numpy as np
import torch

_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)


class ChoiceSampler:
    """Samples one choice of n for each row."""

    def __init__(self, logits: torch.Tensor, forbidden: float) -> None:
        """Takes the logits [n, rows], which every call reads and overwrites.

        `forbidden` is the logit of a choice that is not allowed.
        """
        size, rows = logits.shape
        self._forbidden = forbidden
        self.action = torch.empty(rows, dtype=torch.int64)
        """int64 [rows]: the choices of the last call."""
        self.log_prob = torch.empty(rows, dtype=logits.dtype)
        """float [rows]: the log probabilities of the last call."""
        self._noise = torch.empty(rows, size, dtype=logits.dtype)
        self._logits, self._exponential = logits.numpy(), self._noise.numpy().T
        self._action, self._log_prob = self.action.numpy(), self.log_prob.numpy()
        self._scores = np.empty((size, rows), self._logits.dtype)
        self._per_row = np.empty(rows, self._logits.dtype)
        self._columns = np.arange(rows)

    def __call__(
        self, mask: torch.Tensor | None, explore: np.ndarray, generator: torch.Generator
    ) -> None:
        """Draws at the temperature `explore` [rows]; `mask` [rows, n] is True where a choice is
        allowed."""
        logits, scores, per_row = self._logits, self._scores, self._per_row
        if mask is not None:
            np.copyto(logits, self._forbidden, where=~mask.numpy().T)
        np.maximum.reduce(logits, 0, out=per_row)
        np.subtract(logits, per_row, logits)
        np.exp(logits, scores)
        np.add.reduce(scores, 0, out=per_row)
        np.log(per_row, per_row)
        # Gumbel-max: the choice with the largest log probability plus noise. Gumbel noise is -log
        # of exponential noise.
        self._noise.exponential_(generator=generator)
        np.log(self._exponential, scores)
        np.multiply(scores, explore, scores)
        np.subtract(logits, scores, scores)
        scores.argmax(0, self._action)
        np.subtract(logits[self._action, self._columns], per_row, self._log_prob)


class VectorSampler:
    """Samples a vector of independent normals for each row."""

    def __init__(self, mean: torch.Tensor, log_std: torch.Tensor) -> None:
        """Takes means [n, rows] and log standard deviations [n], which every call reads."""
        size, rows = mean.shape
        self.action = torch.empty(rows, size, dtype=mean.dtype)
        """float [rows, n]: the vectors of the last call."""
        self.log_prob = torch.empty(rows, dtype=mean.dtype)
        """float [rows]: the log probabilities of the last call."""
        self._noise = torch.empty(rows, size, dtype=mean.dtype)
        self._mean, self._log_std = mean.numpy().T, log_std.detach().numpy()
        self._action, self._log_prob = self.action.numpy(), self.log_prob.numpy()
        self._scaled = self._noise.numpy()
        self._std = np.empty(size, self._mean.dtype)
        self._scale = size * _HALF_LOG_TWO_PI

    def __call__(
        self, mask: torch.Tensor | None, explore: np.ndarray, generator: torch.Generator
    ) -> None:
        """Draws at the temperature `explore` [rows]; `mask` is not used."""
        noise, action, log_prob = self._scaled, self._action, self._log_prob
        self._noise.normal_(generator=generator)
        np.multiply(noise, explore[:, None], noise)
        np.exp(self._log_std, self._std)
        np.multiply(noise, self._std, action)
        np.add(action, self._mean, action)
        np.multiply(noise, noise, noise)
        np.add.reduce(noise, 1, out=log_prob)
        np.multiply(log_prob, -0.5, log_prob)
        np.subtract(log_prob, np.add.reduce(self._log_std) + self._scale, log_prob)


class EpsilonGreedySampler:
    """Takes the action with the highest value in each row, and sometimes a random one."""

    def __init__(self, value: torch.Tensor) -> None:
        """Takes values [n, rows], which every call reads and overwrites."""
        size, rows = value.shape
        self.action = torch.empty(rows, dtype=torch.int64)
        """int64 [rows]: the actions of the last call."""
        self._noise = torch.empty(rows, size + 1, dtype=value.dtype)
        noise = self._noise.numpy().T
        self._scores, self._chance = noise[:-1], noise[-1]
        self._value, self._action = value.numpy(), self.action.numpy()
        self._is_random = np.empty(rows, np.bool_)

    def __call__(
        self,
        mask: torch.Tensor | None,
        epsilon: float,
        explore: np.ndarray,
        generator: torch.Generator,
    ) -> None:
        """Draws; random actions have probability `epsilon * explore` [rows], and `mask` [rows, n]
        is True where an action is allowed."""
        value = self._value
        self._noise.uniform_(generator=generator)
        # The probability in float32, as in `epsilon_greedy`.
        np.less(self._chance, np.float32(epsilon) * explore, self._is_random)
        np.copyto(value, self._scores, where=self._is_random)
        if mask is not None:
            np.copyto(value, -np.inf, where=~mask.numpy().T)
        value.argmax(0, self._action)
