"""The PettingZoo environment: its API, seeds, exact states, and many random episodes."""

from __future__ import annotations

import dataclasses
import warnings
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("mujoco")
pytest.importorskip("pettingzoo")

from pettingzoo.test import parallel_api_test, parallel_seed_test

from srl.data.tree import leaves
from srl.envs.hide_and_seek import VARIANTS, HideAndSeek, variant
from srl.envs.hide_and_seek.game import Game, action_space
from srl.envs.hide_and_seek.placement import EpisodeStart, draw_start

SHORT = {"horizon": 12}


@pytest.mark.parametrize("name", VARIANTS)
def test_pettingzoo_accepts_it(name: str) -> None:
    with warnings.catch_warnings():
        # Agents differ between episodes, which the test reports as agents that never finish.
        warnings.filterwarnings("ignore", message="No agents present")
        parallel_api_test(HideAndSeek(name, **SHORT), num_cycles=30)
    parallel_seed_test(lambda: HideAndSeek(name, **SHORT), num_cycles=8)


def test_observations_are_in_their_space() -> None:
    env = HideAndSeek("hide_and_seek", hiders=[2, 2], **SHORT)
    obs, _ = env.reset(seed=1)
    for agent, found in obs.items():
        assert env.observation_space(agent).contains(found)


def play(env: HideAndSeek, steps: int, seed: int) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    played = []
    for _ in range(steps):
        if not env.agents:
            obs, _ = env.reset()
        else:
            actions = {a: random.integers(0, env.action_space(a).nvec) for a in env.agents}
            obs, rewards, *_ = env.step(actions)
            played.append(np.array(list(rewards.values())))
        played += leaves(obs)
    return played


def equal(a: list[np.ndarray], b: list[np.ndarray]) -> bool:
    return len(a) == len(b) and all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("name", ["hide_and_seek", "hide_and_seek_fort"])
def test_seeds_and_states_reproduce_episodes_exactly(name: str) -> None:
    env, other = HideAndSeek(name, **SHORT), HideAndSeek(name, **SHORT)
    runs = []
    for one in (env, other):
        one.reset(seed=5)
        runs.append(play(one, 30, seed=0))
    assert equal(*runs)
    other.reset(seed=6)
    other.restore(env.state())
    # Beyond the end of the episode: the next one is the same, too.
    assert equal(play(env, 30, seed=1), play(other, 30, seed=1))


@pytest.mark.parametrize(("name", "wanted"), list(zip(VARIANTS, (15, 25, 30, 30), strict=True)))
def test_random_episodes_stay_finite_and_inside(name: str, wanted: int) -> None:
    game = Game(variant(name, horizon=40), 5)
    random = np.random.default_rng(0)
    for world in range(5):
        game.seed(world, world)
    game.reset(list(range(5)))
    nvec = action_space(game.config).nvec
    episodes, highest = 0, 0.0
    while episodes < wanted:
        game.tick(random.integers(0, nvec, (5, game.config.num_agents, 5)))
        assert not game.discarded.any()
        for array in game.observation.arrays.values():
            assert np.isfinite(array).all()
        episodes += int(game.final.sum())
        highest = max(highest, float(np.abs(game.worlds.qvel[..., :-1]).max()))
        inside = (game.worlds.qpos[..., :2] > 0) & (game.worlds.qpos[..., :2] < game.config.side)
        if game.config.outer_walls == 1:
            assert (inside.all(-1) | ~game.worlds.present).all(), "it left through a wall"
    assert highest < 40


def test_blow_up_ends_the_episode_with_the_last_good_observation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # MuJoCo writes its warnings into a file in the current folder.
    monkeypatch.chdir(tmp_path)
    game = Game(variant("hide_and_seek_quadrant"), 2)
    for world in range(2):
        game.seed(world, world)
    game.reset([0, 1])
    still = np.array([[(5, 5, 5, 0, 0)] * 4] * 2)
    game.tick(still)
    before = {name: array.copy() for name, array in game.observation.arrays.items()}
    for broken in (np.nan, 1e6):
        game.worlds.models[0].opt.gravity[0] = broken
        game.tick(still)
        game.worlds.models[0].opt.gravity[0] = 0.0
        assert game.final.tolist() == game.discarded.tolist() == [True, False]
        for name, array in game.observation.arrays.items():
            assert np.array_equal(array[0], before[name][0])
        assert game.reward[0].tolist() == [0.0] * 4
        assert game.detectors.values["blow_ups"].tolist() == [1.0, 0.0]
        game.tick(still)
        assert not game.final.any()
        assert game.time.tolist()[0] == 0
        assert np.isfinite(game.observation.arrays["self"]).all()
        game.tick(still)
        before = {name: array.copy() for name, array in game.observation.arrays.items()}


def test_a_body_that_passed_an_outer_wall_discards_the_episode() -> None:
    game = Game(variant("hide_and_seek_fort"), 2)
    for world in range(2):
        game.seed(world, world)
    game.reset([0, 1])
    game.worlds.qpos[1, 0, 0] = -0.1
    game.tick(np.array([[(2, 2, 2, 0, 0)] * 2] * 2))
    assert game.discarded.tolist() == game.final.tolist() == [False, True]
    # In the open there is nothing to pass.
    game.worlds.walls[:] = 0.0
    game.worlds.qpos[0, 0, 0] = -0.5
    game.tick(np.array([[(2, 2, 2, 0, 0)] * 2] * 2))
    assert not game.discarded.any()


def test_absent_bodies_stay_parked_also_after_an_episode_with_everything() -> None:
    game = Game(variant("hide_and_seek", lidar_rays=0), 1)
    config = game.config
    game.seed(0, 0)
    still = np.array([[(5, 5, 5, 0, 0)] * config.num_agents])
    full = dataclasses.replace(config, hiders=(3, 3), seekers=(3, 3), boxes=(9, 9))
    random = np.random.default_rng(0)
    for missing in (5, 0, 5):
        start = draw_start(full, random)
        start.agents[1:3] = np.nan
        start.boxes[9 - missing :] = np.nan
        if not missing:
            start = draw_start(full, random)
        game.begin(0, start)
        for _ in range(5):
            game.tick(still)
        absent = ~game.worlds.present[0]
        assert absent.sum() == (missing + 2 if missing else 0)
        assert np.allclose(game.worlds.qpos[0, absent, 2], game.worlds.scene.rest_heights[absent])


def test_absent_agents_change_nothing() -> None:
    """A game of one against one is the same, whatever the padding."""
    tight = Game(variant("hide_and_seek", hiders=1, seekers=1), 1)
    padded = Game(variant("hide_and_seek", hiders=[1, 3], seekers=[1, 3]), 1)
    random = np.random.default_rng(3)
    tight.seed(0, 0)
    padded.seed(0, 0)
    start = draw_start(tight.config, random)
    spread = np.full((6, 2), np.nan)
    spread[[0, 3]] = start.agents
    tight.begin(0, start)
    padded.begin(0, EpisodeStart(start.layout, spread, start.boxes, start.box_sizes, start.ramps))
    for _ in range(20):
        actions = random.integers(0, (11, 11, 11, 2, 2), (1, 2, 5))
        tight.tick(actions)
        many = np.zeros((1, 6, 5), int)
        many[:, [0, 3]] = actions
        padded.tick(many)
        there, also = tight.worlds.present[0], padded.worlds.present[0]
        own, other = tight.worlds.qpos[0][there], padded.worlds.qpos[0][also]
        assert np.allclose(own, other, atol=1e-6)
    assert np.array_equal(padded.present[0], [True, False, False, True, False, False])
    assert padded.observation.arrays["agents_exist"][0, 0].tolist() == [0, 0, 1, 0, 0]
    arrays = padded.observation.arrays
    for kind in ("agents", "boxes"):
        missing = arrays[f"{kind}_exist"][0, 0] == 0
        assert missing.any()
        assert not arrays[kind][0, 0][missing].any()
