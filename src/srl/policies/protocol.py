"""The interface of policies, as policy workers and algorithms use it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import torch
from torch import nn

from srl.data.spec import AgentSpec
from srl.data.tree import Tree


class Act(NamedTuple):
    """The answer of a policy, as tensors; the policy worker makes an InferenceReply of it."""

    action: torch.Tensor
    policy_state: Tree
    extras: Tree


class Policy(nn.Module, ABC):
    """Maps observations to actions. Its parameters and buffers together are the weights of a
    snapshot.

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
        policy_state: Tree,
        is_first: torch.Tensor,
        explore: torch.Tensor,
        action_mask: torch.Tensor | None,
        generator: torch.Generator,
    ) -> Act:
        """Chooses actions for [rows, ...] without gradients.

        Zeroes `policy_state` where `is_first`. `explore` is float32 [rows]: 1 samples, 0 is greedy.
        All randomness comes from `generator`. The caller reads the result before the next call,
        which may overwrite it.
        """

    def pack(self) -> None:
        """Prepares the policy for `act` after its weights were replaced.

        Until the next call only `act` uses the weights, so a policy may keep them in a form that
        acts faster.
        """
