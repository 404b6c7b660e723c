"""Optimizers of `torch.optim`, and of packages that follow it, in place of SRL's own Adam."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import numpy as np
import torch
from torch import nn

from srl.algorithms.learning.flat_optimizer import FlatOptimizer, names_in
from srl.data.tree import Tree
from srl.errors import CheckpointError, ConfigError


def as_flat(made: Any, policy: nn.Module, learning_rate: float) -> FlatOptimizer:
    """Adapts the optimizer that a user's `make_optimizer` returned to PPO.

    `learning_rate` is the first one of the algorithm's schedule.
    """
    if isinstance(made, torch.optim.Optimizer):
        return TorchOptimizer(made, policy, learning_rate)
    if not isinstance(made, FlatOptimizer):
        raise ConfigError(
            "make_optimizer: expected a torch.optim.Optimizer or "
            f"srl.algorithms.learning.adam.Adam, got {type(made).__name__}."
        )
    trained = [name for name, p in policy.named_parameters() if p.requires_grad]
    missing = sorted(set(trained) - set(names_in(policy, made.parameters)))
    if missing:
        raise ConfigError(
            f"make_optimizer: expected {type(made).__name__} with all parameters that require a "
            f"gradient, got it without {missing[0]!r}. Set requires_grad=False for those that are "
            "fixed."
        )
    return made


class TorchOptimizer(FlatOptimizer):
    """A `torch.optim` optimizer over all or some parameters of a policy.

    It keeps its own learning rates, and the algorithm's schedule scales them. Clipping, and sums
    over trainers, include the gradients of all parameters that require one.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, policy: nn.Module, learning_rate: float
    ) -> None:
        closure = inspect.signature(type(optimizer).step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:
            raise ConfigError(
                "make_optimizer: expected an optimizer that steps by the existing gradient, "
                f"got {type(optimizer).__name__}, which evaluates the loss again in each step. "
                "Use another one."
            )
        if isinstance(optimizer, torch.optim.SparseAdam):
            raise ConfigError(
                "make_optimizer: expected an optimizer of dense gradients, got SparseAdam, which "
                "takes sparse ones only. Use torch.optim.Adam."
            )
        super().__init__(policy.parameters())
        self.optimizer = optimizer
        self._initial_rate = learning_rate
        self._own_rates = [float(group.get("lr", 0.0)) for group in optimizer.param_groups]
        self._flat_backup = torch.empty_like(self.flat)
        self._state_backup: dict[str, Any] = {}
        self._names_of(policy)

    @property
    def lr(self) -> float:
        """The learning rate of the first group of parameters."""
        return float(self.optimizer.param_groups[0].get("lr", 0.0))

    @lr.setter
    def lr(self, rate: float) -> None:
        for group, own in zip(self.optimizer.param_groups, self._own_rates, strict=True):
            if isinstance(group.get("lr"), torch.Tensor):
                group["lr"].fill_(own * (rate / self._initial_rate))
            else:
                group["lr"] = own * (rate / self._initial_rate)

    def step(self) -> None:
        """Moves the parameters that the optimizer holds."""
        self.optimizer.step()

    def backup(self) -> None:
        """Copies the weights, and the state of the optimizer."""
        self._flat_backup.copy_(self.flat)
        self._state_backup = copy.deepcopy(self.optimizer.state_dict())

    def rollback(self) -> None:
        """Restores what the last `backup` copied."""
        self.flat.copy_(self._flat_backup)
        # The optimizer uses the given tensors themselves, so the backup must stay a copy.
        self.optimizer.load_state_dict(copy.deepcopy(self._state_backup))

    def state(self, module: nn.Module) -> Tree:
        """{"kind": its class, "state": {parameter: the optimizer's state for it}, "groups": the
        settings of each group of parameters}."""
        names, full = self._names_of(module), self.optimizer.state_dict()
        return {
            "kind": type(self.optimizer).__name__,
            "state": {
                names[key] if isinstance(key, int) else key: _plain(kept)
                for key, kept in full["state"].items()
            },
            "groups": [
                {key: _plain(value) for key, value in group.items() if key != "params"}
                for group in full["param_groups"]
            ],
        }

    def restore(self, module: nn.Module, state: Tree) -> None:
        """Restores what `state` returned."""
        kind, names = type(self.optimizer).__name__, self._names_of(module)
        if state.get("kind") != kind:
            raise CheckpointError(
                f"optimizer: expected a state of {kind}, got one of {state.get('kind', 'Adam')}. "
                "Was make_optimizer changed since the checkpoint?"
            )
        groups = self.optimizer.state_dict()["param_groups"]
        numbers = {name: number for number, name in enumerate(names)}
        saved = {numbers.get(name, name): _tensors(kept) for name, kept in state["state"].items()}
        if len(groups) != len(state["groups"]):
            raise CheckpointError(
                f"optimizer: expected a state with {len(groups)} groups of parameters, got one "
                f"with {len(state['groups'])}. Was make_optimizer changed since the checkpoint?"
            )
        put = [
            {**_tensors(own), "params": group["params"]}
            for own, group in zip(state["groups"], groups, strict=True)
        ]
        self.optimizer.load_state_dict({"state": saved, "param_groups": put})

    def _names_of(self, module: nn.Module) -> list[str]:
        """The name of each parameter that the optimizer holds, in its own order."""
        mine = [p for group in self.optimizer.param_groups for p in group["params"]]
        return names_in(module, mine)


def _plain(value: Any) -> Any:
    """Tensors as arrays, in dicts, lists and tuples."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().numpy().copy()
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_plain(inner) for inner in value)
    return value


def _tensors(value: Any) -> Any:
    """The inverse of `_plain`."""
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.copy())
    if isinstance(value, dict):
        return {key: _tensors(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_tensors(inner) for inner in value)
    return value
