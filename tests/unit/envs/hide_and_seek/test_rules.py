"""The rules of hide-and-seek, pinned to the numbers of the original."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("mujoco")

from moves import STILL, Scripted, config, start

from srl.envs.hide_and_seek import VARIANTS
from srl.envs.hide_and_seek.config import changed
from srl.envs.hide_and_seek.game import Game

FAST, LEFT = (10, 5, 5, 0, 0), (0, 5, 5, 0, 0)
GRAB, LOCK = (5, 5, 5, 1, 0), (5, 5, 5, 0, 1)
FACE_X = np.pi / 2
"""The yaw of an agent that looks along +x: its front is -y of its own frame."""


def test_agent_reaches_its_terminal_speed_and_stops() -> None:
    play = Scripted(config(boxes=0), start(config(boxes=0), [(1, 3), (1, 5)]))
    moved = []
    for _ in range(5):
        before = play.at(0)[0]
        play.play(FAST)
        moved.append(play.at(0)[0] - before)
    assert moved[0] == pytest.approx(0.18, abs=0.02)
    assert moved[2] == pytest.approx(0.50, abs=0.03)
    assert play.game.worlds.qvel[0, 0, 0] == pytest.approx(7.6, abs=0.4)
    play.play(STILL, steps=6)
    assert abs(play.game.worlds.qvel[0, 0, 0]) < 0.01


def test_agent_turns_by_0667_per_step() -> None:
    play = Scripted(config(boxes=0), start(config(boxes=0), [(3, 3), (1, 5)]))
    play.play((5, 5, 10, 0, 0))
    before = play.at(0)[-1]
    play.play((5, 5, 10, 0, 0))
    assert play.at(0)[-1] - before == pytest.approx(0.667, abs=0.01)


@pytest.mark.parametrize("degrees", [66.0, -66.0, 69.0, -69.0])
def test_cone_ends_at_half_of_135_degrees(degrees: float) -> None:
    rules = config(boxes=0)
    play = Scripted(rules, start(rules, [(3, 3), (5, 3)]))
    play.turn(0, FACE_X + np.radians(degrees))
    assert play.sees(0, 1) == (abs(degrees) < 67.5)


def test_walls_and_boxes_block_sight_and_lidar() -> None:
    rules = config()
    open_field = Scripted(rules, start(rules, [(2, 3), (5, 3)], [(1, 1)]))
    walled = Scripted(rules, start(rules, [(2, 3), (5, 3)], [(1, 1)], walls=[(3, 3, 0.05, 1)]))
    boxed = Scripted(rules, start(rules, [(2, 3), (5, 3)], [(3.5, 3)]))
    for play, sees in ((open_field, True), (walled, False), (boxed, False)):
        play.turn(0, FACE_X)
        assert play.sees(0, 1) == sees
    lidar = [float(play.game.sight.lidar[0, 0, 0]) for play in (open_field, walled, boxed)]
    assert lidar == pytest.approx([2.85, 0.95, 1.25], abs=0.01)
    assert open_field.game.sight.lidar[0, 0, 7] == 6.0, "no hit"


def test_grab_gives_no_jump_and_drags() -> None:
    rules = config()
    play = Scripted(rules, start(rules, [(2, 3), (5, 5)], [(2.48, 3.02)]))
    play.turn(0, FACE_X)
    before = play.at(2)
    play.play(GRAB)
    assert play.game.interaction.held[0].tolist() == [0, -1]
    assert np.abs(play.at(2) - before).max() < 1e-3
    play.play((0, 5, 5, 1, 0), steps=6)
    assert play.at(2)[0] < before[0] - 0.7
    play.play(STILL)
    assert play.game.interaction.held[0, 0] == -1


def test_out_of_reach_or_out_of_sight_nothing_is_grabbed() -> None:
    rules = config()
    far = Scripted(rules, start(rules, [(2, 3), (5, 5)], [(2.51, 3)]))
    far.turn(0, FACE_X)
    behind = Scripted(rules, start(rules, [(2, 3), (5, 5)], [(2.45, 3)]))
    behind.turn(0, -FACE_X)
    for play in (far, behind):
        play.play((5, 5, 5, 1, 1))
        assert play.game.interaction.held[0, 0] == -1
        assert not play.game.interaction.locked.any()


def test_nearer_object_steals_the_grip() -> None:
    rules = config(boxes=2)
    play = Scripted(rules, start(rules, [(2, 3), (5, 5)], [(2.44, 3.0), (2.0, 2.52)]))
    play.turn(0, FACE_X / 2)
    assert play.game.interaction.distances()[0, 0] == pytest.approx([0.19, 0.23])
    play.play(GRAB)
    assert play.game.interaction.held[0, 0] == 0
    play.game.worlds.qpos[0, 3, 1] += 0.1
    play.play(GRAB)
    assert play.game.interaction.held[0, 0] == 1


def test_locked_box_does_not_move_under_a_push() -> None:
    rules = config()
    moved = []
    for action in (LOCK, STILL):
        play = Scripted(rules, start(rules, [(2.3, 3), (1, 3)], [(2.74, 3)]))
        play.turn(0, FACE_X)
        play.play(action, steps=2)
        before = play.at(2)
        play.play((10, 5, 5, 0, action[-1]), steps=8)
        moved.append(np.abs(play.at(2) - before).max())
    assert moved[0] < 0.02
    assert moved[1] > 0.5


VETO = [
    # (who locked it, who is near and wants 1, who is near and has 0) -> locked afterwards
    ("nobody", ["hider"], [], True),
    ("nobody", ["seeker"], [], True),
    ("nobody", ["seeker"], ["hider"], False),
    ("nobody", ["hider"], ["seeker"], True),
    ("hider", [], ["seeker"], True),
    ("hider", [], ["hider"], False),
    ("hider", ["seeker"], [], True),
    ("hider", ["hider"], ["seeker"], True),
    ("seeker", [], ["hider"], True),
    ("seeker", [], ["seeker"], False),
    ("seeker", ["hider"], ["seeker"], False),
]


@pytest.fixture(scope="module")
def beside() -> Scripted:
    """A hider and a seeker on opposite sides of a box."""
    rules = config()
    play = Scripted(rules, start(rules, [(2, 3), (2.9, 3)], [(2.45, 3)]))
    play.turn(0, FACE_X)
    play.turn(1, -FACE_X)
    return play


@pytest.mark.parametrize(("owner", "wanting", "refusing", "locked"), VETO)
def test_lock_veto(
    beside: Scripted, owner: str, wanting: list[str], refusing: list[str], locked: bool
) -> None:
    hands = beside.game.interaction
    hands._switch(0, 0, owner != "nobody")
    hands.owner[:] = owner == "seeker"
    names = ("hider", "seeker")
    lock = np.array([[name in wanting for name in names]])
    near = np.array([[[name in wanting + refusing] for name in names]])
    random = [np.random.default_rng(0)]
    hands.apply(np.zeros((1, 2), bool), lock, near, np.ones(1, bool), random)
    assert bool(hands.locked[0, 0]) == locked


@pytest.mark.parametrize(
    ("name", "unpaid", "steps"), [("hide_and_seek", 96, 240), ("hide_and_seek_quadrant", 32, 80)]
)
def test_preparation_is_not_paid(name: str, unpaid: int, steps: int) -> None:
    rules = changed(VARIANTS[name], {"substeps": 1, "lidar_rays": 0, "objects_in_bounds": False})
    game = Game(rules, 1)
    game.seed(0, 3)
    game.reset([0])
    batch = np.array([STILL] * rules.num_agents)[None]
    paid = []
    while not game.final[0]:
        game.tick(batch)
        paid.append(bool((game.reward[0][game.present[0]] != 0).all()))
    assert len(paid) == steps
    assert paid == [False] * unpaid + [True] * (steps - unpaid)


def test_seekers_wait_in_the_preparation_phase() -> None:
    rules = config(preparation=0.1, boxes=0)
    play = Scripted(rules, start(rules, [(1, 1), (1, 5)]))
    for step in range(8):
        play.play(FAST, FAST)
        assert play.game.observation.arrays["self"][0, 0, -1] == (step + 1) / 8
    assert play.at(0)[0] > 2
    assert play.at(1)[0] == 1.0
    play.play(FAST, FAST)
    assert play.at(1)[0] > 1.1


def test_motionless_seekers_never_act() -> None:
    rules = config(boxes=0, motionless_seekers=True)
    play = Scripted(rules, start(rules, [(1, 1), (1, 5)]))
    play.play(FAST, FAST, steps=5)
    assert play.at(0)[0] > 2
    assert play.at(1)[0] == 1.0


def test_rewards_are_of_teams_and_the_penalty_overrides_them() -> None:
    rules = config(hiders=2, boxes=0)
    play = Scripted(rules, start(rules, [(3, 3), (5, 1), (3, 4)]))
    play.play()
    assert play.sees(2, 0), "a seeker that looks along -y sees the hider before it"
    assert play.game.reward[0].tolist() == [-1, -1, 1]
    play.turn(2, np.pi)
    play.play()
    assert play.game.reward[0].tolist() == [1, 1, -1]
    outside = Scripted(rules, start(rules, [(3, 3), (5.95, 5), (3, 4)]))
    outside.play()
    assert outside.game.reward[0].tolist() == [-1, -10, 1]


def test_preparation_has_no_penalty_either() -> None:
    rules = config(boxes=0, preparation=0.5)
    outside = Scripted(rules, start(rules, [(3, 3), (5.95, 5)]))
    outside.play(steps=40)
    assert outside.game.reward[0].tolist() == [0, 0]
    outside.play()
    assert outside.game.reward[0, 1] == -10


def test_original_observations_have_corners_and_the_raw_angle() -> None:
    seen = {}
    for original in (False, True):
        rules = config(original_observation=original)
        play = Scripted(rules, start(rules, [(2, 3), (5, 5)], [(4, 4)]))
        play.turn(0, 7.0)
        seen[original] = {k: v[0, 0] for k, v in play.game.observation.arrays.items()}
    assert seen[False]["self"][:5] == pytest.approx([2, 3, 0.15, np.cos(7), np.sin(7)])
    assert seen[True]["self"][:4] == pytest.approx([1.85, 2.85, 0.0, 7.0], abs=1e-6)
    assert seen[False]["boxes"][0, :3] == pytest.approx([4, 4, 0.25])
    assert seen[True]["boxes"][0, :3] == pytest.approx([3.75, 3.75, 0.0], abs=1e-6)


@pytest.mark.parametrize(
    ("rule", "wanting", "refusing", "locked"),
    [
        ("any", ["seeker"], ["hider"], True),
        ("any", [], ["seeker"], False),
        ("all", ["hider"], ["seeker"], False),
        ("all", ["hider", "seeker"], [], True),
        ("own", [], ["seeker"], True),
        ("own", [], ["hider"], False),
    ],
)
def test_other_lock_rules(rule: str, wanting: list[str], refusing: list[str], locked: bool) -> None:
    """A box that the hider has locked, or nobody (agent 0) where somebody wants to."""
    rules = config(lock_rule=rule)
    play = Scripted(rules, start(rules, [(2, 3), (2.9, 3)], [(2.45, 3)]))
    hands, names = play.game.interaction, ("hider", "seeker")
    hands._switch(0, 0, not wanting)
    lock = np.array([[name in wanting for name in names]])
    near = np.array([[[name in wanting + refusing] for name in names]])
    random = [np.random.default_rng(0)]
    hands.apply(np.zeros((1, 2), bool), lock, near, np.ones(1, bool), random)
    assert bool(hands.locked[0, 0]) == locked


def test_object_outside_punishes_everyone() -> None:
    rules = config()
    play = Scripted(rules, start(rules, [(3, 3), (1, 5)], [(6.5, 3)]))
    play.play()
    assert play.game.reward[0].tolist() == [-10, -10]


def test_seeker_on_a_ramp_gets_over_a_wall() -> None:
    rules = config(boxes=0, ramps=1, lockable_ramps=True)
    wall = (3.0, 3.0, 3.0, 0.05)
    # The ramp's high face is towards -y, at the wall; the seeker drives up along -y.
    begin = start(rules, [(1, 1), (3, 4.2)], ramps=[(3, 3.31)], walls=[wall])
    over = Scripted(rules, begin)
    over.play(STILL, (5, 0, 5, 0, 0), steps=14)
    assert over.at(1)[1] < 2.9
    blocked = Scripted(rules, start(rules, [(1, 1), (3, 4.2)], ramps=[(1, 5)], walls=[wall]))
    blocked.play(STILL, (5, 0, 5, 0, 0), steps=14)
    assert blocked.at(1)[1] > 3.1
