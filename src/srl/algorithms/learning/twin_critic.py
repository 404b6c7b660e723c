"""Two critics of actions, with target networks: a value is the smaller one of two (Fujimoto et al.
2018)."""

from __future__ import annotations

import dataclasses

import torch
from torch import nn

from srl.algorithms.learning.adam import Adam
from srl.algorithms.learning.module_state import module_state, restore_module
from srl.algorithms.learning.step import Metrics, take_step
from srl.algorithms.learning.target_network import TargetNetwork
from srl.data.spec import AgentSpec
from srl.data.tree import Tree
from srl.kernels.dense import backward_pass, forward_pass, input_gradient, run_dense
from srl.kernels.towers import Layers
from srl.policies.nets.config import NetworkConfig
from srl.policies.nets.encoder_choice import choose_encoder, num_outputs
from srl.policies.nets.mlp import MLP, orthogonal


class TwinCritic(nn.Module):
    """Two networks from an observation and a unit action to a value each.

    They share what encodes images, if there are some.
    """

    def __init__(
        self,
        agent: AgentSpec,
        num_actions: int,
        hidden_sizes: tuple[int, ...],
        network: NetworkConfig,
    ) -> None:
        """Networks of the policy's kind (`network`), with layers of their own sizes."""
        super().__init__()
        self.activation = network.activation
        plain = dataclasses.replace(network, hidden_sizes=())
        self.encoder = choose_encoder(agent.obs, plain, network.encoder, network.encoder_args)
        width = num_outputs(self.encoder) + num_actions
        towers = [MLP(width, hidden_sizes, network.activation) for _ in range(2)]
        heads = [orthogonal(nn.Linear(tower.num_outputs, 1), 1.0) for tower in towers]
        self.towers, self.heads = nn.ModuleList(towers), nn.ModuleList(heads)
        self.use_kernels = network.kernels != "reference" and not list(self.encoder.parameters())
        """Whether kernels compute values and gradients."""
        for tower in towers:
            tower.use_kernels = self.use_kernels
        self.layers: list[Layers] = [
            [*tower.in_order, (head.weight, head.bias)]  # type: ignore[list-item]
            for tower, head in zip(towers, heads, strict=True)
        ]

    def forward(self, seen: dict[str, torch.Tensor], action: torch.Tensor) -> torch.Tensor:
        """Values [2, N] of unit actions [N, n], for observations by path as the policy sees
        them."""
        x = self.inputs(seen, action)
        if self.use_kernels:
            outputs = [run_dense(x, layers, self.activation) for layers in self.layers]
        else:
            pairs = zip(self.towers, self.heads, strict=True)
            outputs = [head(tower(x)) for tower, head in pairs]
        return torch.cat(outputs, 1).t()

    def inputs(self, seen: dict[str, torch.Tensor], action: torch.Tensor) -> torch.Tensor:
        """What both networks read [N, n]: the features of observations, and actions."""
        return torch.cat([self.encoder.forward(seen), action], 1)


class TwinCriticLearner:
    """A twin critic with its target network and its optimizer."""

    def __init__(
        self,
        critic: TwinCritic,
        *,
        learning_rate: float,
        tau: float,
        target_every: int = 1,
        max_grad_norm: float | None = None,
    ) -> None:
        """Every `target_every` steps the target moves by the share `tau`."""
        self.critic = critic
        self.max_grad_norm = max_grad_norm
        self.optimizer = Adam(critic.parameters(), lr=learning_rate, use_kernels=critic.use_kernels)
        self.target = TargetNetwork(critic, tau=tau, every=target_every)

    def follow(self) -> None:
        """Moves the target networks, if that is due; every gradient step begins with it."""
        self.target.step()

    @torch.no_grad()
    def target_value(self, seen: dict[str, torch.Tensor], action: torch.Tensor) -> torch.Tensor:
        """The smaller value [N] of the target critics."""
        value: torch.Tensor = self.target.module(seen, action).min(0).values
        return value

    def step(
        self,
        seen: dict[str, torch.Tensor],
        action: torch.Tensor,
        target: torch.Tensor,
        weight: torch.Tensor,
        update: int,
    ) -> Metrics:
        """One optimizer step of both critics towards `target` [N].

        `weight` [N] are the rows' weights in the loss. They add up to 1.
        """
        if self.critic.use_kernels:
            loss, value = self._gradients_by_hand(seen, action, target, weight)
        else:
            value = self.critic(seen, action)
            loss = 0.5 * ((value - target).square() * weight).sum()
            self.optimizer.zero_grad()
            loss.backward()
            loss, value = loss.detach(), value.detach()
        norm = take_step(self.optimizer, loss, self.max_grad_norm, update)
        return {
            "critic_loss": loss,
            "critic_grad_norm": loss.new_tensor(norm),
            "value": value[0].dot(weight),
        }

    def action_gradient(
        self, seen: dict[str, torch.Tensor], action: torch.Tensor, num_critics: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The least value [N] of the first critics for each row, and its gradient by the action
        [N, n].

        The gradient of an actor's loss is this one times that of the actor.
        """
        if self.critic.use_kernels:
            return self._action_gradient_by_hand(seen, action, num_critics)
        action = action.detach().requires_grad_()
        with torch.enable_grad():
            least = self.critic(seen, action)[:num_critics].min(0).values
            (gradient,) = torch.autograd.grad(least.sum(), action)
        return least.detach(), gradient

    @torch.no_grad()
    def _gradients_by_hand(
        self,
        seen: dict[str, torch.Tensor],
        action: torch.Tensor,
        target: torch.Tensor,
        weight: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The loss and the values [2, N]; writes the gradients of all weights."""
        critic = self.critic
        x = critic.inputs(seen, action)
        passes = [forward_pass(x, layers, critic.activation) for layers in critic.layers]
        value = torch.cat([out for out, _ in passes], 1).t()
        error = value - target
        of_value = error * weight
        for gradient, (_, inputs), layers in zip(of_value, passes, critic.layers, strict=True):
            backward_pass(gradient.unsqueeze(1), inputs, layers, critic.activation)
        return 0.5 * (error * of_value).sum(), value

    @torch.no_grad()
    def _action_gradient_by_hand(
        self, seen: dict[str, torch.Tensor], action: torch.Tensor, num_critics: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        critic = self.critic
        x = critic.inputs(seen, action)
        all_layers = critic.layers[:num_critics]
        passes = [forward_pass(x, layers, critic.activation) for layers in all_layers]
        least, which = torch.cat([out for out, _ in passes], 1).min(1)
        total = torch.zeros_like(action)
        for number, ((out, inputs), layers) in enumerate(zip(passes, all_layers, strict=True)):
            of_value = (which == number).to(out.dtype).unsqueeze(1)
            first = x.shape[1] - action.shape[1]
            total += input_gradient(of_value, inputs, layers, critic.activation, first)
        return least, total

    def state(self) -> Tree:
        """Weights, target and optimizer; none of them is in the policy."""
        return {
            "weights": module_state(self.critic),
            "target": self.target.state(),
            "optimizer": self.optimizer.state(self.critic),
        }

    def restore(self, state: Tree) -> None:
        """Continues from `state`."""
        restore_module(self.critic, state["weights"], "critics")
        self.target.restore(state["target"])
        self.optimizer.restore(self.critic, state["optimizer"])

    def backup(self) -> None:
        """Copies all that steps change into kept memory."""
        self.optimizer.backup()
        self.target.backup()

    def rollback(self) -> None:
        """Restores what the last `backup` copied."""
        self.optimizer.rollback()
        self.target.rollback()
