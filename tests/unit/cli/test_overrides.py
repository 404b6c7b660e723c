"""Settings by dotted key, and the list of them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from srl.algorithms.registry import ALGORITHMS, algorithm_config, find_algorithm
from srl.envs.protocol import EnvConfig
from srl.errors import ConfigError
from srl.experiment import Experiment, PolicyConfig
from srl.overrides import list_settings, override, parse_number, parse_pairs


@pytest.fixture
def experiment():
    return Experiment(
        env=EnvConfig(id="CartPole-v1"),
        policies={"a": PolicyConfig(agents=("x",)), "b": PolicyConfig(agents=("y",))},
        algorithm={"name": "ppo", "gamma": 0.5},
    )


@pytest.mark.parametrize(
    ("text", "number"),
    [("200000", 200_000), ("200_000", 200_000), ("1e6", 10**6), ("2M", 2 * 10**6), ("1.5k", 1500)],
)
def test_numbers_as_people_write_them(text, number):
    assert parse_number(text, "steps") == number


@pytest.mark.parametrize("text", ["", "x", "1.5", "2T", "-3", "1e", "nan"])
def test_what_is_no_whole_number_is_refused(text):
    with pytest.raises(ConfigError, match="steps: expected a whole number"):
        parse_number(text, "steps")


def test_values_are_yaml_and_exponents_are_numbers():
    pairs = ["a=1e-3", "b=[64, 64]", "c=true", "d=text", "e=null", "f=x=y", "g=[1e-3]"]
    assert parse_pairs(pairs, "--set") == {
        "a": 1e-3,
        "b": [64, 64],
        "c": True,
        "d": "text",
        "e": None,
        "f": "x=y",
        "g": [1e-3],
    }


def test_every_kind_of_key_is_set(experiment):
    changed = override(
        experiment,
        {
            "actor.envs": 4,
            "steps": "2M",
            "algorithm.learning_rate": "1e-3",
            "network.hidden_sizes": [8, 8],
            "policies.b.mode": "random",
            "policies.a.algorithm.gamma": 0.7,
            "env.args.size": 3,
            "trainer.threads": 2,
        },
    )
    assert (changed.actor.envs, changed.steps, changed.trainer.threads) == (4, 2_000_000, 2)
    assert changed.algorithm == {"name": "ppo", "gamma": 0.5, "learning_rate": "1e-3"}
    assert changed.network["hidden_sizes"] == [8, 8]
    assert (changed.policies["a"].mode, changed.policies["b"].mode) == ("train", "random")
    assert changed.policies["a"].algorithm == {"gamma": 0.7}
    assert changed.env.args == {"size": 3}
    assert experiment.actor.envs == 16


def test_another_algorithm_forgets_the_settings_of_the_first(experiment):
    path = "srl.algorithms.ppo.learner:PPO"
    changed = override(experiment, {"algorithm.gamma": 0.8, "algorithm.name": path})
    assert changed.algorithm == {"name": path, "gamma": 0.8}


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("actor.env", 1, "actor.envs"),
        ("gamma", 0.9, "algorithm.gamma"),
        ("policies.c.mode", "train", "the policies are a, b"),
        ("policies.a.algorithm.gama", 1, "gamma"),
        ("policies.a.modus", 1, "mode"),
        ("network.recurrent", "rnn", "none, lstm, gru"),
        ("actor.envs", 0, "at least 1, got 0"),
        ("env", "x", "env.id"),
    ],
)
def test_unknown_keys_and_unfit_values_say_what_would_fit(experiment, key, value, said):
    with pytest.raises(ConfigError, match=said):
        override(experiment, {key: value})


def test_every_setting_is_listed_with_a_meaning_and_its_value(experiment):
    found = {setting.key: setting for setting in list_settings(experiment)}
    for key in ("actor.envs", "algorithm.clip", "network.activation", "policies.NAME.mode", "seed"):
        assert key in found
    assert found["algorithm.gamma"].value == "0.5"
    assert found["actor.envs"].value == "16"
    assert [key for key, setting in found.items() if not setting.meaning] == []


def test_every_listed_setting_may_be_set_to_the_value_that_is_shown(experiment):
    for setting in list_settings(experiment):
        if "NAME" not in setting.key and "KEY" not in setting.key:
            value = parse_pairs([f"{setting.key}={setting.value}"], "--set")
            if setting.value:
                override(experiment, value)


def test_settings_are_read_without_torch():
    """`srl train` starts its processes after this; a second of imports would hold them up."""
    code = (
        "import sys\n"
        "from srl.arguments import assemble\n"
        "settings = {'actor.envs': 8, 'algorithm.gamma': 0.9, 'env.args.x': 1}\n"
        "made = assemble('cartpole', steps=10, layout='inline', device='cpu', set=settings)\n"
        "assert made.algorithm['gamma'] == 0.9\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_settings_of_an_algorithm_are_those_of_its_class():
    for name in ALGORITHMS:
        assert algorithm_config(name) is find_algorithm(name).Config
