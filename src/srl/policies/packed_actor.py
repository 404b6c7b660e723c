"""Two towers and an action head packed for acting: from observations to actions without a graph,
and without new memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from srl.policies.nets.heads import ActionHead
from srl.policies.nets.norm import EPSILON, RunningNorm
from srl.policies.nets.packed import PackedTowers
from srl.policies.nets.towers import Layers
from srl.policies.protocol import Act

_MAX_DESKS = 16
"""Numbers of rows for which memory is kept."""


class _Scaling:
    """A running norm of vectors that lie side by side as columns, by numpy."""

    def __init__(self, norm: RunningNorm) -> None:
        """As the norm is now."""
        self._norm = norm
        self._mean = np.empty((*norm.shape, 1), np.float32)
        self._factor = np.empty_like(self._mean)
        self.load()

    def load(self) -> None:
        """Takes what the norm holds now."""
        self._mean[:, 0] = self._norm.mean.numpy()
        self._factor[:, 0] = (self._norm.var + EPSILON).rsqrt().numpy()

    def __call__(self, obs: np.ndarray, out: np.ndarray) -> None:
        """Writes [n, rows], normalised."""
        np.subtract(obs, self._mean, out)
        np.multiply(out, self._factor, out)
        np.maximum(out, -self._norm.clip, out=out)
        np.minimum(out, self._norm.clip, out=out)


class _Desk:
    """What is made once for a number of rows: on it observations become actions."""

    def __init__(
        self,
        towers: PackedTowers,
        head: ActionHead,
        norm: RunningNorm | None,
        see: Callable[[np.ndarray, np.ndarray], None],
        rows: int,
    ) -> None:
        self.memory = towers.memory(rows)
        self._towers = towers
        self._head = head
        self._norm = norm
        self._see = see
        self._draw = head.drawing(self.memory.out[:-1])
        if self._draw is not None:
            self._seen = self.memory.seen.numpy()
            self._shown: tuple[torch.Tensor, torch.Tensor] | None = None
            extras = {"log_prob": self._draw.log_prob, "value": self.memory.out[-1]}
            self._act = Act(self._draw.action, None, extras)

    def act(
        self,
        obs: torch.Tensor,
        explore: torch.Tensor,
        action_mask: torch.Tensor | None,
        generator: torch.Generator,
    ) -> Act:
        """As `Policy.act`."""
        draw, memory = self._draw, self.memory
        if draw is None:
            memory.seen.copy_((obs if self._norm is None else self._norm(obs)).t())
            out = self._towers(memory)
            distribution = self._head.distribution(out[:-1].t().contiguous(), action_mask)
            action, log_prob = distribution.draw(generator, explore)
            return Act(action, None, {"log_prob": log_prob, "value": out[-1]})
        if self._shown is None or self._shown[0] is not obs or self._shown[1] is not explore:
            # A policy worker shows the same tensors again, with other numbers in them.
            self._shown = obs, explore
            self._obs, self._explore = obs.numpy().T, explore.numpy()
        self._see(self._obs, self._seen)
        self._towers(memory)
        draw(action_mask, self._explore, generator)
        return self._act


class PackedActor:
    """An actor and a critic over one vector."""

    def __init__(
        self,
        towers: Sequence[Layers],
        activation: str,
        head: ActionHead,
        norm: RunningNorm | None = None,
    ) -> None:
        """The actor's layers, which end in `head`, and the critic's; `norm` is what observations go
        through before. Packs what they hold now."""
        self._towers = PackedTowers(towers, activation)
        self._head = head
        self._norm = norm
        self._scaling = None if norm is None or not norm.mean.is_cpu else _Scaling(norm)
        self._desks: dict[int, _Desk] = {}

    def load(self, towers: Sequence[Layers]) -> None:
        """Packs what the towers and the norm hold now."""
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
        """As `Policy.act`, in memory that the next call for as many rows writes again."""
        rows = obs.shape[0]
        desk = self._desks.get(rows)
        if desk is None:
            if len(self._desks) == _MAX_DESKS:
                del self._desks[next(iter(self._desks))]
            see = _copy if self._scaling is None else self._scaling
            desk = self._desks[rows] = _Desk(self._towers, self._head, self._norm, see, rows)
        return desk.act(obs, explore, action_mask, generator)


def _copy(obs: np.ndarray, out: np.ndarray) -> None:
    np.copyto(out, obs)
