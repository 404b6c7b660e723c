"""What policies over bounded real-valued actions share: the network, the bounds and uniform
actions.

Inside, an action is a vector of numbers from -1 to 1 (a *unit action*). The environment and the
replay have actions between the bounds of the Box.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from math import prod
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import nn

from srl.data.spec import AgentSpec, Box
from srl.data.tree import Tree, flatten
from srl.errors import ConfigError
from srl.kernels.dense import run_dense
from srl.kernels.towers import Layers
from srl.policies.bounded_actor_config import BoundedActorConfig
from srl.policies.nets.encoder import Encoder, flat_obs
from srl.policies.nets.encoder_choice import choose_encoder, make_obs_norm, num_outputs
from srl.policies.nets.mlp import orthogonal
from srl.policies.protocol import Policy, PolicyOutput


class BoundedActor(Policy):
    """Base class of policies without memory that choose inside of finite bounds."""

    config: BoundedActorConfig
    name: ClassVar[str]
    """Its short name, for errors."""
    uniform: torch.Tensor
    """Share of the exploring actions that are uniform, instead of the policy's own. A learner sets
    it."""

    def __init__(self, agent: AgentSpec, config: BoundedActorConfig, outputs: int) -> None:
        """A network with so many outputs for each number of an action."""
        super().__init__(agent, config)
        self.extras_spec = {}
        self.kernels = config.kernels
        box = _bounded(agent, self.name)
        self.num_actions = prod(box.shape)
        """Numbers of an action."""
        low, high = torch.tensor(box.low), torch.tensor(box.high)
        self._middle = nn.Buffer((high + low) / 2, persistent=False)
        self._half = nn.Buffer((high - low) / 2, persistent=False)
        self._is_unit = set(box.low) == {-1.0} and set(box.high) == {1.0}
        self.uniform = nn.Buffer(torch.zeros(()))
        self.encoder = choose_encoder(agent.obs, config, config.encoder, config.encoder_args)
        self.obs_norm = make_obs_norm(self.encoder, agent.obs) if config.normalize_obs else None
        width = num_outputs(self.encoder)
        self.head = orthogonal(nn.Linear(width, outputs * self.num_actions), config.policy_gain)
        self._layers = self._plain_layers()
        if config.kernels == "fast" and self._layers is None:
            raise ConfigError(
                "network.kernels: for `fast` expected an MLP over numbers, got "
                f"{'images' if config.encoder == 'auto' else 'another encoder'}. "
                "Set network.kernels=auto."
            )

    @abstractmethod
    def explore(
        self, out: torch.Tensor, explore: torch.Tensor, generator: torch.Generator
    ) -> torch.Tensor:
        """Unit actions [rows, n] from the network's output; `explore` [rows, 1] is 0 for the best
        action."""

    def act(
        self,
        obs: Tree,
        policy_state: Tree,
        is_first: torch.Tensor,
        explore: torch.Tensor,
        action_mask: torch.Tensor | None,
        generator: torch.Generator,
    ) -> PolicyOutput:
        """Chooses actions for [rows, ...]; `explore` scales the noise and the share `uniform`."""
        column = explore.unsqueeze(1)
        action = self.explore(self.outputs(self.seen(obs)), column, generator)
        if bool(self.uniform > 0):
            chance = torch.rand(column.shape, generator=generator, device=action.device)
            anything = torch.empty_like(action).uniform_(-1.0, 1.0, generator=generator)
            action = torch.where(chance < self.uniform * column, anything, action)
        return PolicyOutput(self.scaled(action), policy_state, self.extras_spec)

    def seen(self, obs: Tree) -> dict[str, torch.Tensor]:
        """Observations [N, ...] by path, normalised if that is set."""
        leaves = flat_obs(obs)
        return leaves if self.obs_norm is None else self.obs_norm(leaves)

    def outputs(self, seen: dict[str, torch.Tensor]) -> torch.Tensor:
        """The network's output [N, outputs] for what `seen` returned."""
        if self._layers is None or self.kernels == "reference":
            return F.linear(self.encoder.forward(seen), self.head.weight, self.head.bias)
        assert isinstance(self.encoder, Encoder)
        return run_dense(self.encoder.side_by_side(seen), self._layers, self.config.activation)

    def scaled(self, unit_action: torch.Tensor) -> torch.Tensor:
        """Unit actions [N, n] as actions [N, *shape] between the bounds."""
        action = unit_action if self._is_unit else self._middle + self._half * unit_action
        assert isinstance(self.agent.action, Box)
        return action.view(-1, *self.agent.action.shape)

    def unit(self, action: torch.Tensor) -> torch.Tensor:
        """The inverse of `scaled`."""
        flat = action.reshape(len(action), self.num_actions)
        if self._is_unit:
            return flat
        # The bounds of a number may be equal: then there is nothing to choose.
        return (flat - self._middle) / self._half.masked_fill(self._half == 0, 1.0)

    def _plain_layers(self) -> Layers | None:
        """The layers of the network if it is an MLP over numbers, which kernels compute."""
        # The exact type, because a subclass may treat its input in another way.
        if type(self.encoder) is not Encoder or not self.encoder.plain:
            return None
        return [*self.encoder.mlp.in_order, (self.head.weight, self.head.bias)]  # type: ignore[list-item]

    def track_obs(self, obs: Tree, mask: torch.Tensor) -> None:
        """Updates the observation statistics with the single frames [T, B, ...] where `mask` is
        set."""
        if self.obs_norm is not None:
            self.obs_norm.track(flatten(obs), mask)


def _bounded(agent: AgentSpec, name: str) -> Box:
    """The space of an agent's actions; raises unless it is a Box with finite bounds."""
    action = agent.action
    if not isinstance(action, Box):
        raise ConfigError(
            f"network: {name} expects real-valued actions (Box), got {type(action).__name__}. Use "
            "another algorithm: --algorithm dqn for Discrete actions, ppo for any."
        )
    for number, (low, high) in enumerate(zip(action.low, action.high, strict=True)):
        if low is None or high is None or not math.isfinite(high - low):
            raise ConfigError(
                f"network: {name} expects actions with finite bounds, got [{low:g}, {high:g}] for "
                f"number {number} of the action. Give the environment's action_space finite bounds "
                "(in a wrapper that takes actions in [-1, 1] and scales them), or use --algorithm "
                "ppo."
            )
    return action
