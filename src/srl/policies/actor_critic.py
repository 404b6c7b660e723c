"""The actor-critic policy for PPO and similar algorithms, over any observation and action space."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from srl.data.spec import AgentSpec, ArraySpec
from srl.data.tree import Tree, flatten
from srl.errors import ConfigError
from srl.policies.actor_critic_config import ActorCriticConfig
from srl.policies.fast_towers import FastTowers, why_no_towers
from srl.policies.nets.encoder import flat_obs, has_image
from srl.policies.nets.encoder_choice import (
    choose_encoder,
    make_obs_norm,
    num_outputs,
    select_obs,
)
from srl.policies.nets.heads import ActionHead
from srl.policies.nets.mlp import MLP, orthogonal
from srl.policies.nets.norm import RunningNorm, track_returns
from srl.policies.nets.recurrent import RecurrentCore, reset
from srl.policies.protocol import Policy, PolicyOutput, Unroll


class ActorCritic(Policy):
    """An actor and a critic over nested observations and any action space.

    Each is an encoder, a memory (or none), and a head. They share all but the heads, or nothing
    (`network.shared`); then each has a memory of its own, and may read other observations. It is
    also `Unrolls` and `TracksStatistics`, which PPO asks for. An encoder of your own is named by
    `network.encoder`, or made by an override of `make_encoder`.
    """

    Config = ActorCriticConfig
    config: ActorCriticConfig

    def __init__(self, agent: AgentSpec, config: ActorCriticConfig) -> None:
        super().__init__(agent, config)
        self.extras_spec = {"log_prob": ArraySpec(), "value": ArraySpec()}
        recurrent = config.recurrent
        self.shared = config.shared
        if self.shared is None:
            alike = not config.has_own_critic_encoder
            self.shared = alike and (recurrent != "none" or has_image(agent.obs))
        self.return_scale = RunningNorm(()) if config.normalize_returns else None
        self.encoder = self.make_encoder()
        normalize = config.normalize_obs
        self.obs_norm = make_obs_norm(self.encoder, agent.obs) if normalize else None
        self.value_encoder = None if self.shared else self.make_critic_encoder()
        width = num_outputs(self.encoder)
        value_width = width if self.value_encoder is None else num_outputs(self.value_encoder)
        self.core: RecurrentCore | None = None
        self.value_core: RecurrentCore | None = None
        if recurrent != "none":
            size = config.recurrent_size
            self.core = RecurrentCore(width, size, recurrent)
            self.state_spec = self.core.state_spec
            if not self.shared:
                self.value_core = RecurrentCore(value_width, size, recurrent)
                self.state_spec = {"actor": self.state_spec, "critic": self.state_spec}
            width = value_width = size
        self.action_head = ActionHead(
            width, agent.action, gain=config.policy_gain, initial_log_std=config.initial_log_std
        )
        self.value_head = orthogonal(nn.Linear(value_width, 1), config.value_gain)
        self._towers = self._choose_kernels()

    def act(
        self,
        obs: Tree,
        policy_state: Tree,
        is_first: torch.Tensor,
        explore: torch.Tensor,
        action_mask: torch.Tensor | None,
        generator: torch.Generator,
    ) -> PolicyOutput:
        """Chooses actions for [rows, ...], and returns their log probabilities and values, too.

        `explore` is the sampling temperature. `log_prob` is always that of the policy itself.
        """
        if self._towers is not None and self._towers.packed is not None:
            return self._towers.act(obs, explore, action_mask, generator)
        if self.core is None:
            out, value = self._outputs(flat_obs(obs))
        else:
            actor, critic, policy_state = self._step(flat_obs(obs), policy_state, is_first)
            out, value = self._heads(actor, critic)
        distribution = self.action_head.distribution(out, action_mask)
        action, log_prob = distribution.draw(generator, explore)
        return PolicyOutput(action, policy_state, {"log_prob": log_prob, "value": value})

    def pack(self) -> None:
        """Packs two plain towers for `act`; does nothing for other networks."""
        if self._towers is not None:
            self._towers.pack()

    def unroll(
        self,
        obs: Tree,
        policy_state: Tree,
        is_first: torch.Tensor,
        active: torch.Tensor,
        action_mask: torch.Tensor | None = None,
    ) -> Unroll:
        """As `Unrolls.unroll`."""
        ticks, rows = is_first.shape
        leaves = {path: leaf.flatten(0, 1) for path, leaf in flatten(obs).items()}
        if self.core is None:
            out, value = self._outputs(leaves)
            out, value = out.view(ticks, rows, -1), value.view(ticks, rows)
        else:
            actor, critic = (x.reshape(ticks, rows, -1) for x in self._features(leaves))
            if self.value_core is None:
                actor, policy_state = self.core.unroll(actor, policy_state, is_first, active)
                critic = actor
            else:
                own, other = policy_state["actor"], policy_state["critic"]
                actor, own = self.core.unroll(actor, own, is_first, active)
                critic, other = self.value_core.unroll(critic, other, is_first, active)
                policy_state = {"actor": own, "critic": other}
            out, value = self._heads(actor, critic)
        return Unroll(self.action_head.distribution(out, action_mask), value, policy_state)

    @property
    def value_scale(self) -> torch.Tensor | float:
        """As `TracksStatistics.value_scale`."""
        return 1.0 if self.return_scale is None else self.return_scale.std

    def track_obs(self, obs: Tree, mask: torch.Tensor) -> None:
        """As `TracksStatistics.track_obs`."""
        if self.obs_norm is not None:
            self.obs_norm.track(flatten(obs), mask)

    def track_returns(self, returns: torch.Tensor) -> None:
        """As `TracksStatistics.track_returns`."""
        if self.return_scale is not None:
            track_returns(self.return_scale, self.value_head, returns)

    def make_encoder(self) -> nn.Module:
        """Makes the module from observations to features; override it for an encoder of your own.

        The module maps a flat dict of observations ([N, ...] by path) to [N, num_outputs], and has
        an attribute `num_outputs`.
        """
        config = self.config
        obs = select_obs(self.agent.obs, config.actor_obs, "network.actor_obs")
        return choose_encoder(obs, config, config.encoder, config.encoder_args)

    def make_critic_encoder(self) -> nn.Module:
        """Makes the critic's module from observations to features, unless `network.shared`.

        By default it is one like the actor's, but for the settings `network.critic_*`.
        """
        config = self.config
        if not config.has_own_critic_encoder:
            return self.make_encoder()
        obs = select_obs(self.agent.obs, config.critic_obs, "network.critic_obs")
        name, args = config.critic_encoder, config.critic_encoder_args
        if name is None:
            name, args = config.encoder, {**config.encoder_args, **args}
        return choose_encoder(obs, config, name, args, "network.critic_encoder")

    def _choose_kernels(self) -> FastTowers | None:
        """Chooses what computes, by `network.kernels`; returns kernels for all layers, if any."""
        self.kernels = self.config.kernels
        for module in self.modules():
            if isinstance(module, MLP | RecurrentCore):
                module.use_kernels = self.kernels != "reference"
        if self.config.recurrent == "none":
            why = why_no_towers(self)
        else:
            why = "" if self.config.recurrent == "lstm" else "network.recurrent=gru"
        if why and self.kernels == "fast":
            raise ConfigError(
                "network.kernels: for `fast` expected a network that has kernels (an LSTM, or two "
                f"MLPs over the same numbers as actor and critic), got {why}. "
                "Set network.kernels=auto."
            )
        if why or self.core is not None or self.kernels == "reference":
            return None
        towers = FastTowers(self)
        if towers.has_gradients and type(self).unroll is ActorCritic.unroll:
            self.manual_gradients = towers
        return towers

    def _outputs(self, leaves: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Without memory: the parameters of the distribution [N, n], and the value [N]."""
        if self._towers is None:
            return self._heads(*self._features(leaves))
        out, value = self._towers.outputs(leaves)
        return out, self._in_units_of_reward(value)

    def _features(self, leaves: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """The features for the actor and for the critic: [N, n] each."""
        if self.obs_norm is not None:
            leaves = self.obs_norm(leaves)
        actor = self.encoder.forward(leaves)
        return actor, actor if self.value_encoder is None else self.value_encoder.forward(leaves)

    def _step(
        self, leaves: dict[str, torch.Tensor], state: Tree, is_first: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, Tree]:
        """With memory: what the heads of actor and critic read after one tick, and the state."""
        assert self.core is not None
        actor, critic = self._features(leaves)
        if self.value_core is None:
            state = self.core.step(actor, reset(state, is_first))
            return state["h"], state["h"], state
        own = self.core.step(actor, reset(state["actor"], is_first))
        other = self.value_core.step(critic, reset(state["critic"], is_first))
        return own["h"], other["h"], {"actor": own, "critic": other}

    def _heads(
        self, actor: torch.Tensor, critic: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Features [..., n] to the parameters of the distribution, and the value [...]."""
        value = F.linear(critic, self.value_head.weight, self.value_head.bias)
        return self.action_head.forward(actor), self._in_units_of_reward(value.squeeze(-1))

    def _in_units_of_reward(self, value: torch.Tensor) -> torch.Tensor:
        return value if self.return_scale is None else value * self.return_scale.std
