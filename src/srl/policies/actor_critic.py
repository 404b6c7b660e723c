"""The actor-critic policy for PPO and similar algorithms, over any observation and action space."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from srl.data.spec import AgentSpec, ArraySpec, Box, Discrete
from srl.data.tree import Tree, flatten
from srl.policies.actor_critic_config import ActorCriticConfig
from srl.policies.distributions import Distribution
from srl.policies.nets.encoder import Encoder, ObsNorm, has_image
from srl.policies.nets.heads import ActionHead
from srl.policies.nets.mlp import orthogonal
from srl.policies.nets.norm import RunningNorm
from srl.policies.nets.recurrent import RecurrentCore, reset
from srl.policies.nets.towers import Layers, backward_pass, forward_pass, run_towers
from srl.policies.packed_actor import PackedActor
from srl.policies.protocol import Act, Policy


class Unroll(NamedTuple):
    """The outputs of a policy over a sequence, with gradients."""

    distribution: Distribution
    """The distribution over actions, [T, B]."""
    value: torch.Tensor
    """float32 [T, B], in units of reward."""
    policy_state: Tree
    """[B, ...] the policy state after the last tick, or None."""


class ForwardPass(NamedTuple):
    """The outputs of a policy for [N] observations, and the layer inputs for `backward_pass`."""

    distribution: Distribution
    value: torch.Tensor
    """float32 [N], in units of reward."""
    inputs: list[list[torch.Tensor]]
    """The input of each layer, by tower."""


class ActorCritic(Policy):
    """An actor and a critic, with or without memory, over nested observations and any action space.

    Beside `act`, an algorithm may use `unroll`, which has gradients. `track_obs` and
    `track_returns` update running statistics; the learner calls them with the batches that it
    consumes. For an encoder of your own, override `make_encoder`.
    """

    Config = ActorCriticConfig
    config: ActorCriticConfig

    def __init__(self, agent: AgentSpec, config: ActorCriticConfig) -> None:
        super().__init__(agent, config)
        self.extras_spec = {"log_prob": ArraySpec(), "value": ArraySpec()}
        recurrent = config.recurrent
        self.shared = config.shared
        if self.shared is None:
            self.shared = recurrent != "none" or has_image(agent.obs)
        self.obs_norm = ObsNorm(agent.obs) if config.normalize_obs else None
        self.return_scale = RunningNorm(()) if config.normalize_returns else None
        self.encoder = self.make_encoder()
        self.value_encoder = None if self.shared else self.make_encoder()
        width = int(self.encoder.num_outputs)  # type: ignore[arg-type]
        self.core: RecurrentCore | None = None
        if recurrent != "none":
            self.core = RecurrentCore(width, config.recurrent_size, recurrent)
            width = config.recurrent_size
            self.state_spec = {key: ArraySpec(shape=(width,)) for key in self.core.keys}
        self.action_head = ActionHead(
            width, agent.action, gain=config.policy_gain, initial_log_std=config.initial_log_std
        )
        self.value_head = orthogonal(nn.Linear(width, 1), config.value_gain)
        self._towers = self._make_towers()
        self._packed: PackedActor | None = None
        # Both towers have a hidden layer, and read one vector of floats.
        self._can_pack = (
            self._towers is not None
            and len(self._towers[0]) > 1
            and isinstance(agent.obs, ArraySpec)
            and (agent.obs.dtype, len(agent.obs.seen_shape)) == ("float32", 1)
            and not agent.obs.categories
        )

    def act(
        self,
        obs: Tree,
        policy_state: Tree,
        is_first: torch.Tensor,
        explore: torch.Tensor,
        action_mask: torch.Tensor | None,
        generator: torch.Generator,
    ) -> Act:
        """Chooses actions for [rows, ...], and returns their log probabilities and values, too.

        `explore` is the sampling temperature. `log_prob` is always that of the policy itself.
        """
        if self._packed is not None:
            return self._packed.act(obs, explore, action_mask, generator)
        if self.core is None:
            out, value = self._outputs(_flat(obs))
        else:
            features, _ = self._features(_flat(obs))
            policy_state = self.core.step(features, reset(policy_state, is_first))
            out, value = self._heads(policy_state["h"], policy_state["h"])
        distribution = self.action_head.distribution(out, action_mask)
        action, log_prob = distribution.draw(generator, explore)
        return Act(action, policy_state, {"log_prob": log_prob, "value": value})

    def pack(self) -> None:
        """Packs two plain towers for `act`, with values in units of reward; does nothing for
        others."""
        if not self._can_pack:
            return
        assert self._towers is not None
        actor, critic = self._towers
        if self.return_scale is not None:
            weight, bias = critic[-1]
            std = self.return_scale.std
            critic = [*critic[:-1], (weight * std, bias * std)]
        if self._packed is None:
            norm = None if self.obs_norm is None else self.obs_norm.norms[0]
            assert norm is None or isinstance(norm, RunningNorm)
            activation = self.config.activation
            self._packed = PackedActor((actor, critic), activation, self.action_head, norm)
        else:
            self._packed.load((actor, critic))

    def unroll(
        self,
        obs: Tree,
        policy_state: Tree,
        is_first: torch.Tensor,
        active: torch.Tensor,
        action_mask: torch.Tensor | None = None,
    ) -> Unroll:
        """The distribution and the value at every tick of [T, B, ...], with gradients.

        `policy_state` [B, ...] is the state that was fed in at the first tick. `active` [T, B]
        marks the ticks at which the policy was asked (acted or truncated). At other ticks the
        policy state does not change, and the outputs mean nothing.
        """
        ticks, rows = is_first.shape
        flat_obs = {path: leaf.flatten(0, 1) for path, leaf in flatten(obs).items()}
        if self.core is None:
            out, value = self._outputs(flat_obs)
            out, value = out.view(ticks, rows, -1), value.view(ticks, rows)
        else:
            features, _ = self._features(flat_obs)
            features = features.reshape(ticks, rows, -1)
            hidden, policy_state = self.core.unroll(features, policy_state, is_first, active)
            out, value = self._heads(hidden, hidden)
        return Unroll(self.action_head.distribution(out, action_mask), value, policy_state)

    @property
    def has_manual_gradients(self) -> bool:
        """Whether `forward_pass` and `backward_pass` can replace `unroll` and autograd."""
        action = self.agent.action
        known = isinstance(action, Discrete) or (isinstance(action, Box) and len(action.shape) == 1)
        return self._towers is not None and known

    def forward_pass(self, obs: Tree, action_mask: torch.Tensor | None) -> ForwardPass:
        """The distribution and the value of [N, ...] without a graph, if `has_manual_gradients`."""
        assert self._towers is not None
        x = self._tower_input(_flat(obs))
        (out, value), inputs = forward_pass(x, self._towers, self.config.activation)
        distribution = self.action_head.distribution(out, action_mask)
        return ForwardPass(distribution, self._in_units_of_reward(value), inputs)

    def backward_pass(
        self,
        forward: ForwardPass,
        action: torch.Tensor,
        of_log_prob: torch.Tensor,
        of_entropy: float,
        of_value: torch.Tensor,
    ) -> None:
        """Overwrites the gradients of all parameters.

        `of_log_prob`, `of_entropy` and `of_value` are the loss gradients of [N] log probabilities
        of actions, entropies and values.
        """
        assert self._towers is not None
        gradients = forward.distribution.backward_pass(action, of_log_prob, of_entropy)
        assert gradients is not None
        if len(gradients) == 2:
            log_std = self.action_head.log_std.grad
            if log_std is not None:  # None where the user has fixed the deviation.
                log_std.copy_(gradients[1])
        if self.return_scale is not None:
            of_value = of_value * self.return_scale.std
        of_outputs = (gradients[0], of_value.unsqueeze(-1))
        backward_pass(of_outputs, forward.inputs, self._towers, self.config.activation)

    @property
    def value_scale(self) -> torch.Tensor | float:
        """Units of reward per unit of the critic's output; a value loss divides by it."""
        return 1.0 if self.return_scale is None else self.return_scale.std

    def track_obs(self, obs: Tree, mask: torch.Tensor) -> None:
        """Updates the observation statistics with the single frames [T, B, ...] where `mask` [T, B]
        is set."""
        if self.obs_norm is not None:
            self.obs_norm.track(flatten(obs), mask)

    @torch.no_grad()
    def track_returns(self, returns: torch.Tensor) -> None:
        """Updates the return statistics with [N] returns, and rescales the critic's last layer.

        No value changes by that (van Hasselt et al. 2016, "Learning values across many orders of
        magnitude"). The first returns only set the unit in which a fresh critic predicts. Unlike in
        the paper, only the scale is normalised. With the mean subtracted, the critic would
        take an unknown situation for an average one.
        """
        if self.return_scale is None:
            return
        fresh, old_std = not float(self.return_scale.count), self.return_scale.std
        self.return_scale.track(returns, "returns (rewards or values)")
        if fresh:
            return
        for parameter in self.value_head.parameters():
            parameter.mul_(old_std / self.return_scale.std)

    def make_encoder(self) -> nn.Module:
        """Makes the module from observations to features; override it for an encoder of your own.

        The module maps a flat dict of observations ([N, ...] by path) to [N, num_outputs], and has
        an attribute `num_outputs`. The critic gets a module of its own unless `network.shared`.
        """
        config = self.config
        return Encoder(
            self.agent.obs,
            config.hidden_sizes,
            config.activation,
            config.image_features,
            config.convolutions,
        )

    def _make_towers(self) -> list[Layers] | None:
        """The layers of actor and critic, if both are MLPs over the same input; else None."""
        actor, critic = self.encoder, self.value_encoder
        # Exact types, because a subclass of Encoder may treat its input in another way.
        if type(actor) is not Encoder or type(critic) is not Encoder or not actor.plain:
            return None
        heads = (self.action_head.linear, self.value_head)
        return [
            [*encoder.mlp.in_order, (head.weight, head.bias)]  # type: ignore[list-item]
            for encoder, head in zip((actor, critic), heads, strict=True)
        ]

    def _outputs(self, flat_obs: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """Without memory: the parameters of the distribution [N, n], and the value [N]."""
        if self._towers is None:
            return self._heads(*self._features(flat_obs))
        x = self._tower_input(flat_obs)
        out, value = run_towers(x, self._towers, self.config.activation)
        return out, self._in_units_of_reward(value)

    def _tower_input(self, flat_obs: dict[str, Any]) -> torch.Tensor:
        """The input of both towers: [N, n]."""
        if self.obs_norm is not None:
            flat_obs = self.obs_norm(flat_obs)
        assert isinstance(self.encoder, Encoder)
        return self.encoder.side_by_side(flat_obs)

    def _features(self, flat_obs: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """The features for the actor and for the critic: [N, n] each."""
        if self.obs_norm is not None:
            flat_obs = self.obs_norm(flat_obs)
        actor = self.encoder.forward(flat_obs)
        return actor, actor if self.value_encoder is None else self.value_encoder.forward(flat_obs)

    def _heads(
        self, actor: torch.Tensor, critic: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Features [..., n] to the parameters of the distribution, and the value [...]."""
        value = F.linear(critic, self.value_head.weight, self.value_head.bias)
        return self.action_head.forward(actor), self._in_units_of_reward(value)

    def _in_units_of_reward(self, value: torch.Tensor) -> torch.Tensor:
        value = value.squeeze(-1)
        if self.return_scale is not None:
            value = value * self.return_scale.std
        return value


def _flat(obs: Tree) -> dict[str, torch.Tensor]:
    return {"": obs} if isinstance(obs, torch.Tensor) else flatten(obs)
