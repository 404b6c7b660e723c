"""The Q-network: a value for each action, for DQN and everything that is built on it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from srl.data.spec import AgentSpec, ArraySpec, Discrete
from srl.data.tree import Tree, flatten
from srl.errors import ConfigError
from srl.kernels.packed_values import PackedValues
from srl.kernels.towers import Layers, run_towers
from srl.policies.exploration import epsilon_greedy
from srl.policies.nets.encoder import Encoder, ObsNorm, flat_obs
from srl.policies.nets.encoder_choice import choose_encoder, num_outputs
from srl.policies.nets.mlp import MLP
from srl.policies.nets.norm import RunningNorm
from srl.policies.nets.recurrent import RecurrentCore, reset
from srl.policies.nets.value_head import ActionValueHead
from srl.policies.protocol import (
    Policy,
    PolicyOutput,
    TracksStatistics,
    ValueUnroll,
    require_discrete,
)
from srl.policies.q_network_config import QNetworkConfig


class QNetwork(Policy, TracksStatistics):
    """Takes the action with the highest value, and a random one with probability epsilon.

    It is also `ActionValues`, which DQN asks for, with or without memory, over nested observations
    and discrete actions. Actions that the environment does not allow are never taken. An encoder of
    your own is named by `network.encoder`, or made by an override of `make_encoder`.
    """

    Config = QNetworkConfig
    config: QNetworkConfig
    epsilon: torch.Tensor

    def __init__(self, agent: AgentSpec, config: QNetworkConfig) -> None:
        super().__init__(agent, config)
        require_discrete(agent, "network: q_network")
        assert isinstance(agent.action, Discrete)
        self.extras_spec: Tree = {}
        self.num_quantiles = config.num_quantiles
        # A buffer, because it is published with the weights.
        self.register_buffer("epsilon", torch.ones(()))
        self.obs_norm = ObsNorm(agent.obs) if config.normalize_obs else None
        self.encoder = self.make_encoder()
        width = num_outputs(self.encoder)
        self.core: RecurrentCore | None = None
        if config.recurrent != "none":
            self.core = RecurrentCore(width, config.recurrent_size, config.recurrent)
            self.state_spec = self.core.state_spec
            width = config.recurrent_size
        self.head = ActionValueHead(
            width,
            agent.action.n,
            num_quantiles=config.num_quantiles,
            dueling=config.dueling,
            hidden_sizes=config.head_sizes,
            activation=config.activation,
            gain=config.value_gain,
        )
        self._folded: tuple[torch.Tensor, torch.Tensor] | None = None
        """The head as one linear layer, since `pack`."""
        self._packed: PackedValues | None = None
        self._packed_epsilon = 1.0
        self._tower: Layers | None = None
        """All layers, if they are one MLP over numbers that kernels compute."""
        self._choose_kernels()

    def act(
        self,
        obs: Tree,
        policy_state: Tree,
        is_first: torch.Tensor,
        explore: torch.Tensor,
        action_mask: torch.Tensor | None,
        generator: torch.Generator,
    ) -> PolicyOutput:
        """Chooses actions for [rows, ...]: random ones with probability `epsilon * explore`."""
        if self._packed is not None:
            chosen = self._packed.act(obs, self._packed_epsilon, explore, action_mask, generator)
            return PolicyOutput(chosen, policy_state, {})
        features = self._features(flat_obs(obs))
        if self.core is not None:
            policy_state = self.core.step(features, reset(policy_state, is_first))
            features = policy_state["h"]
        folded = self._folded
        value = self.head.means(features) if folded is None else F.linear(features, *folded)
        chosen = epsilon_greedy(value, self.epsilon * explore, action_mask, generator)
        return PolicyOutput(chosen, policy_state, {})

    def pack(self) -> None:
        """Prepares one linear layer for `act` in place of the head, or a whole packed MLP."""
        self._folded = self.head.folded()
        if self._tower is None or self._folded is None or not self._can_pack:
            return
        layers = [*self._tower[:-1], self._folded]
        if self._packed is None:
            norm = None if self.obs_norm is None else self.obs_norm.norms[0]
            assert norm is None or isinstance(norm, RunningNorm)
            self._packed = PackedValues(layers, self.config.activation, norm)
        else:
            self._packed.load(layers)
        self._packed_epsilon = float(self.epsilon)

    def unroll_values(
        self, obs: Tree, policy_state: Tree, is_first: torch.Tensor, active: torch.Tensor
    ) -> ValueUnroll:
        """As `ActionValues.unroll_values`."""
        ticks, rows = is_first.shape
        leaves = {path: leaf.flatten(0, 1) for path, leaf in flatten(obs).items()}
        if self.core is None:
            value = self._values(leaves)
        else:
            features = self._features(leaves).view(ticks, rows, -1)
            hidden, policy_state = self.core.unroll(features, policy_state, is_first, active)
            value = self.head.forward(hidden.flatten(0, 1))
        return ValueUnroll(value.view(ticks, rows, *value.shape[1:]), policy_state)

    def set_epsilon(self, epsilon: float) -> None:
        """As `ActionValues.set_epsilon`."""
        self.epsilon.fill_(epsilon)

    def track_obs(self, obs: Tree, mask: torch.Tensor) -> None:
        """As `TracksStatistics.track_obs`."""
        if self.obs_norm is not None:
            self.obs_norm.track(flatten(obs), mask)

    def make_encoder(self) -> nn.Module:
        """Makes the module from observations to features; override it for an encoder of your own.

        The module maps a flat dict of observations ([N, ...] by path) to [N, num_outputs], and has
        an attribute `num_outputs`.
        """
        config = self.config
        return choose_encoder(self.agent.obs, config, config.encoder, config.encoder_args)

    def _features(self, leaves: dict[str, torch.Tensor]) -> torch.Tensor:
        if self.obs_norm is not None:
            leaves = self.obs_norm(leaves)
        features: torch.Tensor = self.encoder.forward(leaves)
        return features

    def _values(self, leaves: dict[str, torch.Tensor]) -> torch.Tensor:
        """Without memory: the values [N, actions], or quantiles [N, actions, quantiles]."""
        if self._tower is None:
            return self.head.forward(self._features(leaves))
        if self.obs_norm is not None:
            leaves = self.obs_norm(leaves)
        assert isinstance(self.encoder, Encoder)
        x = self.encoder.side_by_side(leaves)
        return self.head.values(run_towers(x, [self._tower], self.config.activation)[0])

    def _choose_kernels(self) -> None:
        """Chooses what computes, by `network.kernels`."""
        self.kernels = self.config.kernels
        for module in self.modules():
            if isinstance(module, MLP | RecurrentCore):
                module.use_kernels = self.kernels != "reference"
        why = self._why_no_tower()
        if self.kernels == "fast" and why and self.config.recurrent != "lstm":
            raise ConfigError(
                "network.kernels: for `fast` expected a network that has kernels (an LSTM, or an "
                f"MLP over numbers with a linear head), got {why}. Set network.kernels=auto."
            )
        last = self.head.last_layer
        if why or last is None or self.kernels == "reference":
            return
        assert isinstance(self.encoder, Encoder)
        self._tower = [*self.encoder.mlp.in_order, last]  # type: ignore[list-item]

    def _why_no_tower(self) -> str:
        """What keeps kernels from computing all layers; "" if nothing does."""
        if self.core is not None:
            return f"network.recurrent={self.config.recurrent}"
        if type(self.encoder) is not Encoder:
            return f"the encoder {type(self.encoder).__name__}"
        if not self.encoder.plain:
            return "images"
        return "network.head_sizes" if self.config.head_sizes else ""

    @property
    def _can_pack(self) -> bool:
        """Whether the MLP has a hidden layer, and reads one vector of floats."""
        obs = self.agent.obs
        return (
            self._tower is not None
            and len(self._tower) > 1
            and isinstance(obs, ArraySpec)
            and (obs.dtype, len(obs.seen_shape)) == ("float32", 1)
            and not obs.categories
            and self.epsilon.is_cpu
        )
