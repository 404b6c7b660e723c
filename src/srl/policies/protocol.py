"""What the policy worker and the algorithms ask of a policy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import torch
from torch import nn

from srl.data.spec import AgentSpec
from srl.data.tree import Tree


class Act(NamedTuple):
    """What a policy answers, as tensors; the policy worker makes an InferenceReply of it."""

    action: torch.Tensor
    state: Tree
    extras: Tree


class Policy(nn.Module, ABC):
    """Observation to action. Parameters and buffers together are what a snapshot carries.

    A policy is built as `PolicyClass(agent, config)` in every process that needs it, and found by
    import path.
    """

    Config: ClassVar[type]
    """The settings dataclass; its fields are `--set network.*`."""

    extras_spec: Tree
    """Tree of ArraySpec that each reply carries into the trajectory."""
    state_spec: Tree = None
    """Tree of ArraySpec of the policy state for one row, or None."""

    def __init__(self, agent: AgentSpec, config: Any) -> None:
        super().__init__()
        self.agent = agent
        self.config = config

    @abstractmethod
    def act(
        self,
        obs: Tree,
        state: Tree,
        is_first: torch.Tensor,
        explore: torch.Tensor,
        action_mask: torch.Tensor | None,
        generator: torch.Generator,
    ) -> Act:
        """Chooses actions for [rows, ...] without gradients; zeroes `state` where `is_first`.

        `explore` is float32 [rows]: 1 samples, 0 is greedy. All randomness comes from `generator`.
        What is returned is read before the next call, which may write it again.
        """

    def pack(self) -> None:
        """Told whenever the weights were replaced and will only be used by `act` until the next
        call: a policy may keep them in a form that acts faster."""
