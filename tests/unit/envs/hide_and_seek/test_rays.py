"""Rays by array operations, compared with MuJoCo's own."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("mujoco")

import mujoco

from srl.envs.hide_and_seek import variant
from srl.envs.hide_and_seek.game import Game, action_space
from srl.envs.hide_and_seek.rays import directed
from srl.envs.hide_and_seek.scene import BODY_GROUP, WALL_GROUP


@pytest.mark.parametrize("name", ["hide_and_seek", "hide_and_seek_fort"])
def test_hits_are_those_of_mujoco(name: str) -> None:
    worlds, rays = 6, 60
    game = Game(variant(name), worlds)
    random = np.random.default_rng(0)
    for world in range(worlds):
        game.seed(world, world)
    game.reset(list(range(worlds)))
    agents = game.config.num_agents
    nvec = action_space(game.config).nvec
    for _ in range(15):
        game.tick(random.integers(0, nvec, (worlds, agents, 5)))
    if name == "hide_and_seek":
        # Some agents stand on boxes, from where they see over walls and down on ramps.
        game.worlds.qpos[:, 0, 2] = 0.65
        game.sight.look()
    directions = random.normal(size=(worlds, agents, rays, 3)) * (1, 1, 0.1)
    origins = game.sight._centres[:, :agents]
    hits, distances = game.sight.first_hits(slice(0, worlds), origins, directed(directions))
    groups = np.zeros(6, np.uint8)
    groups[[WALL_GROUP, BODY_GROUP]] = 1
    seen = set()
    for world in range(worlds):
        data = game.worlds.frames(world)
        for agent in np.flatnonzero(game.present[world]):
            geoms, expected = np.zeros(rays, np.int32), np.zeros(rays)
            model, body = game.worlds.models[world], int(game.worlds.scene.body_ids[agent])
            mujoco.mj_multiRay(
                model, data, origins[world, agent], directions[world, agent].reshape(-1), groups,
                True, body, geoms, expected, None, rays, 1e10,
            )  # fmt: skip
            found = distances[world, agent]
            assert np.array_equal(np.isinf(found), expected < 0)
            there = expected >= 0
            assert np.allclose(found[there], expected[there], atol=1e-5)
            bodies = model.geom_bodyid[geoms[there]]
            known = np.append(game.worlds.scene.body_ids, -1)
            named = known[np.maximum(hits[world, agent][there], -1)]
            assert np.array_equal(np.where(np.isin(bodies, known), bodies, -1), named)
            seen |= set(named.tolist())
    assert len(seen) > len(game.worlds.scene.body_ids) / 2, "rays hit many bodies"
