"""JAX environments as a group, with small environments of both interfaces."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax_tasks
import numpy as np
import pytest
from playing import check_episode_rules, copied, group_of, play, stacked

from srl.envs.protocol import PolicyAgents
from srl.errors import ConfigError, EnvError, MissingDependency

FILE = Path(jax_tasks.__file__)
WALK, PATROL = f"jax:{FILE}:Walk", f"jax:{FILE}:Patrol"
TEAM: PolicyAgents = {"main": ("scout", "guard")}
APART: PolicyAgents = {"guards": ("guard",), "scouts": ("scout",)}


@pytest.fixture(autouse=True, scope="module")
def _compile_fast() -> Iterator[None]:
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(scope="module")
def walk() -> Any:
    """Three environments, which are compiled once for all tests that reset or restore them."""
    return group_of(WALK, 3)


@pytest.fixture(scope="module")
def patrol() -> Any:
    return group_of(PATROL, 3, APART)


def right(group: Any, go: int = 1) -> dict[str, np.ndarray]:
    return {name: np.full(len(step.reward), go) for name, step in group._steps.items()}


def test_one_environment_keeps_the_episode_rules(walk: Any) -> None:
    check_episode_rules(play(walk, 60))


def test_several_agents_keep_the_episode_rules(patrol: Any) -> None:
    played = play(patrol, 40)
    for name in APART:
        check_episode_rules(played, name)


def test_a_goal_terminates_and_a_time_limit_truncates(walk: Any) -> None:
    walk.reset(0)
    # The first goes to the goal in 4 steps, the second stays until the limit of 6.
    actions = {"main": np.array([1, 0, 0])}
    ends = []
    for _ in range(6):
        step = walk.step(actions)["main"]
        ends.append((step.terminated[:2].tolist(), step.truncated[:2].tolist()))
    assert ends[3] == ([True, False], [False, False])
    assert ends[5] == ([False, False], [False, True])
    assert [sum(map(sum, end)) for end in ends] == [0, 0, 0, 1, 0, 1]


def test_args_set_parameters_and_a_limit_of_the_settings_truncates() -> None:
    group = group_of(WALK, 1, args={"goal": 2}, max_episode_steps=3)
    group.reset(0)
    group.step(right(group))
    assert group.step(right(group))["main"].terminated.all()
    assert group.step(right(group))["main"].is_first.all()
    for _ in range(3):
        step = group.step(right(group, 0))["main"]
    assert step.truncated.all()
    assert not step.terminated.any()


def test_environment_i_is_seeded_with_seed_plus_i(walk: Any) -> None:
    first = copied(walk.reset(5))["main"]["obs"]
    second = copied(walk.step(right(walk)))["main"]["obs"]
    alone = group_of(WALK, 1)
    for i in range(3):
        np.testing.assert_array_equal(alone.reset(5 + i)["main"].obs[0], first[i])
        np.testing.assert_array_equal(alone.step(right(alone))["main"].obs[0], second[i])
    assert len(set(first[:, 2])) == 3
    assert not np.array_equal(copied(walk.reset(6))["main"]["obs"], first)


def test_observations_are_handed_over_without_a_copy(
    walk: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    walk.reset(0)
    tick, shown = walk._tick, []

    def noted(*arguments: Any) -> Any:
        found = tick(*arguments)
        shown.append(found[1])
        return found

    monkeypatch.setattr(walk, "_tick", noted)
    obs = walk.step(right(walk))["main"].obs
    assert obs.ctypes.data == shown[0][0]["main"]["obs"].unsafe_buffer_pointer()


def test_a_compiled_step_runs_no_python_of_the_environment(walk: Any) -> None:
    walk.reset(0)
    environment = type(walk._env._env)
    before = environment.traces
    for _ in range(20):
        walk.step(right(walk))
    assert environment.traces == before > 0


def test_agents_leave_at_their_time_and_come_back_together() -> None:
    group = group_of(PATROL, 2, TEAM)
    played = [copied(group.reset(0))]
    for _ in range(7):
        played.append(copied(group.step(right(group))))
    alive = stacked(played, "main", "alive")[:, :2].T.tolist()
    assert alive == [[True] * 3 + [False] * 3 + [True] * 2, [True] * 8]
    terminated = stacked(played, "main", "terminated")[:, :2]
    assert np.argwhere(terminated).tolist() == [[2, 0], [5, 1]]
    assert stacked(played, "main", "reward")[:, 0].tolist() == [0, 1, 1, 0, 0, 0, 0, 1]
    obs = stacked(played, "main", "obs")
    assert not obs[3:6, 0].any()
    assert obs[3:6, 1, 0].tolist() == [4, 5, 6]


def test_an_end_by_max_steps_truncates_those_who_are_still_there() -> None:
    group = group_of(PATROL, 1, TEAM, args={"max_steps": 3})
    group.reset(0)
    for _ in range(3):
        step = group.step(right(group))["main"]
    assert step.truncated.tolist() == [False, True]
    assert step.alive.tolist() == [False, True]


def test_masks_and_the_global_state_come_along(patrol: Any) -> None:
    assert patrol.spec.agents["scout"].has_action_mask
    steps = patrol.reset(0)
    assert steps["scouts"].action_mask.tolist() == [[False, True, True]] * 3
    steps = patrol.step(right(patrol))
    assert steps["guards"].action_mask.tolist() == [[False, True, False]] * 3
    for step in steps.values():
        assert step.env_state[:, 0].tolist() == [1, 1, 1]
        assert step.env_state[:, 2].tolist() == [2, 2, 2]
    luck = steps["guards"].env_state[:, 1]
    np.testing.assert_array_equal(steps["scouts"].obs[:, 1], luck)
    np.testing.assert_array_equal(steps["guards"].obs[:, 1], -luck)


@pytest.mark.parametrize("name", ["walk", "patrol"])
def test_a_restored_group_continues_exactly(name: str, request: pytest.FixtureRequest) -> None:
    group = request.getfixturevalue(name)
    play(group, 9)
    saved = group.state()
    expected = [copied(group.step(right(group))) for _ in range(12)]
    play(group, 3, seed=8)
    shown = copied(group.restore(saved))
    jax.tree.map(np.testing.assert_array_equal, shown, saved["steps"])
    for step in expected:
        jax.tree.map(np.testing.assert_array_equal, copied(group.step(right(group))), step)


def test_a_new_group_takes_a_state_without_a_reset() -> None:
    group, other = group_of(WALK, 1), group_of(WALK, 1)
    play(group, 4)
    other.restore(group.state())
    expected, got = copied(group.step(right(group))), copied(other.step(right(other)))
    jax.tree.map(np.testing.assert_array_equal, got, expected)


def test_a_bad_number_and_an_empty_mask_are_errors() -> None:
    group = group_of(WALK, 1, args={"bad": "reward"})
    group.reset(0)
    with pytest.raises(EnvError, match=r"reward: expected a finite number, got -inf"):
        group.step(right(group))
    with pytest.raises(EnvError, match="expected at least one allowed action"):
        group_of(PATROL, 1, TEAM, args={"no_choice": True}).reset(0)


@pytest.mark.parametrize(
    ("id", "settings", "message"),
    [
        ("jax:Walk", {}, "expected jax:gymnax:NAME"),
        (WALK, {"args": {"gaol": 1}}, "does not take .*gaol.*goal, max_steps_in_episode"),
        (WALK, {"backend": "single"}, "expected auto or vector"),
        (f"jax:{FILE}:WalkParams", {}, "expected Gymnax's interface"),
        ("jax:gymnax:CartPol-v1", {}, "CartPole-v1"),
    ],
)
def test_what_does_not_fit_is_refused(id: str, settings: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        group_of(id, **settings)


def test_without_jax_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("srl.extras.installed", lambda package: False)
    with pytest.raises(MissingDependency, match="jax"):
        group_of(WALK)


def test_gymnaxs_own_environments_play() -> None:
    check_episode_rules(play(group_of("jax:gymnax:CartPole-v1"), 60))
