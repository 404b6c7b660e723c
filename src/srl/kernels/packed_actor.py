"""Two towers and an action head, packed: from observations to actions without a graph and without
new memory.

Equal to the layers, the norm and the distributions in `srl.policies`, which `ActorCritic.act` uses
without this.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from srl.kernels.columns import ColumnScaling, Norm, copy_columns
from srl.kernels.packed_towers import PackedTowers
from srl.kernels.sampling import ChoiceSampler, VectorSampler
from srl.kernels.towers import Layers

_MAX_ROW_BUFFERS = 16
"""Most row counts for which memory is kept."""

MakeSampler = Callable[[torch.Tensor], ChoiceSampler | VectorSampler | None]
"""From the actor's outputs [parameters, rows], which it reads at every call, to their sampler; None
if there is none for these actions."""


class Sampled(NamedTuple):
    """Actions with their log probabilities and values, by row."""

    action: torch.Tensor
    log_prob: torch.Tensor
    value: torch.Tensor


class _RowBuffers:
    """The memory for one number of rows, and the way from observations to actions in it."""

    def __init__(self, towers: PackedTowers, make_sampler: MakeSampler, rows: int) -> None:
        self.memory = towers.memory(rows)
        self.sampler = make_sampler(self.memory.out[:-1])
        if self.sampler is not None:
            self.input = self.memory.seen.numpy()
            self.sampled = Sampled(self.sampler.action, self.sampler.log_prob, self.memory.out[-1])
            self._last_inputs: tuple[torch.Tensor, torch.Tensor] | None = None

    def arrays(self, obs: torch.Tensor, explore: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Observations as columns, and temperatures, as arrays on the same memory."""
        last = self._last_inputs
        if last is None or last[0] is not obs or last[1] is not explore:
            # A policy worker passes the same tensors again, with new numbers in them.
            self._last_inputs = obs, explore
            self._arrays = obs.numpy().T, explore.numpy()
        return self._arrays


class PackedActor:
    """An actor and a critic over one vector, packed."""

    def __init__(
        self,
        towers: Sequence[Layers],
        activation: str,
        make_sampler: MakeSampler,
        norm: Norm | None = None,
    ) -> None:
        """Packs the current weights of `towers`: the actor's layers and the critic's.

        `norm` normalises the observations first.
        """
        self._towers = PackedTowers(towers, activation)
        self._make_sampler = make_sampler
        self._norm = norm
        self._scaling = None if norm is None or not norm.mean.is_cpu else ColumnScaling(norm)
        self._write_obs = copy_columns if self._scaling is None else self._scaling
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
    ) -> Sampled | None:
        """Samples actions for [rows, n]; None if these actions have no sampler (see `outputs`).

        The next call with the same number of rows overwrites the result.
        """
        buffers = self._buffers(obs.shape[0])
        sampler = buffers.sampler
        if sampler is None:
            return None
        columns, temperature = buffers.arrays(obs, explore)
        self._write_obs(columns, buffers.input)
        self._towers(buffers.memory)
        sampler(action_mask, temperature, generator)
        return buffers.sampled

    def outputs(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The parameters of the distribution [rows, n], and the value [rows]."""
        memory = self._buffers(obs.shape[0]).memory
        memory.seen.copy_((obs if self._norm is None else self._norm(obs)).t())
        out = self._towers(memory)
        return out[:-1].t().contiguous(), out[-1]

    def _buffers(self, rows: int) -> _RowBuffers:
        buffers = self._row_buffers.get(rows)
        if buffers is None:
            if len(self._row_buffers) == _MAX_ROW_BUFFERS:
                del self._row_buffers[next(iter(self._row_buffers))]
            buffers = _RowBuffers(self._towers, self._make_sampler, rows)
            self._row_buffers[rows] = buffers
        return buffers
