"""The temperature of SAC: the weight of the policy's entropy, fixed or learned."""

from __future__ import annotations

import math

import torch
from torch import nn

from srl.algorithms.learning.adam import Adam
from srl.algorithms.sac.config import SACConfig
from srl.data.tree import Tree


class Temperature(nn.Module):
    """The weight of the entropy; a learned one keeps the policy at a target entropy (Haarnoja et
    al. 2018b).

    It falls while the policy's entropy is above the target, and grows while it is below.
    """

    def __init__(self, config: SACConfig, num_actions: int, device: torch.device) -> None:
        super().__init__()
        self.learned = config.temperature is None
        fixed = config.initial_temperature if config.temperature is None else config.temperature
        given = config.target_entropy
        self.target_entropy = -float(num_actions) if given is None else given
        self.value = torch.tensor(fixed, device=device)
        """Tensor []: the weight now."""
        self.log = nn.Parameter(torch.tensor(math.log(fixed) if fixed else 0.0, device=device))
        """Its logarithm, which is what is learned."""
        rate = config.temperature_learning_rate
        self.optimizer = Adam(self.parameters(), lr=config.learning_rate if rate is None else rate)

    @torch.no_grad()
    def step(self, log_prob: torch.Tensor) -> None:
        """Moves a learned temperature by the policy's mean log probability []."""
        if not self.learned:
            return
        # The gradient of -log temperature * (log_prob + target entropy).
        self.optimizer.grad.copy_(-(log_prob + self.target_entropy))
        self.optimizer.step()
        self._refresh()

    @torch.no_grad()
    def _refresh(self) -> None:
        if self.learned:
            self.value.copy_(self.log.exp())

    def state(self) -> Tree:
        """Its logarithm and the optimizer's state."""
        return {"log": float(self.log.detach()), "optimizer": self.optimizer.state(self)}

    @torch.no_grad()
    def restore(self, state: Tree) -> None:
        """Continues from `state`."""
        self.log.fill_(state["log"])
        self.optimizer.restore(self, state["optimizer"])
        self._refresh()

    def backup(self) -> None:
        """Keeps a copy for `rollback`."""
        self.optimizer.backup()

    def rollback(self) -> None:
        """Restores what the last `backup` kept."""
        self.optimizer.rollback()
        self._refresh()
