"""Several groups of actors: their environments, their casting, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

import srl
from srl.casting import actor_groups, num_actors
from srl.errors import ConfigError
from srl.experiment import Experiment
from srl.launch.plan.build import make_plan, metric_names, resolve_settings
from srl.launch.plan.probing import probe_groups
from srl.overrides import list_settings, override
from srl.plan import Plan
from srl.services.messages import Episodes
from srl.services.policy_metrics import PolicyMetrics

GAME = "pettingzoo:classic.tictactoe_v3"
ODD = {"actors.odd.env_args.sutton_barto_reward": True}


def cartpole(**settings: Any) -> Experiment:
    experiment = Experiment(env=srl.EnvConfig(id="CartPole-v1"), actor=srl.ActorConfig(envs=8))
    return override(experiment, {key.replace("__", "."): v for key, v in settings.items()})


def mirrored(**second: Any) -> Experiment:
    return Experiment(
        env=srl.EnvConfig(id=GAME),
        actor=srl.ActorConfig(envs=4),
        policies={
            "one": srl.PolicyConfig(agents=("player_1",)),
            "other": srl.PolicyConfig(agents=("player_2",), mode="random"),
        },
        actors={"second": srl.ActorsConfig(**second)},
    )


def plan_of(experiment: Experiment, layout: Any = "shared", cores: int = 2) -> Plan:
    experiment = resolve_settings(override(experiment, {"layout": layout}), cores, "cpu")
    return make_plan(experiment, probe_groups(experiment).spec, "cpu")[0]


@pytest.mark.parametrize("layout", ["serial", "inline", "shared"])
@pytest.mark.parametrize(("own", "counts"), [(4, (2, 1)), (8, None), (12, (2, 3))])
def test_all_actors_have_equally_many_environments(
    layout: str, own: int, counts: tuple[int, int] | None
) -> None:
    made = override(cartpole(), {"layout": layout, "actors.odd.envs": own})
    experiment = resolve_settings(made, 2, "cpu")
    groups = actor_groups(experiment)
    each = [g.envs / num_actors(experiment, g) for g in groups.values()]
    assert each[0] == each[1]
    assert [g.envs for g in groups.values()] == [8, own]
    if counts and layout == "serial":
        assert tuple(num_actors(experiment, g) for g in groups.values()) == counts


def test_a_plan_has_every_group_and_its_batches_have_fragments_of_all() -> None:
    plan = plan_of(cartpole(**ODD, actors__odd__envs=4), "inline")
    assert plan.actors["actor-odd"].env_args == {"sutton_barto_reward": True}
    assert plan.actors["actor"].env_args == {}
    names = [worker.name for worker in plan.workers if worker.requests]
    assert names == ["actor/0", "actor/1", "actor-odd/0"]
    spec = plan.samples["default"].spec
    assert (len(spec.writers), spec.fragments_per_batch) == (3, 3)
    first = [plan.actors[name].first_group for name in ("actor", "actor-odd")]
    assert first == [0, 2], "no two environments have the same seed"
    assert [plan.kind_of(w) for w in plan.workers] == ["trainer"] + ["policy", "actor"] * 3


def test_each_group_has_a_casting_of_its_own() -> None:
    experiment = mirrored(agents={"one": ("player_2",), "other": ("player_1",)})
    plan = plan_of(experiment)
    assert plan.policy_agents == {"one": ("player_1",), "other": ("player_2",)}
    assert plan.actors["actor-second"].agents == {"one": ("player_2",), "other": ("player_1",)}


def test_a_policy_may_play_in_one_group_only() -> None:
    usual = mirrored()
    experiment = Experiment(
        env=usual.env,
        actor=usual.actor,
        policies={**usual.policies, "third": srl.PolicyConfig(agents=(), mode="random")},
        actors={"second": srl.ActorsConfig(agents={"one": ("player_1",), "third": ("*",)})},
    )
    plan = plan_of(experiment, "inline")
    by_name = {worker.name: worker for worker in plan.workers}
    assert by_name["actor/0"].requests == ("one", "other")
    assert by_name["policy-second/0"].serves == by_name["actor-second/0"].requests
    assert set(by_name["actor-second/0"].requests) == {"one", "third"}
    assert plan.policies["third"].agents == ("player_2",)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"agents": {"red": ("*",)}}, r"actors.second.agents: expected policies \(one, other\)"),
        ({"agents": {"one": ("player_1",)}}, "actors.second.agents: .* got none for 'player_2'"),
        ({"agents": {"one": ("x",), "other": ("*",)}}, "actors.second.agents.one: .* one agent"),
        ({"agents": {"one": ("*",)}}, "'one' to play equally many agents .* 2 in actor-second"),
        ({"envs": -1}, r"actors.\*.envs: expected at least 0"),
    ],
)
def test_a_casting_that_cannot_work_is_refused(second: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_of(mirrored(**second))


def test_a_policy_that_plays_nowhere_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"policies.lost.agents: expected patterns"):
        Experiment(env=srl.EnvConfig(id=GAME), policies={"lost": srl.PolicyConfig(agents=())})


def test_environments_of_other_shapes_are_refused() -> None:
    id = "srl.testing.envs:ScriptedEnv"
    made = Experiment(
        env=srl.EnvConfig(id=id), actors={"x": srl.ActorsConfig(env_args={"mask": True})}
    )
    with pytest.raises(ConfigError, match=r"actors.x.env_args: .* same agents as that of `env`"):
        probe_groups(made)


def test_actors_of_unequal_sizes_are_refused() -> None:
    made = cartpole(actor__count=2, actors__odd__envs=6)
    with pytest.raises(ConfigError, match=r"actors.odd.envs: .* environments of one actor \(4"):
        resolve_settings(override(made, {"layout": "shared"}), 2, "cpu")


def test_a_group_is_set_by_dotted_keys() -> None:
    made = override(mirrored(), {"actors.second.agents.one": ["player_2"], "actors.new.envs": 4})
    assert made.actors["second"].agents == {"one": ("player_2",)}
    assert made.actors["new"].envs == 4
    with pytest.raises(ConfigError, match=r"unknown setting 'actors.new.count'"):
        override(made, {"actors.new.count": 2})
    assert "actors.NAME.env_args" in {setting.key for setting in list_settings(made)}


def test_each_group_has_returns_of_its_own() -> None:
    experiment = mirrored()
    names = metric_names(experiment.policies, None, experiment.actors)
    metrics = PolicyMetrics("one", names, window=10)
    for worker, value in (("actor/0", 1.0), ("actor-second/0", 3.0), ("actor-second/1", 5.0)):
        metrics.add_episodes(Episodes(worker, "one", [value], [7]))
    values = metrics.values()
    assert values["policies.one.episode_return_mean"] == 3.0
    assert values["policies.one.actors.main.episode_return_mean"] == 1.0
    assert values["policies.one.actors.second.episode_return_mean"] == 4.0
    again = PolicyMetrics("one", names, window=10)
    again.restore(metrics.state())
    assert again.values() == values
    assert names.results(values)["one"].actors == {"main": 1.0, "second": 4.0}
