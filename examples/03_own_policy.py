"""Train a network of your own.

    python examples/03_own_policy.py [FOLDER]

A policy turns observations into actions. The shortest way to one of your own is to keep the actor
and the critic of `ActorCritic`, with its heads for every kind of action and its memory, and to
replace the encoder between the observation and those: here by random Fourier features, with which a
plain linear layer can follow curves. (For a policy that shares nothing with it, subclass
`srl.policies.protocol.Policy`; PPO then asks for `Unrolls` and `TracksStatistics` too.)

The settings of the network are a dataclass. Its fields can be set like any other: by an object
here, by `--set network.features=128` on the command line.
"""

import sys
from dataclasses import dataclass

import torch
from torch import nn

import srl
from srl.policies.actor_critic import ActorCritic, ActorCriticConfig


@dataclass(frozen=True, kw_only=True)
class FourierConfig(ActorCriticConfig):
    """Settings of FourierPolicy."""

    features: int = 64
    """Random directions; each gives a sine and a cosine."""
    bandwidth: float = 0.5
    """How quickly the features change with the observation."""


class FourierEncoder(nn.Module):
    """[N, n] observations to [N, 2 * features]."""

    def __init__(self, num_inputs: int, features: int, bandwidth: float) -> None:
        super().__init__()
        self.num_outputs = 2 * features
        # A buffer is not trained, but it travels with the weights and is in every checkpoint.
        self.register_buffer("directions", bandwidth * torch.randn(num_inputs, features))

    def forward(self, flat_obs: dict[str, torch.Tensor]) -> torch.Tensor:
        # Observations are flat dicts, path to tensor; one that is a plain array has the path "".
        (obs,) = flat_obs.values()
        angles = obs.float() @ self.directions
        return torch.cat([angles.sin(), angles.cos()], dim=-1)


class FourierPolicy(ActorCritic):
    """An actor and a critic that are linear in Fourier features of the observation."""

    Config = FourierConfig
    config: FourierConfig

    def make_encoder(self) -> nn.Module:
        (num_inputs,) = self.agent.obs.shape
        return FourierEncoder(num_inputs, self.config.features, self.config.bandwidth)


if __name__ == "__main__":
    folder = sys.argv[1] if len(sys.argv) > 1 else "runs/example_03"
    run = srl.train(
        "cartpole",
        steps=60_000,
        run_dir=folder,
        # On the command line: --set network.name=examples/03_own_policy.py:FourierPolicy
        network=FourierConfig(features=128, normalize_obs=True),
    )
    print(run.policy.module)
    print(f"return: {run.evaluate(episodes=20).mean:.0f}, of at most 500; at random: about 22")
