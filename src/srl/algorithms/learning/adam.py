"""Adam (Kingma & Ba 2015) over parameters in one flat array: by torch's class, or by a kernel."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from srl.algorithms.learning.flat_optimizer import FlatOptimizer, arrays_by_name, load_arrays
from srl.data.tree import Tree
from srl.errors import CheckpointError
from srl.kernels.adam import AdamState, fused_adam, has_fused_adam


class Adam(FlatOptimizer):
    """Adam that moves all parameters in one call."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        *,
        lr: float,
        eps: float = 1e-8,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0.0,
        use_kernels: bool = True,
    ) -> None:
        """Adam over the parameters that require a gradient; without kernels by `torch.optim.Adam`.

        The state in a checkpoint is the same.
        """
        super().__init__(parameters)
        self.lr = lr
        self.eps = eps
        self.betas = betas
        self.weight_decay = weight_decay
        self.exp_avg = torch.zeros_like(self.flat)
        self.exp_avg_sq = torch.zeros_like(self.flat)
        self.num_steps = torch.zeros((), device=self.flat.device)
        """Steps taken."""
        self._state = AdamState(self.flat, self.exp_avg, self.exp_avg_sq, self.num_steps)
        self.changed_by_steps = self._state
        self._of_torch = None if use_kernels and has_fused_adam() else self._make_of_torch()

    @torch.no_grad()
    def step(self) -> None:
        """Moves every parameter."""
        if self._of_torch is not None:
            self._of_torch.param_groups[0]["lr"] = self.lr
            self._of_torch.step()
            return
        fused_adam(
            self._state,
            self.grad,
            lr=self.lr,
            betas=self.betas,
            weight_decay=self.weight_decay,
            eps=self.eps,
        )

    def _make_of_torch(self) -> torch.optim.Adam:
        """torch's own Adam over our arrays: its state is ours."""
        made = torch.optim.Adam(
            [self.flat],
            lr=self.lr,
            betas=self.betas,
            eps=self.eps,
            weight_decay=self.weight_decay,
            foreach=False,
        )
        self.flat.grad = self.grad
        state = {"step": self.num_steps, "exp_avg": self.exp_avg, "exp_avg_sq": self.exp_avg_sq}
        made.state[self.flat] = state
        return made

    def state(self, module: nn.Module) -> Tree:
        """{"step": number of steps, "exp_avg": {parameter: array}, "exp_avg_sq": the same}."""
        moments = self._moments()
        return {
            "step": float(self.num_steps),
            **{kind: arrays_by_name(self, module, flat) for kind, flat in moments.items()},
        }

    def restore(self, module: nn.Module, state: Tree) -> None:
        """Restores what `state` returned."""
        moments = self._moments()
        if not {"step", *moments} <= set(state):
            raise CheckpointError(
                f"optimizer: expected a state of Adam, got one of {state.get('kind', 'another')}. "
                "Was the optimizer changed since the checkpoint?"
            )
        for kind, flat in moments.items():
            load_arrays(self, module, flat, state[kind], kind)
        self.num_steps.fill_(state["step"])

    def _moments(self) -> dict[str, torch.Tensor]:
        return {"exp_avg": self.exp_avg, "exp_avg_sq": self.exp_avg_sq}
