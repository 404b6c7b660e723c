"""The policy that PPO and its kin train: an actor and a critic over any observation and action
space."""

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
from srl.policies.nets.towers import Layers, pull, push, run_towers
from srl.policies.packed_actor import PackedActor
from srl.policies.protocol import Act, Policy


class Unroll(NamedTuple):
    """What a policy says about a sequence, with gradients."""

    distribution: Distribution
    """Over the actions of [T, B]."""
    value: torch.Tensor
    """float32 [T, B], in units of reward."""
    state: Tree
    """[B, ...] the policy state after the last tick, or None."""


class Pushed(NamedTuple):
    """What a policy says about [N] observations, and what it needs to find gradients itself."""

    distribution: Distribution
    value: torch.Tensor
    """float32 [N], in units of reward."""
    inputs: list[list[torch.Tensor]]
    """What each layer of each tower has read."""


class ActorCritic(Policy):
    """An actor and a critic, with or without memory, over nested observations and any action space.

    What an algorithm may use beside `act`: `unroll` with gradients, and two places for running
    statistics, `track_obs` and `track_returns`, which the learner feeds from the batches it
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
        self.return_norm = RunningNorm(()) if config.normalize_returns else None
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
        # One vector for both towers.
        self._packs = (
            self._towers is not None
            and len(self._towers[0]) > 1
            and isinstance(agent.obs, ArraySpec)
            and (agent.obs.dtype, len(agent.obs.seen_shape)) == ("float32", 1)
            and not agent.obs.categories
        )

    def act(
        self,
        obs: Tree,
        state: Tree,
        is_first: torch.Tensor,
        explore: torch.Tensor,
        action_mask: torch.Tensor | None,
        generator: torch.Generator,
    ) -> Act:
        """Actions, their log probabilities and values for [rows, ...].

        `explore` is the temperature of the draw; `log_prob` is always that of the policy itself.
        """
        if self._packed is not None:
            return self._packed.act(obs, explore, action_mask, generator)
        if self.core is None:
            out, value = self._outputs(_flat(obs))
        else:
            features, _ = self._features(_flat(obs))
            state = self.core.step(features, reset(state, is_first))
            out, value = self._heads(state["h"], state["h"])
        distribution = self.action_head.distribution(out, action_mask)
        action, log_prob = distribution.draw(generator, explore)
        return Act(action, state, {"log_prob": log_prob, "value": value})

    def pack(self) -> None:
        """Two plain towers are packed for `act`, with values in units of reward."""
        if not self._packs:
            return
        assert self._towers is not None
        actor, critic = self._towers
        if self.return_norm is not None:
            weight, bias = critic[-1]
            mean, std = self.return_norm.mean, self.return_norm.std
            critic = [*critic[:-1], (weight * std, torch.addcmul(mean, bias, std))]
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
        state: Tree,
        is_first: torch.Tensor,
        active: torch.Tensor,
        action_mask: torch.Tensor | None = None,
    ) -> Unroll:
        """The distribution and the value at every tick of [T, B, ...], with gradients.

        `state` [B, ...] is what was fed in at the first tick. `active` [T, B] marks the ticks at
        which the policy was asked (acted or truncated): at others memory is held, and what is
        returned there means nothing.
        """
        ticks, rows = is_first.shape
        flat_obs = {path: leaf.flatten(0, 1) for path, leaf in flatten(obs).items()}
        if self.core is None:
            out, value = self._outputs(flat_obs)
            out, value = out.view(ticks, rows, -1), value.view(ticks, rows)
        else:
            features, _ = self._features(flat_obs)
            features = features.reshape(ticks, rows, -1)
            hidden, state = self.core.unroll(features, state, is_first, active)
            out, value = self._heads(hidden, hidden)
        return Unroll(self.action_head.distribution(out, action_mask), value, state)

    @property
    def pulls(self) -> bool:
        """Whether `push` and `pull` can take the place of `unroll` and its graph."""
        action = self.agent.action
        known = isinstance(action, Discrete) or (isinstance(action, Box) and len(action.shape) == 1)
        return self._towers is not None and known

    def push(self, obs: Tree, action_mask: torch.Tensor | None) -> Pushed:
        """The distribution and the value of [N, ...] without a graph, if the policy `pulls`."""
        assert self._towers is not None
        x = self._side_by_side(_flat(obs))
        (out, value), inputs = push(x, self._towers, self.config.activation)
        distribution = self.action_head.distribution(out, action_mask)
        return Pushed(distribution, self._in_units_of_reward(value), inputs)

    def pull(
        self,
        pushed: Pushed,
        action: torch.Tensor,
        of_log_prob: torch.Tensor,
        of_entropy: float,
        of_value: torch.Tensor,
    ) -> None:
        """Writes the gradients of all parameters over those that are there, from the gradients of
        [N] log probabilities of actions, entropies and values."""
        assert self._towers is not None
        found = pushed.distribution.pull(action, of_log_prob, of_entropy)
        assert found is not None
        if len(found) == 2:
            log_std = self.action_head.log_std.grad
            if log_std is not None:  # It is, where somebody has fixed the deviation.
                log_std.copy_(found[1])
        if self.return_norm is not None:
            of_value = of_value * self.return_norm.std
        outputs = (found[0], of_value.unsqueeze(-1))
        pull(outputs, pushed.inputs, self._towers, self.config.activation)

    @property
    def value_scale(self) -> torch.Tensor | float:
        """Units of reward per unit of the critic's output; a value loss divides by it."""
        return 1.0 if self.return_norm is None else self.return_norm.std

    def track_obs(self, obs: Tree, mask: torch.Tensor) -> None:
        """Takes single frames [T, B, ...] where `mask` [T, B] into the observation statistics."""
        if self.obs_norm is not None:
            self.obs_norm.track(flatten(obs), mask)

    @torch.no_grad()
    def track_returns(self, returns: torch.Tensor) -> None:
        """Takes [N] returns into the statistics and rescales the critic's last layer so that no
        value changes.

        (van Hasselt et al. 2016, "Learning values across many orders of magnitude".)
        """
        if self.return_norm is None:
            return
        old_mean, old_std = self.return_norm.mean.clone(), self.return_norm.std
        self.return_norm.track(returns, "returns (rewards or values)")
        new_mean, new_std = self.return_norm.mean, self.return_norm.std
        self.value_head.weight.mul_(old_std / new_std)
        bias = self.value_head.bias
        assert bias is not None
        bias.copy_((bias * old_std + old_mean - new_mean) / new_std)

    def make_encoder(self) -> nn.Module:
        """What stands between observations and the rest; to be overridden for one of your own.

        It maps a flat dict of observations ([N, ...] by path) to [N, num_outputs], and has an
        attribute `num_outputs`. The critic gets another one unless `network.shared`.
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
        """The layers of actor and critic, where these are two MLPs over the same numbers."""
        actor, critic = self.encoder, self.value_encoder
        # (One that derives from it may do something else with what it sees.)
        if type(actor) is not Encoder or type(critic) is not Encoder or not actor.plain:
            return None
        heads = (self.action_head.linear, self.value_head)
        return [
            [*encoder.mlp.in_order, (head.weight, head.bias)]  # type: ignore[list-item]
            for encoder, head in zip((actor, critic), heads, strict=True)
        ]

    def _outputs(self, flat_obs: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """Without memory: what the distribution is made of [N, n], and the value [N]."""
        if self._towers is None:
            return self._heads(*self._features(flat_obs))
        x = self._side_by_side(flat_obs)
        out, value = run_towers(x, self._towers, self.config.activation)
        return out, self._in_units_of_reward(value)

    def _side_by_side(self, flat_obs: dict[str, Any]) -> torch.Tensor:
        """What both towers read: [N, n]."""
        if self.obs_norm is not None:
            flat_obs = self.obs_norm(flat_obs)
        assert isinstance(self.encoder, Encoder)
        return self.encoder.side_by_side(flat_obs)

    def _features(self, flat_obs: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """What the actor and the critic read: [N, n] each."""
        if self.obs_norm is not None:
            flat_obs = self.obs_norm(flat_obs)
        actor = self.encoder.forward(flat_obs)
        return actor, actor if self.value_encoder is None else self.value_encoder.forward(flat_obs)

    def _heads(
        self, actor: torch.Tensor, critic: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Features [..., n] to what the distribution is made of, and the value [...]."""
        value = F.linear(critic, self.value_head.weight, self.value_head.bias)
        return self.action_head.forward(actor), self._in_units_of_reward(value)

    def _in_units_of_reward(self, value: torch.Tensor) -> torch.Tensor:
        value = value.squeeze(-1)
        if self.return_norm is not None:
            value = torch.addcmul(self.return_norm.mean, value, self.return_norm.std)
        return value


def _flat(obs: Tree) -> dict[str, torch.Tensor]:
    return {"": obs} if isinstance(obs, torch.Tensor) else flatten(obs)
