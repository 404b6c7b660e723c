"""The interface of optimizers for PPO: parameters and gradients in two flat arrays, and a
rollback."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator

import torch
from torch import nn

from srl.data.tree import Tree
from srl.errors import ConfigError


class FlatOptimizer(ABC):
    """Moves parameters along their gradients.

    Once the optimizer is made, each parameter and its gradient are views of flat arrays. So
    clipping a gradient, and summing it over trainers, are single calls for any number of layers.
    """

    lr: float
    """The learning rate of the next step."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.parameters = [p for p in parameters if p.requires_grad]
        like = self.parameters[0]
        size = sum(p.numel() for p in self.parameters)
        self.flat = torch.zeros(size, dtype=like.dtype, device=like.device)
        self.grad = torch.zeros_like(self.flat)
        with torch.no_grad():
            for parameter, view in zip(self.parameters, self.views(self.flat), strict=True):
                view.copy_(parameter)
                parameter.data = view
        for parameter, view in zip(self.parameters, self.views(self.grad), strict=True):
            parameter.grad = view

    def views(self, flat: torch.Tensor) -> Iterator[torch.Tensor]:
        """Cuts a flat array into the parameters' shapes and memory formats, in their order."""
        at = 0
        for parameter in self.parameters:
            yield flat.as_strided(parameter.shape, parameter.stride(), at)
            at += parameter.numel()

    def zero_grad(self) -> None:
        """Sets all gradients to zero."""
        self.grad.zero_()

    def clip(self, max_norm: float | None) -> float:
        """Shortens a gradient that is longer than `max_norm`; returns its length before that."""
        norm = float(torch.linalg.vector_norm(self.grad))
        if max_norm is not None and norm > max_norm:
            self.grad.mul_(max_norm / (norm + 1e-6))
        return norm

    @abstractmethod
    def step(self) -> None:
        """Moves every parameter along its gradient."""

    @abstractmethod
    def backup(self) -> None:
        """Keeps a copy of all that steps change, for `rollback`."""

    @abstractmethod
    def rollback(self) -> None:
        """Restores what the last `backup` kept."""

    @abstractmethod
    def state(self, module: nn.Module) -> Tree:
        """The optimizer's part of a checkpoint, by the names of the parameters in `module`."""

    @abstractmethod
    def restore(self, module: nn.Module, state: Tree) -> None:
        """Continues from `state`."""


def names_in(module: nn.Module, parameters: Iterable[nn.Parameter]) -> list[str]:
    """The names of parameters in a policy, in the order of `parameters`."""
    known = {id(parameter): name for name, parameter in module.named_parameters()}
    names = [known.get(id(parameter)) for parameter in parameters]
    if None in names:
        raise ConfigError(
            "make_optimizer: expected an optimizer of the policy's parameters, got one with "
            f"others. Make them a part of {type(module).__name__}: only a policy's weights are "
            "saved and published."
        )
    return [name for name in names if name is not None]
