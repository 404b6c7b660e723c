"""The buffers of a policy (running statistics and others) beside its parameters, in an update."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from srl.algorithms.collective import Collective
from srl.errors import LearnError
from srl.policies.nets.norm import RunningNorm


class PolicyBuffers:
    """Keeps a policy's buffers equal on all ranks, and a copy of them for a rollback."""

    def __init__(self, policy: nn.Module) -> None:
        self._policy = policy
        self._collective = Collective()
        self._unsynced: list[torch.Tensor] = []
        """Buffers that each rank would change in a different way."""
        self._backup: list[torch.Tensor] = []

    def join(self, collective: Collective) -> None:
        """From now on, statistics are of the data of all ranks."""
        self._collective = collective
        together = collective.count > 1
        self._unsynced = []
        for module in self._policy.modules():
            if isinstance(module, RunningNorm):
                module.gather = collective.gather if together else None
            elif together:
                self._unsynced += module.buffers(recurse=False)

    def synchronize(self) -> None:
        """Replaces all buffers that are no running statistics by those of the first rank."""
        for buffer in self._unsynced:
            buffer.copy_(self._collective.gather(buffer)[0])

    def backup(self) -> None:
        """Copies all buffers into memory that is kept: no new pages for each update."""
        buffers = list(self._policy.buffers())
        if not self._backup:
            self._backup = [torch.empty_like(buffer) for buffer in buffers]
        for kept, buffer in zip(self._backup, buffers, strict=True):
            kept.copy_(buffer)

    def rollback(self) -> None:
        """Restores what the last `backup` copied."""
        for kept, buffer in zip(self._backup, self._policy.buffers(), strict=True):
            buffer.copy_(kept)


def track(method: Callable[..., None], *values: Any, update: int) -> None:
    """Calls a method of `TracksStatistics`; values that it refuses are an error of this update."""
    try:
        method(*values)
    except LearnError as error:
        raise LearnError(
            f"update {update}: {error} Look at what the environment returns."
        ) from None
