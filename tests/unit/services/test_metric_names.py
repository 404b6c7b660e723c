"""How metrics are named by policy and by agents."""

import pytest

from srl.services.metric_names import MetricNames, agent_sides, columns


@pytest.mark.parametrize(
    ("patterns", "agents", "turns", "sides"),
    [
        (("*",), ["agent"], False, ["agent"]),
        (
            ("*",),
            ["adversary_0", "adversary_1", "agent_0"],
            False,
            ["adversary_*"] * 2 + ["agent_*"],
        ),
        (("*",), ["piston_0", "piston_19"], False, ["piston_*"] * 2),
        (("*",), ["player_1", "player_2"], True, ["player_1", "player_2"]),
        (("a_1", "*"), ["a_1", "a_2", "b_1"], False, ["a_1", "*", "*"]),
    ],
)
def test_sides_are_patterns_else_names_without_numbers_else_turns(patterns, agents, turns, sides):
    assert agent_sides(patterns, agents, turn_based=turns) == tuple(sides)


def test_agents_of_one_side_have_no_metrics_of_their_own():
    names = MetricNames({"team": ("piston_*", "piston_*")}, ["team"])
    assert names.sides("team") == ()
    assert names.side_of("team", 1) == ""


def test_keys_are_found_again_in_a_line():
    names = MetricNames({"red": ("tank_*", "jet_*"), "b.c": ("b",)}, ["red"])
    metric = "episode_return_mean"
    own = {("red", ""), ("red", "tank_*"), ("b.c", "")}
    keys = {where: names.key(metric, *where) for where in own}
    others = ["policies.red.train.episode_return_mean", "train.episode_return_mean", metric]
    assert columns([*keys.values(), *others], metric) == keys
    assert columns([metric, "env_steps"], metric) == {("", ""): metric}
    assert columns(["agents.x.episode_return_mean"], metric) == {
        ("", "x"): "agents.x.episode_return_mean"
    }
