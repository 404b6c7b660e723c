"""Counts that nobody has chosen suit the machine, the environment and the algorithm."""

from __future__ import annotations

import gymnasium
import pytest
from gymnasium.envs.registration import EnvSpec

from srl.errors import ConfigError
from srl.experiment import Experiment
from srl.launch.plan.build import resolve_settings
from srl.overrides import override
from srl.recipes.target import find_experiment


def settled(target: str, cores: int = 2, device: str = "cpu", **settings: object) -> Experiment:
    wanted = {"layout": "inline", "actor.envs": 64, "algorithm.epochs": 4, **settings}
    return resolve_settings(override(find_experiment(target), wanted), cores, device)


def counts(target: str, cores: int = 2, **settings: object) -> tuple[int, int]:
    """Actors, and threads of each one's environments."""
    found = settled(target, cores, **settings)
    return found.actor.count, found.env.threads


def test_of_two_cores_environments_that_take_most_of_the_time_get_both() -> None:
    assert counts("envpool:HalfCheetah-v5") == (2, 1)
    assert counts("LunarLander-v3")[0] == 2
    assert counts("pettingzoo:mpe2.simple_tag_v3", layout="shared")[0] == 2


def test_of_two_cores_a_trainer_with_much_to_do_gets_one() -> None:
    many = {"algorithm.epochs": 10}
    assert counts("envpool:HalfCheetah-v5", **many) == (1, 2)
    assert counts("LunarLander-v3", **many)[0] == 1
    assert counts("LunarLander-v3", **{"network.recurrent": "lstm"})[0] == 1


def test_tiny_steps_and_pixels_stay_in_one_group() -> None:
    assert counts("envpool:CartPole-v1")[0] == 1
    assert counts("CartPole-v1")[0] == 1
    assert counts("envpool:Pong-v5") == (1, 2)


def test_actors_of_a_larger_machine_share_its_cores() -> None:
    assert counts("envpool:HalfCheetah-v5", 9) == (8, 1)
    assert counts("envpool:HalfCheetah-v5", 32, **{"actor.count": 4}) == (4, 8)


def test_few_cores_are_two_or_three() -> None:
    envs = {"actor.envs": 60}
    assert [counts("LunarLander-v3", cores, **envs)[0] for cores in (1, 2, 3, 4)] == [1, 2, 3, 3]
    assert counts("CartPole-v1", 3, **envs)[0] == 2


def test_what_a_step_costs_is_known_of_the_family() -> None:
    assert counts("envpool:Acrobot-v1")[0] == 1
    assert counts("envpool:Ant-v4")[0] == 2
    assert counts("envpool:BipedalWalker-v3")[0] == 2


def test_a_second_group_is_for_cores_that_would_wait() -> None:
    def groups(layout: str, actors: int, cores: int = 2) -> int:
        chosen = {"layout": layout, "actor.count": actors}
        return settled("envpool:HalfCheetah-v5", cores, **chosen).actor.groups

    assert groups("shared", 1) == 2
    assert groups("shared", 2) == 1
    assert groups("shared", 4, 32) == 2
    assert groups("remote", 2) == 2
    assert groups("inline", 1) == 1


def test_each_of_two_cores_with_an_actor_has_a_policy_worker_where_they_are_apart() -> None:
    def policy_workers(target: str, cores: int = 2, **settings: object) -> int:
        return settled(target, cores, **{"layout": "shared", **settings}).inference.count

    cheetah = "envpool:HalfCheetah-v5"
    assert policy_workers(cheetah) == 2
    assert policy_workers(cheetah, **{"actor.count": 1}) == 1
    assert policy_workers(cheetah, 32) == 1
    assert policy_workers(cheetah, 32, **{"actor.count": 32}) == 1
    assert policy_workers(cheetah, device="cuda") == 1
    assert policy_workers(cheetah, **{"inference.device": "cuda:1"}) == 1
    assert policy_workers(cheetah, layout="remote") == 1
    assert policy_workers("envpool:Pong-v5") == 1
    assert policy_workers(cheetah, layout="inline", **{"inference.count": 3}) == 1


def test_what_is_chosen_stays() -> None:
    chosen = {"actor.count": 1, "env.threads": 3, "trainer.threads": 5, "inference.count": 4}
    found = settled("envpool:HalfCheetah-v5", layout="shared", **chosen)
    assert (found.actor.count, found.env.threads, found.trainer.threads) == (1, 3, 5)
    assert found.inference.count == 4
    with pytest.raises(ConfigError, match=r"a multiple of actor\.count x actor\.groups = 3 x 1"):
        settled("CartPole-v1", **{"actor.count": 3})


def test_convolutions_that_see_data_again_get_threads() -> None:
    def threads(target: str, cores: int = 2, device: str = "cpu", **settings: object) -> int:
        return settled(target, cores, device, **settings).trainer.threads

    once = {"algorithm.epochs": 1}
    assert threads("envpool:Pong-v5") == 2
    assert threads("ALE/Pong-v5", 8) == 4
    assert threads("envpool:Pong-v5", **once) == 1
    assert threads("envpool:Pong-v5", layout="serial") == 1
    assert threads("envpool:Pong-v5", device="cuda") == 1
    assert threads("envpool:HalfCheetah-v5") == 1
    assert threads("envpool:CheetahRun-v1") == 1


@pytest.mark.parametrize("imported", [False, True])
def test_atari_has_pixels_whether_or_not_its_package_was_imported(
    imported: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    games = {"ALE/Pong-v5": EnvSpec("ALE/Pong-v5", entry_point="ale_py.env:AtariEnv")}
    others = {k: v for k, v in gymnasium.registry.items() if "Pong" not in k}
    monkeypatch.setattr(gymnasium, "registry", {**others, **games} if imported else others)
    assert settled("envpool:Pong-v5").trainer.threads == 2
    assert settled("envpool:HalfCheetah-v5").trainer.threads == 1
