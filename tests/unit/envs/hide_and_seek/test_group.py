"""Hide-and-seek as an environment group: ids, rows, episodes, exact states and pictures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("mujoco")

from srl.data.tree import leaves
from srl.envs.buffers import step_state
from srl.envs.check import check_env, random_actions
from srl.envs.hide_and_seek import VARIANTS, camera
from srl.envs.ids import OWN_GROUPS
from srl.envs.protocol import EnvConfig, EnvGroup, PolicyAgents
from srl.envs.registry import make_group, probe
from srl.errors import ConfigError, MissingDependency
from srl.recipes.target import find_experiment

FORT = "hide_and_seek_fort"
SELF_PLAY: PolicyAgents = {"both": ("hider_0", "seeker_0")}
OPPOSED: PolicyAgents = {"hide": ("hider_0",), "seek": ("seeker_0",)}


def group_of(agents: PolicyAgents, id: str = FORT, num_envs: int = 3, **settings: Any) -> EnvGroup:
    config = EnvConfig(id=id, **{"args": {"horizon": 10}, **settings})
    return make_group(
        config, num_envs=num_envs, policy_agents=agents, on_call=lambda call, index: None
    )


def test_ids_are_those_of_the_games() -> None:
    assert set(OWN_GROUPS) == set(VARIANTS)


@pytest.mark.parametrize("id", [FORT, "hide_and_seek"])
def test_srl_check_passes(id: str) -> None:
    findings = check_env(EnvConfig(id=id, args={"horizon": 20, "substeps": 2}))
    assert {finding.level for finding in findings} == {"ok"}, findings
    assert "exact state" in {finding.title for finding in findings}


def test_teams_differ_only_in_who_owns_the_rows() -> None:
    """One policy for all agents and one for each team see the same games."""
    together, apart = group_of(SELF_PLAY), group_of(OPPOSED)
    random = np.random.default_rng(0)
    one, two = together.reset(4), apart.reset(4)
    ended = 0
    for _ in range(25):
        actions = random.integers(0, (5, 5, 5, 2, 2), (6, 5))
        pairs = [("reward", one["both"].reward), ("truncated", one["both"].truncated)]
        pairs += [("turn", one["both"].turn), ("is_first", one["both"].is_first)]
        for name, array in pairs:
            rows = [getattr(two["hide"], name), getattr(two["seek"], name)]
            assert np.array_equal(array, np.stack(rows, 1).reshape(-1)), name
        for mine, hide, seek in zip(
            leaves(one["both"].obs), leaves(two["hide"].obs), leaves(two["seek"].obs), strict=True
        ):
            assert np.array_equal(mine[0::2], hide)
            assert np.array_equal(mine[1::2], seek)
        ended += int(one["both"].truncated.sum())
        one = together.step({"both": actions})
        two = apart.step({"hide": actions[0::2], "seek": actions[1::2]})
    assert ended == 3 * 2 * 2


def test_episodes_end_by_truncation_and_begin_in_the_next_tick() -> None:
    group = group_of(SELF_PLAY, num_envs=2)
    step = group.reset(0)["both"]
    still = np.array([(2, 2, 2, 0, 0)] * 4)
    assert step.is_first.all()
    flags = []
    for _ in range(12):
        step = group.step({"both": still})["both"]
        flags.append((step.truncated.all(), step.is_first.all(), step.turn.all(), step.quiet))
        if step.truncated.any():
            assert step.metrics is not None
            assert np.isfinite(step.metrics["door_gap"]).all()
            assert step.metrics["doors_closed"].tolist() == [0.0, 0.0]
    quiet = (False, False, True, True)
    assert flags[:9] == [quiet] * 9
    assert flags[9] == (True, False, False, False)
    assert flags[10] == (False, True, True, False)
    assert not step.terminated.any()
    limited = group_of(SELF_PLAY, num_envs=2, max_episode_steps=3)
    limited.reset(0)
    ends = [limited.step({"both": still})["both"].truncated.all() for _ in range(4)]
    assert ends == [False, False, True, False]


def test_agents_that_an_episode_does_not_have_are_not_alive() -> None:
    names = tuple(probe(EnvConfig(id="hide_and_seek")).agents)
    group = group_of({"all": names}, id="hide_and_seek", num_envs=4)
    step = group.reset(0)["all"]
    assert 0 < step.alive.sum() < step.alive.size
    assert np.array_equal(step.alive, step.turn)
    random = np.random.default_rng(0)
    for _ in range(12):
        step = group.step(random_actions(group.spec, {"all": step}, {"all": names}, random))["all"]
        for leaf in leaves(step.obs):
            assert not leaf[~step.alive].any()
        assert not step.reward[~step.alive].any()
        assert not step.quiet


def test_threads_change_nothing() -> None:
    random = np.random.default_rng(0)
    one, two = group_of(SELF_PLAY, num_envs=5), group_of(SELF_PLAY, num_envs=5, threads=2)
    one.reset(0)
    two.reset(0)
    for _ in range(12):
        actions = {"both": random.integers(0, (5, 5, 5, 2, 2), (10, 5))}
        left, right = (step_state(group.step(actions)["both"]) for group in (one, two))
        for a, b in zip(leaves(left), leaves(right), strict=True):
            assert np.array_equal(a, b)
    two.close()
    two.close()


def test_pictures_show_every_kind_of_thing() -> None:
    group = group_of(SELF_PLAY, num_envs=1)
    group.reset(0)
    picture = group.render(0)
    assert picture.shape == (480, 480, 3)
    assert picture.dtype == np.uint8
    colours = {tuple(colour) for colour in picture.reshape(-1, 3).tolist()}
    for shown in ((45, 105, 220), (215, 60, 50), (120, 120, 128), (243, 205, 72)):
        assert shown in colours, "a hider, a seeker, a wall, a box"


def test_games_with_height_have_a_camera_or_only_the_drawing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = tuple(probe(EnvConfig(id="hide_and_seek")).agents)
    group = group_of({"all": names}, id="hide_and_seek", num_envs=1)
    group.reset(0)
    picture = group.render(0)
    group.close()
    if picture.shape != (480, 480, 3):
        assert picture.shape == (480, 960, 3)
        seen = picture[:, :480].reshape(-1, 3)
        assert len(np.unique(seen, axis=0)) > 100, "a lit scene"

    def fail(size: int) -> None:
        raise AttributeError("the graphics library is not there")

    monkeypatch.setattr(camera, "_make_context", fail)
    group = group_of({"all": names}, id="hide_and_seek", num_envs=1)
    group.reset(0)
    assert group.render(0).shape == (480, 480, 3)
    group.close()


def test_doors_are_observed_with_the_way_from_them_to_the_boxes() -> None:
    group = group_of(SELF_PLAY, num_envs=4, args={"boxes": 2, "door_dropout": 0.0})
    obs = group.reset(0)["both"].obs
    doors, boxes = obs["doors"], obs["boxes"]
    assert doors.shape == (8, 2, 4)
    assert obs["doors_visible"].all()
    assert np.allclose(doors[:, 0, [0, 2, 3]], (3.1, 0, 1)), "in the wall along y"
    assert np.allclose(doors[:, 1, [1, 2, 3]], (3.1, 1, 0)), "in the wall along x"
    away = boxes[:, :, None, :2] - doors[:, None, :, :2]
    nearest = np.hypot(*np.moveaxis(away, -1, 0)).argmin(-1)
    expected = np.take_along_axis(away, nearest[..., None, None], 2)[:, :, 0]
    assert np.allclose(boxes[..., -5:-3], expected, atol=1e-5)


def test_settings_come_from_env_args_and_are_checked() -> None:
    changed = probe(EnvConfig(id=FORT, args={"boxes": 2, "lidar_rays": 8, "show_doors": False}))
    agent = changed.agents["hider_0"]
    assert agent.obs["boxes"].shape == (2, 12)
    assert agent.obs["lidar"].shape == (8, 1)
    assert "doors" not in agent.obs
    with pytest.raises(ConfigError, match="did you mean 'horizon'"):
        probe(EnvConfig(id=FORT, args={"horizom": 3}))


def test_without_mujoco_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("srl.extras.installed", lambda package: package != "mujoco")
    with pytest.raises(MissingDependency, match="mujoco"):
        probe(EnvConfig(id=FORT))
    import srl.envs.hide_and_seek as package

    with pytest.raises(MissingDependency, match="mujoco"):
        package.__getattr__("HideAndSeek")


def test_recipes_take_settings_of_the_game() -> None:
    for name in VARIANTS:
        experiment = find_experiment(name, {"horizon": 10})
        assert experiment.env.id == name
        assert experiment.env.args["horizon"] == 10
        assert list(experiment.policies) == ["default"], "one policy plays both teams"
