"""The interface of optimizers: parameters and gradients in two flat arrays, and a
rollback."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import nn

from srl.data.tree import Tree
from srl.errors import CheckpointError, ConfigError


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
        self.changed_by_steps: Sequence[torch.Tensor] = (self.flat,)
        """All tensors that a step changes."""
        self._backup: list[torch.Tensor] = []
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

    def backup(self) -> None:
        """Keeps a copy of all that steps change, in memory that is used again: no new pages for
        each update."""
        if not self._backup:
            self._backup = [torch.empty_like(tensor) for tensor in self.changed_by_steps]
        for kept, tensor in zip(self._backup, self.changed_by_steps, strict=True):
            kept.copy_(tensor)

    def rollback(self) -> None:
        """Restores what the last `backup` kept."""
        for kept, tensor in zip(self._backup, self.changed_by_steps, strict=True):
            tensor.copy_(kept)

    @abstractmethod
    def state(self, module: nn.Module) -> Tree:
        """The optimizer's part of a checkpoint, by the names of the parameters in `module`."""

    @abstractmethod
    def restore(self, module: nn.Module, state: Tree) -> None:
        """Continues from `state`."""


def arrays_by_name(
    optimizer: FlatOptimizer, module: nn.Module, flat: torch.Tensor
) -> dict[str, np.ndarray]:
    """Copies of the parameters' parts of a flat array, by the names of the parameters."""
    names = names_in(module, optimizer.parameters)
    parts = zip(names, optimizer.views(flat), strict=True)
    return {name: view.detach().cpu().numpy().copy() for name, view in parts}


def load_arrays(
    optimizer: FlatOptimizer,
    module: nn.Module,
    flat: torch.Tensor,
    arrays: dict[str, np.ndarray],
    kind: str,
) -> None:
    """Writes what `arrays_by_name` returned into a flat array; `kind` names it in errors."""
    names = names_in(module, optimizer.parameters)
    for name in sorted(set(names) ^ set(arrays)):
        raise CheckpointError(
            f"optimizer: expected the parameters of this policy, got a state with"
            f"{'out' if name in names else ''} {name!r}. "
            "Was network.* changed since the checkpoint?"
        )
    for name, view in zip(names, optimizer.views(flat), strict=True):
        value = arrays[name]
        if value.shape != tuple(view.shape):
            raise CheckpointError(
                f"optimizer: expected {kind} of {name} of shape {list(view.shape)}, "
                f"got {list(value.shape)}. Was network.* changed since the checkpoint?"
            )
        view.copy_(torch.from_numpy(value))


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
