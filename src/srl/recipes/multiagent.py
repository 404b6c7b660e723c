"""Several agents: opposing policies, one policy for a team, and turn-based games."""

from __future__ import annotations

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
