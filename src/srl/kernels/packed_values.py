"""An MLP to action values and the choice of an action, packed: without a graph and without new
memory.

Equal to the layers, the norm and `epsilon_greedy` in `srl.policies`, which `QNetwork.act` uses
without this.
"""

from __future__ import annotations

import numpy as np
import torch

from srl.kernels.columns import ColumnScaling, Norm, copy_columns
from srl.kernels.packed_towers import PackedTowers
from srl.kernels.sampling import EpsilonGreedySampler
from srl.kernels.towers import Layers

_MAX_ROW_BUFFERS = 16
"""Most row counts for which memory is kept."""


class _RowBuffers:
    """The memory for one number of rows."""

    def __init__(self, towers: PackedTowers, rows: int) -> None:
        self.memory = towers.memory(rows)
        self.input = self.memory.seen.numpy()
        self.sampler = EpsilonGreedySampler(self.memory.out)
        self._last_inputs: tuple[torch.Tensor, torch.Tensor] | None = None

    def arrays(self, obs: torch.Tensor, explore: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Observations as columns, and exploration, as arrays on the same memory."""
        last = self._last_inputs
        if last is None or last[0] is not obs or last[1] is not explore:
            # A policy worker passes the same tensors again, with new numbers in them.
            self._last_inputs = obs, explore
            self._arrays = obs.numpy().T, explore.numpy()
        return self._arrays


class PackedValues:
    """A network of action values over one vector, packed."""

    def __init__(self, layers: Layers, activation: str, norm: Norm | None = None) -> None:
        """Packs the current weights. `norm` normalises the observations first."""
        self._towers = PackedTowers([layers], activation)
        self._scaling = None if norm is None else ColumnScaling(norm)
        self._write_obs = copy_columns if self._scaling is None else self._scaling
        self._row_buffers: dict[int, _RowBuffers] = {}

    def load(self, layers: Layers) -> None:
        """Packs the current weights of the layers and statistics of the norm."""
        self._towers.load([layers])
        if self._scaling is not None:
            self._scaling.load()

    def act(
        self,
        obs: torch.Tensor,
        epsilon: float,
        explore: torch.Tensor,
        action_mask: torch.Tensor | None,
        generator: torch.Generator,
    ) -> torch.Tensor:
        """Chooses actions for [rows, n]. The next call with the same number of rows overwrites the
        result."""
        buffers = self._buffers(obs.shape[0])
        columns, explored = buffers.arrays(obs, explore)
        self._write_obs(columns, buffers.input)
        self._towers(buffers.memory)
        buffers.sampler(action_mask, epsilon, explored, generator)
        return buffers.sampler.action

    def _buffers(self, rows: int) -> _RowBuffers:
        buffers = self._row_buffers.get(rows)
        if buffers is None:
            if len(self._row_buffers) == _MAX_ROW_BUFFERS:
                del self._row_buffers[next(iter(self._row_buffers))]
            buffers = self._row_buffers[rows] = _RowBuffers(self._towers, rows)
        return buffers
