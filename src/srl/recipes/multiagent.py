"""Several agents: opposing policies, teams, and turn-based games."""

from __future__ import annotations

import dataclasses
from typing import Any

from srl.envs.protocol import EnvConfig
from srl.experiment import Experiment, PolicyConfig
from srl.workers.actor import ActorConfig

_PPO: dict[str, Any] = {
    "name": "ppo",
    "rollout_length": 100,
    "epochs": 4,
    "minibatches": 4,
    "learning_rate": 1e-3,
    "gamma": 0.95,
    "entropy_coefficient": 0.01,
}
_NETWORK: dict[str, Any] = {
    "name": "actor_critic",
    "normalize_obs": True,
    "normalize_returns": True,
}


def simple_tag() -> Experiment:
    """Three slow chasers against one fast runner: two policies that learn from each other."""
    return Experiment(
        name="simple_tag",
        env=EnvConfig(id="pettingzoo:mpe2.simple_tag_v3"),
        policies={
            "chaser": PolicyConfig(agents=("adversary_*",)),
            "runner": PolicyConfig(agents=("agent_*",)),
        },
        actor=ActorConfig(envs=16),
        algorithm=_PPO,
        network=_NETWORK,
        steps=1_000_000,
    )


def simple_spread() -> Experiment:
    """Three agents cover three landmarks with one policy that all of them share."""
    return Experiment(
        name="simple_spread",
        env=EnvConfig(id="pettingzoo:mpe2.simple_spread_v3"),
        actor=ActorConfig(envs=16),
        algorithm=_PPO,
        network=_NETWORK,
        steps=1_000_000,
    )


def simple_spread_mappo() -> Experiment:
    """The same three agents by MAPPO, whose critic sees the global state."""
    return dataclasses.replace(
        simple_spread(),
        name="simple_spread_mappo",
        algorithm={**_PPO, "name": "mappo"},
        network={**_NETWORK, "shared": True},
    )


def simple_spread_vdn() -> Experiment:
    """The same three agents by VDN: what the team earns is learned as a sum."""
    return _simple_spread_by_values("vdn", 1e-3)


def simple_spread_qmix() -> Experiment:
    """The same three agents by QMIX: how values are mixed depends on the global state."""
    return _simple_spread_by_values("qmix", 5e-4)


def two_step_vdn() -> Experiment:
    """A game of two steps whose best return, 8, no sum of values finds: VDN ends at 7."""
    return _two_step("vdn")


def two_step_qmix() -> Experiment:
    """The same game by QMIX, which ends at 8."""
    return _two_step("qmix")


def tictactoe() -> Experiment:
    """Tic-tac-toe in turns, by self-play: one policy plays both sides."""
    return Experiment(
        name="tictactoe",
        env=EnvConfig(id="pettingzoo:classic.tictactoe_v3"),
        actor=ActorConfig(envs=16),
        algorithm={**_PPO, "gamma": 1.0},
        steps=500_000,
    )


def tictactoe_random() -> Experiment:
    """Tic-tac-toe in turns against an opponent that plays at random."""
    return Experiment(
        name="tictactoe_random",
        env=EnvConfig(id="pettingzoo:classic.tictactoe_v3"),
        policies={
            "learner": PolicyConfig(agents=("player_1",)),
            "opponent": PolicyConfig(agents=("player_2",), mode="random"),
        },
        actor=ActorConfig(envs=16),
        algorithm={**_PPO, "gamma": 1.0},
        steps=300_000,
        until="return/learner>=0.85",
    )


def _simple_spread_by_values(algorithm: str, learning_rate: float) -> Experiment:
    return dataclasses.replace(
        simple_spread(),
        name=f"simple_spread_{algorithm}",
        actor=ActorConfig(envs=8),
        algorithm={
            "name": algorithm,
            "learning_rate": learning_rate,
            "gamma": 0.95,
            "buffer_size": 50_000,
            # Few steps on many windows, and targets that move slowly: values of teams are noisy.
            "batch_size": 256,
            "updates_per_step": 0.1,
            "target_steps": 1,
            "tau": 0.01,
            "epsilon_steps": 20_000,
        },
        network={"name": "q_network", "normalize_obs": True},
        steps=60_000,
    )


def _two_step(algorithm: str) -> Experiment:
    return Experiment(
        name=f"two_step_{algorithm}",
        env=EnvConfig(id="srl.envs.tasks.two_step_game:TwoStepGame"),
        actor=ActorConfig(envs=16),
        algorithm={
            "name": algorithm,
            "learning_rate": 3e-3,
            "learning_starts": 500,
            "target_steps": 50,
            # Every joint action stays as likely as any other, as in the paper.
            "epsilon_end": 1.0,
        },
        network={"name": "q_network", "hidden_sizes": (64,)},
        steps=4000,
    )
