"""QMIX (Rashid et al. 2018): the value of a joint action is a monotonic mixture of what each
agent's part of it is worth, and how it is mixed depends on what the team sees."""

from __future__ import annotations

import torch
from torch import nn

from srl.algorithms.learning.sequences import Sequences
from srl.algorithms.learning.team import CentralInput, Teams, require_view
from srl.algorithms.qmix.config import QMIXConfig
from srl.algorithms.qmix.mixer import MixingNetwork
from srl.algorithms.vdn.learner import VDN
from srl.policies.nets.config import NetworkConfig
from srl.policies.protocol import Policy

CLIP = 3.0
"""Bound of what the mixing network sees, in standard deviations, where it is normalised. Weights of
two layers are functions of it, so that far from what was seen a mixture would grow without limit,
and targets would follow it."""


class QMIX(VDN):
    """VDN with a mixing network in place of the sum."""

    Config = QMIXConfig
    config: QMIXConfig

    @classmethod
    def check(cls, config: QMIXConfig, policy: Policy) -> None:  # type: ignore[override]
        """It also needs what the mixing network is to see."""
        super().check(config, policy)
        require_view(policy, config.mixing_input, "mixing_input")

    def make_modules(self) -> dict[str, nn.Module]:
        """The mixing network; it normalises what it sees if the policy does."""
        config, network = self.config, self.policy.config
        if not isinstance(network, NetworkConfig):
            network = NetworkConfig()
        policy = self.policy
        central = CentralInput(
            policy.agent, policy.team, config.mixing_input, network.normalize_obs, CLIP
        )
        mixer = MixingNetwork(
            central,
            network,
            units=config.mixing_units,
            hypernetwork_size=config.hypernetwork_size,
        )
        return {"mixer": mixer}

    def mix(
        self,
        networks: nn.Module,
        value: torch.Tensor,
        present: torch.Tensor,
        teams: Teams,
        where: torch.Tensor,
    ) -> torch.Tensor:
        """The values [T, e] of joint actions, from those of agents [T, e, agents]."""
        mixer = networks.get_submodule("own.mixer")
        mixed: torch.Tensor = mixer(value, present, teams, where)
        return mixed

    def _track_obs(self, sequences: Sequences) -> None:
        """Also updates the statistics of what teams see."""
        super()._track_obs(sequences)
        mixer = self.own_modules["mixer"]
        assert isinstance(mixer, MixingNetwork)
        mixer.central.track(sequences, self.num_updates)
