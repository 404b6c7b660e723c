"""`PPOConfig(...)` and `ActorCriticConfig(...)` in place of dicts: the same run, the same files."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import srl
from srl.algorithms.ppo.config import PPOConfig
from srl.algorithms.ppo.learner import PPO
from srl.arguments import assemble
from srl.errors import ConfigError
from srl.launch.directory.config_file import encode_config
from srl.launch.plan.build import available_cores, filled_in, resolve_settings
from srl.policies.actor_critic import ActorCritic
from srl.policies.actor_critic_config import ActorCriticConfig


@dataclass(frozen=True, kw_only=True)
class OwnConfig(PPOConfig):
    extra: float = 1.0


class OwnPPO(PPO):
    Config = OwnConfig


@dataclass(frozen=True, kw_only=True)
class OwnNetConfig(ActorCriticConfig):
    features: int = 8


class OwnNet(ActorCritic):
    Config = OwnNetConfig


@dataclass(frozen=True)
class SharedConfig(PPOConfig):
    """Two algorithms have it."""


class First(PPO):
    Config = SharedConfig


class Second(PPO):
    Config = SharedConfig


@dataclass(frozen=True, kw_only=True)
class PlainConfig(srl.AlgorithmConfig):
    """Settings of an own algorithm, which the base class checks."""

    size: float = 1.0


@dataclass(frozen=True)
class PlainNetConfig:
    """Settings that nothing checks when they are made."""

    size: float = 1.0


class PlainNet(ActorCritic):
    Config = PlainNetConfig  # type: ignore[assignment]


@dataclass(frozen=True)
class NamedConfig:
    name: str = "x"


@dataclass(frozen=True)
class Stray:
    """Nobody's settings."""


ENV = srl.EnvConfig(id="CartPole-v1")
HERE = __name__


def test_an_object_is_the_dict_with_all_its_fields() -> None:
    experiment = srl.Experiment(
        env=ENV,
        algorithm=PPOConfig(epochs=2, rollout_length=32),
        network=ActorCriticConfig(hidden_sizes=(8, 8)),
    )
    as_dict = srl.Experiment(
        env=ENV,
        algorithm={"name": "ppo", "epochs": 2, "rollout_length": 32},
        network={"name": "actor_critic", "hidden_sizes": [8, 8]},
    )
    assert experiment.algorithm["name"] == "ppo"
    assert experiment.network["name"] == "actor_critic"
    assert filled_in(experiment) == filled_in(as_dict)
    again = dataclasses.replace(experiment, algorithm=PPOConfig(epochs=3))
    assert (again.algorithm["epochs"], again.network) == (3, experiment.network)


def test_objects_of_own_classes_name_these() -> None:
    experiment = srl.Experiment(env=ENV, algorithm=OwnConfig(extra=2.0), network=OwnNetConfig())
    assert experiment.algorithm["name"] == f"{HERE}:OwnPPO"
    assert experiment.algorithm["extra"] == 2.0
    assert experiment.network["name"] == f"{HERE}:OwnNet"


def test_train_takes_names_dicts_and_objects() -> None:
    def made(**given: Any) -> srl.Experiment:
        return assemble("cartpole", **given)

    recipe = made()
    whole = made(algorithm=PPOConfig(epochs=7), network=ActorCriticConfig(recurrent="gru"))
    assert whole.algorithm == {"name": "ppo", **dataclasses.asdict(PPOConfig(epochs=7))}
    assert whole.network["recurrent"] == "gru"
    some = made(algorithm={"epochs": 7}, network={"name": "actor_critic", "recurrent": "gru"})
    assert some.algorithm == {**recipe.algorithm, "epochs": 7}
    assert some.network == {**recipe.network, "recurrent": "gru"}
    assert made(network=f"{HERE}:OwnNet").network == {"name": f"{HERE}:OwnNet"}
    both = made(algorithm=PPOConfig(epochs=7), set={"algorithm.epochs": 5})
    assert both.algorithm["epochs"] == 5, "`set` names the setting itself"


def teams(**given: Any) -> srl.Experiment:
    return srl.Experiment(
        env=srl.EnvConfig(id="srl.testing.team_envs:ScriptedParallelEnv"),
        actor=srl.ActorConfig(envs=2),
        layout="serial",
        **given,
    )


def test_a_run_of_objects_has_the_folder_of_dicts_and_can_be_resumed(tmp_path: Path) -> None:
    """A policy with another class begins with that class's defaults."""
    small = {"rollout_length": 8, "minibatches": 1, "epochs": 1, "max_policy_age": 0}
    objects = teams(
        steps=16,
        algorithm=PPOConfig(**small),
        policies={
            "own": srl.PolicyConfig(
                agents=("early",),
                algorithm=OwnConfig(**small, extra=2.0),
                network=OwnNetConfig(hidden_sizes=(8,)),
            ),
            "plain": srl.PolicyConfig(network=ActorCriticConfig(hidden_sizes=(4,))),
        },
    )
    own = {"algorithm": {"name": f"{HERE}:OwnPPO"}, "network": {"name": f"{HERE}:OwnNet"}}
    dicts = teams(
        steps=16,
        algorithm={"name": "ppo", **small},
        policies={
            "own": srl.PolicyConfig(
                agents=("early",),
                algorithm=own["algorithm"] | dataclasses.asdict(OwnConfig(**small, extra=2.0)),
                network=own["network"] | dataclasses.asdict(OwnNetConfig(hidden_sizes=(8,))),
            ),
            "plain": srl.PolicyConfig(
                network={"name": "actor_critic"}
                | dataclasses.asdict(ActorCriticConfig(hidden_sizes=(4,)))
            ),
        },
    )
    run = srl.train(objects, run_dir=tmp_path / "run", quiet=True)
    written = (tmp_path / "run" / "config.yaml").read_bytes()
    assert written == encode_config(resolve_settings(dicts, available_cores(), "cpu"))
    more = srl.resume(run.path, steps=32, quiet=True)
    assert more.summary.env_steps >= 32
    assert isinstance(more.policies["own"].module, OwnNet)
    assert type(more.policies["plain"].module) is ActorCritic
    assert more.policies["plain"].module.config.hidden_sizes == (4,)
    assert set(more.evaluate(episodes=1).returns) == {"own", "plain"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"algorithm": "ppo"}, r"algorithm: expected a dict or a settings object such as srl\.PPO"),
        ({"network": ActorCriticConfig}, r"network: expected a dict or .* or make an object"),
        (
            {"algorithm": Stray()},
            r"algorithm: expected one imported subclass of Algorithm with `Co",
        ),
        ({"network": PPOConfig()}, r"network: expected one .* of Policy with `Config = PPOConfig`"),
        (
            {"algorithm": SharedConfig()},
            r"got several \(.*First, .*Second\)\. .* `name` is its import",
        ),
        ({"algorithm": NamedConfig()}, r"algorithm: expected a settings class without a field `na"),
        ({"network": PlainNetConfig(size="x")}, r"network\.size: expected float, got 'x'"),
        ({"network": PlainNetConfig(size=...)}, r"network\.size: expected a plain value .* Ellips"),
        ({"network": PlainNetConfig(size=float("nan"))}, r"network\.size: expected a number, got"),
    ],
    ids=[
        "name",
        "class",
        "stray",
        "other part",
        "shared",
        "name field",
        "type",
        "unset",
        "nan",
    ],
)
def test_what_cannot_be_settings_is_refused(given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        srl.Experiment(env=ENV, **given)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PPOConfig(epochs="4"), r"algorithm\.epochs: expected int, got '4'"),
        (lambda: PPOConfig(clip_reward="no"), r"algorithm\.clip_reward: expected .* got 'no'"),
        (lambda: PlainConfig(size="x"), r"algorithm\.size: expected float, got 'x'"),
        (lambda: PPOConfig(gamma=object()), r"algorithm\.gamma: expected a plain value .* object"),
        (lambda: ActorCriticConfig(recurrent="rnn"), r"network\.recurrent: expected .* got 'rnn'"),
        (lambda: ActorCriticConfig(hidden_sizes=64), r"network\.hidden_sizes: expected .* got 64"),
    ],
)
def test_a_wrong_field_is_refused_where_it_is_given(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_giving_objects_does_not_import_torch() -> None:
    code = (
        "import sys, srl\n"
        "srl.Experiment(env=srl.EnvConfig(id='x'), algorithm=srl.PPOConfig(),\n"
        "    network=srl.ActorCriticConfig())\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
