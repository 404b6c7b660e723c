"""Kernels for a policy of two towers: an actor and a critic that are MLPs over the same input."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from srl.data.spec import ArraySpec, Box, Discrete
from srl.data.tree import Tree
from srl.kernels.distributions import categorical_gradient, gaussian_gradient
from srl.kernels.packed_actor import PackedActor
from srl.kernels.towers import Layers, backward_pass, forward_pass, run_towers
from srl.policies.distributions import Categorical, DiagGaussian
from srl.policies.nets.encoder import Encoder, flat_obs
from srl.policies.nets.norm import RunningNorm
from srl.policies.protocol import ForwardPass, PolicyOutput

if TYPE_CHECKING:
    from srl.policies.actor_critic import ActorCritic


class FastTowers:
    """What `ActorCritic` computes with its modules, computed by kernels with the same weights."""

    def __init__(self, policy: ActorCritic) -> None:
        """For a policy in which `why_no_towers` finds nothing."""
        assert isinstance(policy.encoder, Encoder)
        assert isinstance(policy.value_encoder, Encoder)
        self._encoder = policy.encoder
        self._obs_norm = policy.obs_norm
        self._return_scale = policy.return_scale
        self._activation = policy.config.activation
        self._head = policy.action_head
        self._towers: list[Layers] = [
            [*encoder.mlp.in_order, (head.weight, head.bias)]  # type: ignore[list-item]
            for encoder, head in (
                (policy.encoder, policy.action_head.linear),
                (policy.value_encoder, policy.value_head),
            )
        ]
        obs, action = policy.agent.obs, policy.agent.action
        # Both towers have a hidden layer, and read one vector of floats.
        self._can_pack = (
            len(self._towers[0]) > 1
            and isinstance(obs, ArraySpec)
            and (obs.dtype, len(obs.seen_shape)) == ("float32", 1)
            and not obs.categories
        )
        self.has_gradients = isinstance(action, Discrete) or (
            isinstance(action, Box) and len(action.shape) == 1
        )
        """Whether `forward_pass` and `backward_pass` know the distribution of the actions."""
        self.packed: PackedActor | None = None
        """What `act` uses, once `pack` was called for a network that can be packed."""

    def pack(self) -> None:
        """Packs the current weights for `act`, with values in units of reward."""
        if not self._can_pack:
            return
        actor, critic = self._towers
        if self._return_scale is not None:
            weight, bias = critic[-1]
            std = self._return_scale.std
            critic = [*critic[:-1], (weight * std, bias * std)]
        if self.packed is None:
            norm = None if self._obs_norm is None else self._obs_norm.norms[0]
            assert norm is None or isinstance(norm, RunningNorm)
            make_sampler = self._head.make_sampler
            self.packed = PackedActor((actor, critic), self._activation, make_sampler, norm)
        else:
            self.packed.load((actor, critic))

    def act(
        self,
        obs: torch.Tensor,
        explore: torch.Tensor,
        action_mask: torch.Tensor | None,
        generator: torch.Generator,
    ) -> PolicyOutput:
        """As `Policy.act`, after `pack`."""
        assert self.packed is not None
        sampled = self.packed.act(obs, explore, action_mask, generator)
        if sampled is not None:
            action, log_prob, value = sampled
        else:
            out, value = self.packed.outputs(obs)
            action, log_prob = self._head.distribution(out, action_mask).draw(generator, explore)
        return PolicyOutput(action, None, {"log_prob": log_prob, "value": value})

    def outputs(self, leaves: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """The parameters of the distribution [N, n], and the value [N] in the critic's units."""
        out, value = run_towers(self._input(leaves), self._towers, self._activation)
        return out, value.squeeze(-1)

    def forward_pass(self, obs: Tree, action_mask: torch.Tensor | None) -> ForwardPass:
        """As `ManualGradients.forward_pass`."""
        x = self._input(flat_obs(obs))
        (out, value), inputs = forward_pass(x, self._towers, self._activation)
        value = value.squeeze(-1)
        if self._return_scale is not None:
            value = value * self._return_scale.std
        return ForwardPass(self._head.distribution(out, action_mask), value, inputs)

    def backward_pass(
        self,
        forward: ForwardPass,
        action: torch.Tensor,
        of_log_prob: torch.Tensor,
        of_entropy: float,
        of_value: torch.Tensor,
    ) -> None:
        """As `ManualGradients.backward_pass`."""
        match forward.distribution:
            case Categorical(log_probs=log_probs):
                of_out = categorical_gradient(log_probs, action, of_log_prob, of_entropy)
            case DiagGaussian(mean=mean, log_std=log_std):
                of_out, of_log_std = gaussian_gradient(
                    mean, log_std, action, of_log_prob, of_entropy
                )
                if self._head.log_std.grad is not None:  # None where the user has fixed it.
                    self._head.log_std.grad.copy_(of_log_std)
            case other:
                raise TypeError(f"expected a distribution with gradients, got {other!r}")
        if self._return_scale is not None:
            of_value = of_value * self._return_scale.std
        of_outputs = (of_out, of_value.unsqueeze(-1))
        backward_pass(of_outputs, forward.inputs, self._towers, self._activation)

    def _input(self, leaves: dict[str, torch.Tensor]) -> torch.Tensor:
        """The input of both towers: [N, n]."""
        if self._obs_norm is not None:
            leaves = self._obs_norm(leaves)
        return self._encoder.side_by_side(leaves)


def why_no_towers(policy: ActorCritic) -> str:
    """Why a policy without memory has no kernels, in words for its user; empty if it has some."""
    for encoder in (policy.encoder, policy.value_encoder):
        if encoder is None:
            return "an actor and a critic that share their layers (network.shared)"
        # Exact types, because a subclass of Encoder may treat its input in another way.
        if type(encoder) is not Encoder:
            return f"an encoder of type {type(encoder).__name__}"
        if not encoder.plain:
            return "images"
    if policy.config.actor_obs != policy.config.critic_obs:
        return "an actor and a critic that read different observations"
    return ""
