"""Ids that a user's file registers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import gymnasium
import pytest
from playing import group_of, play, stacked

from srl.envs.ids import with_importable_id
from srl.envs.jax_start import jax_ids
from srl.envs.protocol import EnvConfig
from srl.errors import ConfigError
from srl.experiment import Experiment
from srl.recipes.target import find_experiment
from srl.resolve import load

FILE = """
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

class Mine(CartPoleEnv):
    def __init__(self, size=0, render_mode=None):
        assert size == 7
        super().__init__(render_mode=render_mode)

def register(id, point):
    gymnasium.register(id, entry_point=point, max_episode_steps=5, kwargs={"size": 7})

register("OwnModule-v0", f"NAME:Mine")
register("OwnMain-v0", "__main__:Mine")
register("OwnClass-v0", Mine)
gymnasium.register("OwnStock-v0", entry_point="gymnasium.envs.classic_control:CartPoleEnv",
    max_episode_steps=5)
"""
IDS = ("OwnModule-v0", "OwnMain-v0", "OwnClass-v0", "OwnStock-v0")


@pytest.fixture
def name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module of the current folder that registers ids in several ways."""
    name = f"registers_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(FILE.replace("NAME", name))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    yield name
    for id in IDS:
        gymnasium.registry.pop(id, None)


def episode_ends(id: str, **settings: object) -> list[int]:
    group = group_of(id, 1, **settings)
    played = play(group, 12)
    group.close()
    ends = stacked(played, "main", "terminated") | stacked(played, "main", "truncated")
    return ends[:, 0].nonzero()[0].tolist()


@pytest.mark.parametrize(
    ("form", "id"),
    [
        ("{}:", "OwnModule-v0"),
        ("{}:", "OwnClass-v0"),
        ("{}:", "OwnStock-v0"),
        ("{}.py:", "OwnModule-v0"),
        ("{}.py:", "OwnMain-v0"),
        ("{}.py:", "OwnClass-v0"),
        ("{}.py:", "OwnStock-v0"),
    ],
)
def test_a_module_or_file_registers_what_it_names(name: str, form: str, id: str) -> None:
    assert episode_ends(form.format(name) + id) == [5, 11]


def test_ids_that_a_file_does_not_register_are_named(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"{name}.py does not register it; .*'OwnModule-v0'"):
        group_of(f"{name}.py:OwnModul-v0", 1)


@pytest.mark.parametrize("id", ["OwnModule-v0", "OwnClass-v0", "OwnStock-v0"])
@pytest.mark.parametrize("as_experiment", [False, True])
def test_an_id_that_only_this_process_knows_becomes_what_it_stands_for(
    name: str, id: str, as_experiment: bool
) -> None:
    load(f"{name}.py")
    experiment = find_experiment(Experiment(env=EnvConfig(id=id)) if as_experiment else id)
    env = experiment.env
    assert as_experiment or experiment.name == id
    for known in IDS:
        del gymnasium.registry[known]
    settings = {"args": env.args, "max_episode_steps": env.max_episode_steps}
    assert episode_ends(env.id, **settings) == [5, 11]


@pytest.mark.parametrize("id", ["CartPole-v1", "ALE/Pong-v5", "Unknown-v0", "envpool:Pong-v5"])
def test_ids_that_every_process_knows_stay(id: str) -> None:
    config = EnvConfig(id=id)
    assert with_importable_id(config) is config


def test_ids_of_jax_are_those_of_installed_collections(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "jax:gymnax:CartPole-v1" in jax_ids()
    # It needs a download.
    assert "jax:gymnax:MNISTBandit-bsuite" not in jax_ids()
    monkeypatch.setattr("srl.envs.jax_start.installed", lambda package: package != "gymnax")
    assert {id.split(":")[1] for id in jax_ids()} == {"jaxmarl"}
