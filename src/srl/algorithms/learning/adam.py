"""Adam (Kingma & Ba 2015) over parameters in one flat array: by torch's class, or by a kernel."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import nn

from srl.algorithms.learning.flat_optimizer import FlatOptimizer, names_in
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
        self._changed_by_steps = AdamState(self.flat, self.exp_avg, self.exp_avg_sq, self.num_steps)
        self._of_torch = None if use_kernels and has_fused_adam() else self._make_of_torch()
        self._backup: list[torch.Tensor] = []

    @torch.no_grad()
    def step(self) -> None:
        """Moves every parameter."""
        if self._of_torch is not None:
            self._of_torch.param_groups[0]["lr"] = self.lr
            self._of_torch.step()
            return
        fused_adam(
            self._changed_by_steps,
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

    def backup(self) -> None:
        """Copies weights and optimizer state into memory that is kept: no new pages for each
        update."""
        if not self._backup:
            self._backup = [torch.empty_like(tensor) for tensor in self._changed_by_steps]
        for kept, tensor in zip(self._backup, self._changed_by_steps, strict=True):
            kept.copy_(tensor)

    def rollback(self) -> None:
        """Restores what the last `backup` copied."""
        for kept, tensor in zip(self._backup, self._changed_by_steps, strict=True):
            tensor.copy_(kept)

    def state(self, module: nn.Module) -> Tree:
        """{"step": number of steps, "exp_avg": {parameter: array}, "exp_avg_sq": the same}."""
        return {
            "step": float(self.num_steps),
            **{
                kind: {name: _array(view) for name, view in moments.items()}
                for kind, moments in self._moments(module).items()
            },
        }

    def restore(self, module: nn.Module, state: Tree) -> None:
        """Restores what `state` returned."""
        moments_of = self._moments(module)
        if not {"step", *moments_of} <= set(state):
            raise CheckpointError(
                f"optimizer: expected a state of Adam, got one of {state.get('kind', 'another')}. "
                "Was make_optimizer changed since the checkpoint?"
            )
        for kind, moments in moments_of.items():
            for name in sorted(set(moments) ^ set(state[kind])):
                raise CheckpointError(
                    f"optimizer: expected the parameters of this policy, got a state with"
                    f"{'out' if name in moments else ''} {name!r}. "
                    "Was network.* changed since the checkpoint?"
                )
            for name, view in moments.items():
                value = state[kind][name]
                if value.shape != tuple(view.shape):
                    raise CheckpointError(
                        f"optimizer: expected {kind} of {name} of shape {list(view.shape)}, "
                        f"got {list(value.shape)}. Was network.* changed since the checkpoint?"
                    )
                view.copy_(torch.from_numpy(value))
        self.num_steps.fill_(state["step"])

    def _moments(self, module: nn.Module) -> dict[str, dict[str, torch.Tensor]]:
        names = names_in(module, self.parameters)
        return {
            kind: dict(zip(names, self.views(flat), strict=True))
            for kind, flat in (("exp_avg", self.exp_avg), ("exp_avg_sq", self.exp_avg_sq))
        }


def _array(view: torch.Tensor) -> np.ndarray:
    return view.detach().cpu().numpy().copy()
