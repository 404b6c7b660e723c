"""RMSProp (Tieleman & Hinton 2012) over parameters in one flat array."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from srl.algorithms.learning.flat_optimizer import FlatOptimizer, arrays_by_name, load_arrays
from srl.data.tree import Tree
from srl.errors import CheckpointError


class RMSProp(FlatOptimizer):
    """RMSProp that moves all parameters in one call, with the numbers of `torch.optim.RMSprop`.

    The first steps are up to 1 / sqrt(1 - decay) times as long as later ones.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        *,
        lr: float,
        eps: float = 1e-5,
        decay: float = 0.99,
    ) -> None:
        super().__init__(parameters)
        self.lr = lr
        self.eps = eps
        self.decay = decay
        self.mean_square = torch.zeros_like(self.flat)
        self.changed_by_steps = (self.flat, self.mean_square)

    @torch.no_grad()
    def step(self) -> None:
        """Moves every parameter."""
        self.mean_square.mul_(self.decay).addcmul_(self.grad, self.grad, value=1.0 - self.decay)
        root = self.mean_square.sqrt().add_(self.eps)
        self.flat.addcdiv_(self.grad, root, value=-self.lr)

    def state(self, module: nn.Module) -> Tree:
        """{"mean_square": {parameter: array}}."""
        return {"mean_square": arrays_by_name(self, module, self.mean_square)}

    def restore(self, module: nn.Module, state: Tree) -> None:
        """Restores what `state` returned."""
        if "mean_square" not in state:
            raise CheckpointError(
                f"optimizer: expected a state of RMSProp, got one of {state.get('kind', 'Adam')}. "
                "Was the optimizer changed since the checkpoint?"
            )
        load_arrays(self, module, self.mean_square, state["mean_square"], "mean_square")
