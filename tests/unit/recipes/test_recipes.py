"""Every recipe is a plan that could start, and environments without one get sane settings."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import pytest

from srl.algorithms.config import AlgorithmConfig, Sampling
from srl.algorithms.ppo.learner import PPO
from srl.algorithms.suggestion import Suggestion
from srl.data.spec import AgentSpec, EnvSpec
from srl.envs.protocol import EnvConfig
from srl.envs.registry import probe
from srl.errors import ConfigError
from srl.experiment import Experiment, PolicyConfig, with_networks
from srl.launch.plan.build import make_plan, resolve_settings
from srl.overrides import override
from srl.recipes import RECIPES, find_recipe
from srl.recipes.target import find_experiment, for_env


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("layout", ["serial", "shared"])
def test_every_recipe_can_be_planned(name, layout):
    recipe = find_recipe(name)
    assert (recipe.__doc__ or "").strip()
    experiment = recipe()
    assert experiment.name == name
    assert experiment.steps or experiment.until
    try:
        spec = probe(experiment.env)
    except ConfigError as error:
        if "cannot start it on this machine" not in str(error):
            raise
        pytest.skip(str(error))
    settled = resolve_settings(dataclasses.replace(experiment, layout=layout), 2, "cpu")
    plan, policies = make_plan(settled, spec, "cpu")
    assert set(policies) == set(experiment.policies)
    assert plan.workers


def test_unknown_recipes_are_answered_with_near_ones():
    with pytest.raises(ConfigError, match="'pendulum'"):
        find_recipe("pendulun")


def test_settings_follow_the_spaces():
    vector = find_experiment("CartPole-v1")
    continuous = find_experiment("Pendulum-v1")
    pixels = find_experiment("ALE/Pong-v5")
    assert vector.network["normalize_obs"]
    assert continuous.network["normalize_returns"]
    assert continuous.algorithm["entropy_coefficient"] == 0.0
    assert continuous.algorithm["max_policy_age"] == vector.algorithm["max_policy_age"] == 0
    assert continuous.algorithm["learning_rate"] != vector.algorithm["learning_rate"]
    assert pixels.algorithm["clip_reward"] == "sign"
    assert "normalize_obs" not in pixels.network


def test_agents_with_equal_spaces_share_a_policy_and_others_do_not():
    team = find_experiment("pettingzoo:mpe2.simple_spread_v3")
    assert list(team.policies) == ["default"]
    tag = find_experiment("pettingzoo:mpe2.simple_tag_v3")
    assert {name: policy.agents for name, policy in tag.policies.items()} == {
        "adversary_0": ("adversary_0", "adversary_1", "adversary_2"),
        "agent_0": ("agent_0",),
    }


def test_policies_get_names_that_they_may_have_out_of_any_agents(monkeypatch):
    tag = probe(EnvConfig(id="pettingzoo:mpe2.simple_tag_v3")).agents
    other, one = tag["agent_0"], tag["adversary_0"]
    odd = {"../a b": one, ".._a_b": other, "": one, "é" * 99: other}
    spec = EnvSpec(agents=odd)
    monkeypatch.setattr("srl.envs.registry.probe", lambda env: spec)
    policies = for_env(EnvConfig(id="x")).policies
    assert {name: policy.agents for name, policy in policies.items()} == {
        "_.._a_b": ("../a b", ""),
        "_.._a_b-2": (".._a_b", "é" * 99),
    }
    third = AgentSpec(obs=one.obs, action=one.action, has_action_mask=True)
    spec = EnvSpec(agents={"é" * 99: one, "b": other, "": third})
    assert list(for_env(EnvConfig(id="x")).policies) == ["_" * 50, "b", "_"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _SlowConfig(AlgorithmConfig):
    """Another algorithm's settings, with a policy of its own."""

    network: ClassVar[str] = "random"
    patience: int = 0

    @classmethod
    def suggest(cls, spec):
        return Suggestion(envs=3, algorithm={"patience": len(spec.agents)})

    def sampling(self):
        return Sampling(length=4)


class _Slow(PPO):
    Config = _SlowConfig


SLOW = f"{__name__}:_Slow"


def test_an_algorithm_names_its_network_and_suggests_settings():
    found = find_experiment("CartPole-v1", algorithm=SLOW)
    assert found.actor.envs == 3
    assert found.algorithm == {"name": SLOW, "patience": 1}
    assert found.network == {"name": "random"}
    recipe = find_recipe("cartpole")()
    changed = find_experiment("cartpole", algorithm=SLOW)
    assert (changed.algorithm, changed.network) == (found.algorithm, found.network)
    assert (changed.name, changed.steps, changed.until) == ("cartpole", 300_000, "return>=475")
    assert find_experiment("cartpole", algorithm="ppo") == recipe


def test_a_network_that_the_settings_name_is_kept():
    plain = with_networks(Experiment(env=EnvConfig(id="CartPole-v1"), algorithm={"name": SLOW}))
    assert plain.network == {"name": "random"}
    other = override(find_recipe("cartpole")(), {"algorithm.name": SLOW})
    assert other.network == {"name": "random"}
    named = {"network.name": "actor_critic", "algorithm.name": SLOW, "algorithm.patience": 2}
    both = override(find_recipe("cartpole")(), named)
    assert both.network == {"name": "actor_critic"}
    assert both.algorithm == {"name": SLOW, "patience": 2}
    mine = Experiment(env=EnvConfig(id="CartPole-v1"), network={"name": "own.py:Net"})
    assert override(mine, {"algorithm.name": SLOW}).network == {"name": "own.py:Net"}


def test_a_policy_with_another_algorithm_gets_its_network():
    policies = {"a": PolicyConfig(algorithm={"name": SLOW}), "b": PolicyConfig()}
    made = with_networks(Experiment(env=EnvConfig(id="CartPole-v1"), policies=policies))
    assert made.policies["a"].network == {"name": "random"}
    assert made.policies["b"].network == {}
