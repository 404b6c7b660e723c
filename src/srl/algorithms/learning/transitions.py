"""Transitions of a batch: the first action of each window, and what it led to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from srl.algorithms.learning.sequences import Sequences, zero_outside
from srl.algorithms.ops.n_step import n_steps
from srl.data.records import SampleBatch
from srl.data.tree import Tree
from srl.policies.protocol import Policy


class TransitionMinibatch(NamedTuple):
    """Transitions for one gradient step, on the learner's device."""

    obs: Tree
    """[N, ...] what the policy saw, with frames stacked."""
    action: torch.Tensor
    """[N, ...] as the environment took it."""
    reward: torch.Tensor
    """float [N]: the discounted sum of the rewards on the way."""
    discount: torch.Tensor
    """float [N]: the discount of the value of `next_obs`; 0 where the episode has terminated."""
    next_obs: Tree
    """[N, ...] the observation that the target bootstraps from."""
    weight: torch.Tensor
    """float [N]: the row's weight in a mean. All add up to 1; it is 0 where no action was taken."""


class Transitions:
    """A batch of windows with `n` ticks behind the first one, as transitions of n steps.

    A window that begins where no action is taken, as in an episode's last tick, has weight 0.
    """

    def __init__(
        self, batch: SampleBatch, policy: Policy, device: torch.device, *, gamma: float, n: int
    ) -> None:
        self._sequences = Sequences(batch, policy, device)
        seen = self._sequences
        steps = n_steps(
            reward=seen.reward,
            acted=seen.acted,
            terminated=seen.terminated,
            truncated=seen.truncated,
            gamma=gamma,
            n=n,
        )
        self._reward, self._discount = steps.reward_t[0], steps.discount_t[0]
        self._bootstrap, self._valid = steps.bootstrap_t[0], steps.valid_t[0]
        self._rows_per_minibatch = seen.rows // batch.num_fragments

    def minibatches(self) -> Iterator[TransitionMinibatch]:
        """The fragments of the batch, each a minibatch."""
        seen = self._sequences
        active = None if seen.all_active else seen.active.flatten()
        for first in range(0, seen.rows, self._rows_per_minibatch):
            part = slice(first, first + self._rows_per_minibatch)
            rows = torch.arange(part.start, part.stop, device=seen.device)
            at = torch.stack([rows, self._bootstrap[part] * seen.rows + rows])
            asked = None if active is None else active[at]
            valid, action = self._valid[part], seen.action[0, part]
            weight = valid.to(self._reward.dtype)
            yield TransitionMinibatch(
                obs=seen.obs_at(at[0], None if asked is None else asked[0]),
                action=action if active is None else zero_outside(valid, action),
                reward=self._reward[part],
                discount=self._discount[part],
                next_obs=seen.obs_at(at[1], None if asked is None else asked[1]),
                weight=weight / weight.sum().clamp(min=1.0),
            )

    def frames(self) -> tuple[Tree, torch.Tensor]:
        """As `Sequences.frames`, for running statistics."""
        return self._sequences.frames()
