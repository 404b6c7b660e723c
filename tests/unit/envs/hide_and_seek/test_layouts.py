"""Settings that cannot work, walls and doors, and starts in which nothing overlaps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from srl.envs.hide_and_seek import VARIANTS, HideAndSeekConfig, variant
from srl.envs.hide_and_seek.door_gap import distances, free_gap
from srl.envs.hide_and_seek.layout import draw_layout
from srl.envs.hide_and_seek.placement import EpisodeStart, draw_start
from srl.errors import ConfigError


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hiders": 4}, "hiders: expected two numbers, least and most, from 1 to 3, got (4, 4)"),
        ({"seekers": [2, 1]}, "seekers: expected two numbers"),
        ({"box_size": -1.0}, "box_size: expected more than 0, got -1.0"),
        ({"timestep": 0.0}, "timestep: expected more than 0"),
        ({"horizon": 0}, "horizon: expected more than 0, got 0"),
        ({"horizon": "long"}, "horizon: expected a value like 240, got 'long'"),
        ({"preparation": 1.0}, "preparation: expected less than 1"),
        ({"boxes": 2}, "long_boxes: expected at most the least of boxes (2, 2), got 3"),
        ({"planar": True}, "ramps: expected 0 in a planar game"),
        ({"boxes_spawn": "room"}, "boxes_spawn: expected anywhere or together"),
        ({"lock_rule": "nobody"}, "lock_rule: expected one of team, any, all, own"),
        ({"action_levels": 10}, "action_levels: expected an odd number"),
        ({"horizn": 3}, "no such setting: did you mean 'horizon'"),
        ({"cell_size": 0.7}, "cell_size: expected a part of floor_size"),
    ],
)
def test_bad_settings_say_what_was_expected(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        variant("hide_and_seek", **changes)
    assert said in str(error.value)


def test_objects_without_room_are_refused_at_construction() -> None:
    pytest.importorskip("mujoco")
    from srl.envs.hide_and_seek.game import Game

    crowded = variant("hide_and_seek_quadrant", boxes=20)
    with pytest.raises(ConfigError, match=r"expected room for all objects, got none for a box"):
        Game(crowded, 1)


def footprints(config: HideAndSeekConfig, start: EpisodeStart) -> np.ndarray:
    """Rectangles of all that has a place: walls, agents with arms, boxes, ramps."""
    walls = start.layout.pieces[start.layout.pieces[:, 2] > 0]
    agents = start.agents[~np.isnan(start.agents[:, 0])]
    there = ~np.isnan(start.boxes[:, 0])
    parts = [
        walls,
        np.column_stack([agents, np.full((len(agents), 2), 0.18)]),
        np.column_stack([start.boxes[there], start.box_sizes[there] / 2]),
        np.column_stack([start.ramps, np.full((config.ramps, 2), 0.25)]),
    ]
    found = np.concatenate(parts)
    return np.column_stack([found, np.zeros(len(found))])


@pytest.mark.parametrize("name", [*VARIANTS, "scaled"])
def test_nothing_overlaps_at_the_start(name: str) -> None:
    config = variant("hide_and_seek", scale=1.5) if name == "scaled" else VARIANTS[name]
    random = np.random.default_rng(1)
    agents, boxes, long = set(), set(), set()
    for _ in range(40):
        start = draw_start(config, random)
        shapes = footprints(config, start)
        walls = int((start.layout.pieces[:, 2] > 0).sum())
        apart = distances(shapes)
        apart[:walls, :walls] = 1.0
        np.fill_diagonal(apart, 1.0)
        assert apart.min() > 0
        assert (shapes[:, :2] > 0).all()
        assert (shapes[:, :2] < config.side).all()
        agents.add(len(start.agents) - int(np.isnan(start.agents[:, 0]).sum()))
        boxes.add(int((~np.isnan(start.boxes[:, 0])).sum()))
        long.add(int((start.box_sizes[:, 0] != start.box_sizes[:, 1]).sum()))
    least = config.hiders[0] + config.seekers[0]
    assert min(agents) == least
    assert max(agents) == config.num_agents
    assert (min(boxes), max(boxes)) == config.boxes
    assert (min(long) >= 3) if config.long_boxes >= 0 else (long == {0})


def test_doors_are_07_wide() -> None:
    random = np.random.default_rng(0)
    for name in VARIANTS:
        config = VARIANTS[name]
        assert config.door_gap == pytest.approx(0.7)
        found = 0
        for _ in range(20):
            layout = draw_layout(config, random)
            pieces = np.column_stack([layout.pieces, np.zeros(len(layout.pieces))])
            for first, second in layout.doors:
                if first >= 0:
                    found += 1
                    assert distances(pieces[[first, second]])[0, 1] == pytest.approx(0.7)
        assert found > 10


def test_quadrant_has_one_or_two_doors_and_the_fort_one() -> None:
    random = np.random.default_rng(0)

    def doors(name: str) -> set[int]:
        layouts = [draw_layout(VARIANTS[name], random) for _ in range(30)]
        return {int((layout.doors[:, 0] >= 0).sum()) for layout in layouts}

    assert doors("hide_and_seek_quadrant") == {1, 2}
    assert doors("hide_and_seek_fort") == {1}


def test_fort_begins_with_hider_and_box_inside_and_the_box_away_from_the_door() -> None:
    config, random = VARIANTS["hide_and_seek_fort"], np.random.default_rng(0)
    for _ in range(40):
        start = draw_start(config, random)
        hider, seeker = start.agents
        for inside in (hider, start.boxes[0]):
            assert inside[0] > 3.2
            assert inside[1] < 3.0
        assert not (seeker[0] > 3.0 and seeker[1] < 3.2)
        door = start.layout.door_middles[0]
        assert np.hypot(*(start.boxes[0] - door)) >= 1.0


def test_curriculum_starts_boxes_on_the_way_to_the_door() -> None:
    random = np.random.default_rng(0)
    config = variant("hide_and_seek_fort", easy_starts=1.0)
    away = []
    for _ in range(60):
        start = draw_start(config, random)
        shapes = footprints(config, start)
        walls = int((start.layout.pieces[:, 2] > 0).sum())
        apart = distances(shapes)
        apart[:walls, :walls] = 1.0
        np.fill_diagonal(apart, 1.0)
        assert apart.min() > 0, "nothing overlaps"
        away.append(np.hypot(*(start.boxes[0] - start.layout.door_middles[0])))
    assert min(away) < 0.3
    assert np.mean(np.array(away) < 1.0) > 0.3
    usual = variant("hide_and_seek_fort", easy_starts=0.3)
    starts = [draw_start(usual, random) for _ in range(100)]
    near = [np.hypot(*(s.boxes[0] - s.layout.door_middles[0])) < 1.0 for s in starts]
    assert 5 < sum(near) < 35, "the others are at least a metre away"


def test_scaled_maps_keep_objects_and_grow_the_rest() -> None:
    for scale, steps in ((1.5, 360), (2.0, 480)):
        config = variant("hide_and_seek", scale=scale)
        assert (config.side, config.num_steps) == (6 * scale, steps)
        assert config.bounds == (-6 * scale, 12 * scale)
    assert variant("hide_and_seek", scale=2.0, scale_horizon=False).num_steps == 240


def test_free_gap_is_the_widest_way_between_two_walls() -> None:
    left, right = (0.0, 0, 0.5, 0.05, 0), (1.7, 0, 0.5, 0.05, 0)

    def gap(*objects: tuple[float, float, float, float, float]) -> float:
        return free_gap(np.array([left, right, *objects]), 0, 1)

    assert gap() == pytest.approx(0.7)
    assert gap((0.85, 0, 0.25, 0.25, 0)) == pytest.approx(0.1)
    assert gap((0.75, 0, 0.25, 0.25, 0)) == pytest.approx(0.2)
    assert gap((0.85, 0, 0.25, 0.25, np.pi / 4)) == pytest.approx(0.35 - 0.25 * 2**0.5, abs=0.05)
    assert gap((0.85, 3, 0.25, 0.25, 0)) == pytest.approx(0.7)
    in_front = gap((0.85, 0.5, 0.25, 0.25, 0))
    assert in_front == pytest.approx(np.hypot(0.1, 0.2))
    crossed = np.array([(0, 0, 1, 0.1, 0), (0, 0, 1, 0.1, np.pi / 2)])
    assert distances(crossed)[0, 1] == 0
