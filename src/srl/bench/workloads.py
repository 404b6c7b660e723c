"""The workloads on which speed is measured, as data. They are the same for SRL and every peer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from srl.envs.protocol import EnvConfig
from srl.errors import ConfigError, nearest
from srl.experiment import Experiment, PolicyConfig
from srl.recipes import RECIPES
from srl.workers.actor import ActorConfig


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One line of the table of workloads. Settings that it does not name are equal for all."""

    env: str
    """The environment's id, from EnvPool where EnvPool has it."""
    about: str
    """A short description."""
    envs: int
    """Environments in all actors together."""
    horizon: int
    """Steps of each environment in a batch."""
    epochs: int
    minibatches: int
    learning_rate: float = 2.5e-4
    entropy: float = 0.01
    algorithm: Mapping[str, Any] = field(default_factory=dict)
    """Other settings of the algorithm."""
    network: Mapping[str, Any] = field(default_factory=dict)
    """Other settings of the network."""
    policies: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: {"default": ("*",)})
    """Each policy, and the agents that it controls."""


EQUAL = {
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "clip": 0.2,
    "value_coefficient": 0.5,
    "max_grad_norm": 0.5,
    "normalize_advantages": True,
    "learning_rate_schedule": "constant",
    "adam_eps": 1e-5,
}
"""Settings of PPO that are equal in every workload, for SRL and for every peer."""

PLAIN = {"normalize_obs": False, "normalize_returns": False}
"""Only advantages are normalised, per minibatch."""

TWO_TOWERS = {"hidden_sizes": [64, 64], "activation": "tanh", "shared": False}
"""Actor and critic have separate networks."""

_CARTPOLE = "envpool:CartPole-v1"
_PONG = "envpool:Pong-v5"
_CHEETAH: dict[str, Any] = {
    "env": "envpool:HalfCheetah-v5",
    "learning_rate": 3e-4,
    "entropy": 0.0,
    "network": TWO_TOWERS,
}

WORKLOADS: dict[str, Workload] = {
    "W1a": Workload(
        env=_CARTPOLE,
        about="CartPole-v1, two MLP towers 64x64",
        envs=64,
        horizon=32,
        epochs=1,
        minibatches=1,
        network=TWO_TOWERS,
    ),
    "W1b": Workload(
        env=_CARTPOLE,
        about="CartPole-v1, two MLP towers 64x64",
        envs=64,
        horizon=16,
        epochs=4,
        minibatches=4,
        network=TWO_TOWERS,
    ),
    "W2a": Workload(
        env=_PONG,
        about="Pong from 84x84x4 pixels, Nature CNN",
        envs=8,
        horizon=128,
        epochs=1,
        minibatches=4,
    ),
    "W2b": Workload(
        env=_PONG,
        about="Pong from 84x84x4 pixels, Nature CNN",
        envs=8,
        horizon=128,
        epochs=4,
        minibatches=4,
    ),
    "W3a": Workload(
        about="HalfCheetah-v5, two MLP towers 64x64",
        envs=64,
        horizon=32,
        epochs=1,
        minibatches=1,
        **_CHEETAH,
    ),
    "W3b": Workload(
        about="HalfCheetah-v5, two MLP towers 64x64",
        envs=64,
        horizon=32,
        epochs=4,
        minibatches=4,
        **_CHEETAH,
    ),
    "W4": Workload(
        env="srl.envs.tasks.masked_pool:MaskedPool",
        about="CartPole-v1 without velocities, MLP 64x64 and LSTM 128, sequences of 16",
        envs=64,
        horizon=32,
        epochs=1,
        minibatches=1,
        algorithm={"chunk_length": 16},
        network={"hidden_sizes": [64, 64], "recurrent": "lstm", "recurrent_size": 128},
    ),
    "W5": Workload(
        env="pettingzoo:mpe2.simple_tag_v3",
        about="simple_tag: three chasers and a runner, a policy each, two MLP towers 64x64",
        envs=16,
        horizon=64,
        epochs=4,
        minibatches=4,
        network=TWO_TOWERS,
        policies={"chaser": ("adversary_*",), "runner": ("agent_*",)},
    ),
}


def experiment_of(name: str) -> Experiment:
    """The experiment of a workload. It trains until it is told to stop."""
    if name not in WORKLOADS:
        raise ConfigError(f"no workload is named {name!r}: {nearest(name, WORKLOADS)}")
    workload = WORKLOADS[name]
    return Experiment(
        name=name,
        env=EnvConfig(id=workload.env),
        actor=ActorConfig(envs=workload.envs),
        algorithm={
            "name": "ppo",
            **EQUAL,
            "rollout_length": workload.horizon,
            "epochs": workload.epochs,
            "minibatches": workload.minibatches,
            "learning_rate": workload.learning_rate,
            "entropy_coefficient": workload.entropy,
            **workload.algorithm,
        },
        network={"name": "actor_critic", **PLAIN, **workload.network},
        policies={n: PolicyConfig(agents=agents) for n, agents in workload.policies.items()},
    )


def find_target(
    name: str,
    layout: str | None,
    settings: Mapping[str, Any],
    env_args: dict[str, Any] | None = None,
) -> Experiment:
    """The experiment behind a workload, a recipe or an environment, ready to be measured.

    It has no end of its own, because the measurement ends it. It has no evaluation and no
    checkpoints in between, because its results are not kept.
    """
    from srl.arguments import assemble

    target: Any = experiment_of(name) if name in WORKLOADS else name
    try:
        return assemble(
            target,
            layout=layout,
            until="none",
            env_args=env_args,
            set={
                "evaluator.count": 0,
                "steps": 0,
                "checkpoint.every_seconds": ENDLESS_SECONDS,
                **settings,
                "seconds": ENDLESS_SECONDS,
            },
        )
    except ConfigError as error:
        if ":" in name or name in RECIPES or "no recipe or environment" not in str(error):
            raise
        raise ConfigError(
            f"no workload, recipe or environment is named {name!r}: workloads are "
            f"{', '.join(WORKLOADS)}; `srl list` has the others."
        ) from None


ENDLESS_SECONDS = 3600.0
"""A measured run that nothing ends ends by itself after this time."""
