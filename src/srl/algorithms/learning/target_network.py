"""A target network: a copy of modules that follows them slowly, for values to bootstrap from."""

from __future__ import annotations

import copy
from typing import Generic, TypeVar

import torch
from torch import nn

from srl.algorithms.learning.module_state import module_state, restore_module
from srl.data.tree import Tree

_Module = TypeVar("_Module", bound=nn.Module)


class TargetNetwork(Generic[_Module]):
    """A copy of a module, without gradients, which `step` moves towards the module.

    Every `every` gradient steps its weights move by the share `tau` of the difference. `tau=1`
    copies all of them (Mnih et al. 2015), a small one with `every=1` is the soft update of
    Lillicrap et al. 2016. Buffers, such as running statistics, are always copied. For several
    modules pass an `nn.ModuleList`.
    """

    def __init__(self, module: _Module, *, tau: float = 1.0, every: int = 1) -> None:
        self.tau = tau
        self.every = every
        self.num_steps = 0
        """Gradient steps counted so far."""
        self.module: _Module = copy.deepcopy(module).requires_grad_(False)
        """The copy. It is for `torch.no_grad` or a loss of other parameters."""
        self._source = module
        self._backup: dict[str, torch.Tensor] = {}
        self._backup_is_used = False
        self._num_steps_backup = 0

    @torch.no_grad()
    def step(self) -> None:
        """Counts a gradient step; call it right before the step. It first moves the copy, if that
        is due.

        The first call copies everything, because weights may have been loaded since the copy was
        made.
        """
        if self.num_steps % self.every == 0:
            self._keep_backup()
            self._move(self.tau if self.num_steps else 1.0)
        self.num_steps += 1

    def state(self) -> Tree:
        """{"num_steps": gradient steps, "weights": {name: array}}."""
        return {"num_steps": self.num_steps, "weights": module_state(self.module)}

    def restore(self, state: Tree) -> None:
        """Continues from `state`."""
        restore_module(self.module, state["weights"], "target network")
        self.num_steps = int(state["num_steps"])

    def backup(self) -> None:
        """Makes `rollback` return to now. The copy's weights are kept only once they change."""
        self._num_steps_backup = self.num_steps
        self._backup_is_used = False

    def rollback(self) -> None:
        """Restores what the last `backup` kept."""
        self.num_steps = self._num_steps_backup
        if self._backup_is_used:
            self.module.load_state_dict(self._backup)
            self._backup_is_used = False

    def _keep_backup(self) -> None:
        """Copies the weights into memory that is kept, before the first change after `backup`."""
        if self._backup_is_used:
            return
        self._backup_is_used = True
        now = self.module.state_dict()
        if not self._backup:
            self._backup = {name: torch.empty_like(tensor) for name, tensor in now.items()}
        for name, tensor in now.items():
            self._backup[name].copy_(tensor)

    def _move(self, tau: float) -> None:
        """Moves the parameters by the share `tau` of the difference, and copies the buffers."""
        targets: list[torch.Tensor] = list(self.module.parameters())
        sources: list[torch.Tensor] = list(self._source.parameters())
        if tau == 1.0:
            torch._foreach_copy_(targets, sources)
        else:
            torch._foreach_lerp_(targets, sources, tau)
        buffers = zip(self.module.buffers(), self._source.buffers(), strict=True)
        for target, source in buffers:
            target.copy_(source)
