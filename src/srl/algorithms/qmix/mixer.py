"""The mixing network of QMIX, with the networks that make its weights (hypernetworks)."""

from __future__ import annotations

import torch
from torch import nn

from srl.algorithms.learning.team import CentralInput, Teams
from srl.algorithms.ops.mixing import monotonic_mixing
from srl.policies.nets.config import NetworkConfig
from srl.policies.nets.encoder import Encoder


class MixingNetwork(nn.Module):
    """Mixes the values of a team's agents, in a way that depends on what the team sees."""

    def __init__(
        self,
        central: CentralInput,
        network: NetworkConfig,
        *,
        units: int,
        hypernetwork_size: int,
    ) -> None:
        """`network` has the layers for images, if the team sees some."""
        super().__init__()
        self.central = central
        self.encoder = Encoder(
            central.spec, (), network.activation, network.image_features, network.convolutions
        )
        width = self.encoder.num_outputs
        self.shape = central.num_agents, units
        self.weight_1 = _layers(width, hypernetwork_size, central.num_agents * units)
        self.weight_2 = _layers(width, hypernetwork_size, units)
        self.bias_1 = nn.Linear(width, units)
        self.bias_2 = _layers(width, units, 1)

    def forward(
        self, value: torch.Tensor, present: torch.Tensor, teams: Teams, where: torch.Tensor
    ) -> torch.Tensor:
        """The values [T, e] of joint actions, from those of agents [T, e, agents]."""
        seen = self.encoder.forward(self.central.leaves(teams, where))
        mixed = monotonic_mixing(
            value.flatten(0, 1),
            present.flatten(0, 1),
            self.weight_1(seen).unflatten(1, self.shape),
            self.bias_1(seen),
            self.weight_2(seen),
            self.bias_2(seen).squeeze(1),
        )
        return mixed.view(where.shape)


def _layers(num_inputs: int, hidden: int, num_outputs: int) -> nn.Module:
    """A network with one hidden layer, or a linear layer for no hidden units."""
    if not hidden:
        return nn.Linear(num_inputs, num_outputs)
    layers = (nn.Linear(num_inputs, hidden), nn.ReLU(), nn.Linear(hidden, num_outputs))
    return nn.Sequential(*layers)
