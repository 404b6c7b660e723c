"""Adam (Kingma & Ba 2015) over parameters that lie side by side in one memory.

However many layers there are, clipping, the step and keeping a copy aside are a few calls over flat
arrays. `torch.optim.Adam` would do, but it goes layer by layer, and making one imports torch's
compiler: seconds of start-up that a trainer has no use for. This calls the same fused kernel with
the same state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch


class Adam:
    """Moves parameters along their gradients. From its making on, each parameter and its gradient
    are views of flat arrays."""

    def __init__(
        self,
        parameters: Iterable[torch.nn.Parameter],
        *,
        lr: float,
        eps: float = 1e-8,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0.0,
    ) -> None:
        self.lr = lr
        self.eps = eps
        self.betas = betas
        self.weight_decay = weight_decay
        self._parameters = [p for p in parameters if p.requires_grad]
        like = self._parameters[0]
        size = sum(p.numel() for p in self._parameters)
        self.flat, self.grad, self.exp_avg, self.exp_avg_sq = (
            torch.zeros(size, dtype=like.dtype, device=like.device) for _ in range(4)
        )
        self.num_steps = torch.zeros((), device=like.device)
        """Steps taken, where the kernel wants to find it."""
        self.changing = (self.flat, self.exp_avg, self.exp_avg_sq, self.num_steps)
        """What a step changes."""
        with torch.no_grad():
            for parameter, home in zip(self._parameters, self.views(self.flat), strict=True):
                home.copy_(parameter)
                parameter.data = home
        for parameter, home in zip(self._parameters, self.views(self.grad), strict=True):
            parameter.grad = home

    def views(self, flat: torch.Tensor) -> Iterator[torch.Tensor]:
        """A flat array cut into the parameters' shapes and memory formats, in their order."""
        at = 0
        for parameter in self._parameters:
            yield flat.as_strided(parameter.shape, parameter.stride(), at)
            at += parameter.numel()

    def zero_grad(self) -> None:
        """Forgets all gradients."""
        self.grad.zero_()

    def clip(self, max_norm: float | None) -> float:
        """Shortens a gradient that is longer than `max_norm`; returns how long it was."""
        norm = float(torch.linalg.vector_norm(self.grad))
        if max_norm is not None and norm > max_norm:
            self.grad.mul_(max_norm / (norm + 1e-6))
        return norm

    @torch.no_grad()
    def step(self) -> None:
        """Moves every parameter."""
        self.num_steps.add_(1)
        torch._fused_adam_(
            [self.flat],
            [self.grad],
            [self.exp_avg],
            [self.exp_avg_sq],
            [],
            [self.num_steps],
            lr=self.lr,
            beta1=self.betas[0],
            beta2=self.betas[1],
            weight_decay=self.weight_decay,
            eps=self.eps,
            amsgrad=False,
            maximize=False,
        )
