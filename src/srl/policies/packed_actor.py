"""Two towers and an action head, packed: from observations to actions without a graph and without
new memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from srl.policies.nets.heads import ActionHead
from srl.policies.nets.norm import EPSILON, RunningNorm
from srl.policies.nets.packed_towers import PackedTowers
from srl.policies.nets.towers import Layers
from srl.policies.protocol import Act

_MAX_ROW_BUFFERS = 16
"""Most row counts for which memory is kept."""


class _Scaling:
    """A running norm for vectors as columns, with numpy."""

    def __init__(self, norm: RunningNorm) -> None:
        """Takes the current statistics of `norm`."""
        self._norm = norm
        self._mean = np.empty((*norm.shape, 1), np.float32)
        self._factor = np.empty_like(self._mean)
        self.load()

    def load(self) -> None:
        """Takes the current statistics of the norm."""
        self._mean[:, 0] = self._norm.mean.numpy()
        self._factor[:, 0] = (self._norm.var + EPSILON).rsqrt().numpy()

    def __call__(self, obs: np.ndarray, out: np.ndarray) -> None:
        """Writes [n, rows] into `out`, normalised."""
        np.subtract(obs, self._mean, out)
        np.multiply(out, self._factor, out)
        np.maximum(out, -self._norm.clip, out=out)
        np.minimum(out, self._norm.clip, out=out)


class _RowBuffers:
    """The memory for one number of rows, and the way from observations to actions in it."""

    def __init__(
        self,
        towers: PackedTowers,
        head: ActionHead,
        norm: RunningNorm | None,
        write_obs: Callable[[np.ndarray, np.ndarray], None],
        rows: int,
    ) -> None:
        self.memory = towers.memory(rows)
        self._towers = towers
        self._head = head
        self._norm = norm
        self._write_obs = write_obs
        self._sampler = head.drawing(self.memory.out[:-1])
        if self._sampler is not None:
            self._input = self.memory.seen.numpy()
            self._last_inputs: tuple[torch.Tensor, torch.Tensor] | None = None
            extras = {"log_prob": self._sampler.log_prob, "value": self.memory.out[-1]}
            self._act = Act(self._sampler.action, None, extras)

    def act(
        self,
        obs: torch.Tensor,
        explore: torch.Tensor,
        action_mask: torch.Tensor | None,
        generator: torch.Generator,
    ) -> Act:
        """As `Policy.act`."""
        sampler, memory = self._sampler, self.memory
        if sampler is None:
            memory.seen.copy_((obs if self._norm is None else self._norm(obs)).t())
            out = self._towers(memory)
            distribution = self._head.distribution(out[:-1].t().contiguous(), action_mask)
            action, log_prob = distribution.draw(generator, explore)
            return Act(action, None, {"log_prob": log_prob, "value": out[-1]})
        if (
            self._last_inputs is None
            or self._last_inputs[0] is not obs
            or self._last_inputs[1] is not explore
        ):
            # A policy worker passes the same tensors again, with new numbers in them.
            self._last_inputs = obs, explore
            self._obs, self._explore = obs.numpy().T, explore.numpy()
        self._write_obs(self._obs, self._input)
        self._towers(memory)
        sampler(action_mask, self._explore, generator)
        return self._act


class PackedActor:
    """An actor and a critic over one vector, packed."""

    def __init__(
        self,
        towers: Sequence[Layers],
        activation: str,
        head: ActionHead,
        norm: RunningNorm | None = None,
    ) -> None:
        """Packs the current weights of `towers`: the actor's layers, which end in `head`, and the
        critic's.

        `norm` normalises the observations first.
        """
        self._towers = PackedTowers(towers, activation)
        self._head = head
        self._norm = norm
        self._scaling = None if norm is None or not norm.mean.is_cpu else _Scaling(norm)
        self._row_buffers: dict[int, _RowBuffers] = {}

    def load(self, towers: Sequence[Layers]) -> None:
        """Packs the current weights of the towers and statistics of the norm."""
        self._towers.load(towers)
        if self._scaling is not None:
            self._scaling.load()

    def act(
        self,
        obs: torch.Tensor,
        explore: torch.Tensor,
        action_mask: torch.Tensor | None,
        generator: torch.Generator,
    ) -> Act:
        """As `Policy.act`. The next call with the same number of rows overwrites the result."""
        rows = obs.shape[0]
        buffers = self._row_buffers.get(rows)
        if buffers is None:
            if len(self._row_buffers) == _MAX_ROW_BUFFERS:
                del self._row_buffers[next(iter(self._row_buffers))]
            write_obs = _copy if self._scaling is None else self._scaling
            buffers = self._row_buffers[rows] = _RowBuffers(
                self._towers, self._head, self._norm, write_obs, rows
            )
        return buffers.act(obs, explore, action_mask, generator)


def _copy(obs: np.ndarray, out: np.ndarray) -> None:
    np.copyto(out, obs)
