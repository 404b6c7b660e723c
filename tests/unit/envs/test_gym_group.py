"""Copies stepped one by one: ends of episodes, rewards, masks, metrics and errors."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from playing import check_episode_rules, group_of, play, stacked

from srl.errors import EnvError
from srl.testing.envs import ScriptedEnv

SCRIPTED = "srl.testing.envs:ScriptedEnv"


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), num_envs=st.integers(1, 4), longest=st.integers(1, 6))
def test_ends_and_rewards_follow_the_script(seed: int, num_envs: int, longest: int) -> None:
    group = group_of(SCRIPTED, num_envs, args={"max_length": longest})
    played = play(group, 25, seed)
    check_episode_rules(played)
    for index in range(num_envs):
        rewards, terminated, truncated, first = [], [], [], []
        episode = 0
        while len(rewards) <= 25:
            paid, terminates = ScriptedEnv.script(seed + index, episode, 1, longest)
            rewards += [0, *paid]
            first += [True, *[False] * len(paid)]
            terminated += [False] * len(paid) + [terminates]
            truncated += [False] * len(paid) + [not terminates]
            episode += 1
        assert stacked(played, "main", "reward")[:, index].tolist() == rewards[:26]
        assert stacked(played, "main", "is_first")[:, index].tolist() == first[:26]
        assert stacked(played, "main", "terminated")[:, index].tolist() == terminated[:26]
        assert stacked(played, "main", "truncated")[:, index].tolist() == truncated[:26]


def test_the_final_observation_is_shown_before_the_first_of_the_next() -> None:
    played = play(group_of(SCRIPTED, 1, args={"min_length": 2, "max_length": 2}), 4)
    shown = [step["main"]["obs"][0, :2].tolist() for step in played]
    assert shown == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1]]


def test_metrics_are_read_where_an_episode_ends() -> None:
    group = group_of(SCRIPTED, 2)
    assert group.spec.metrics == ("episode",)
    for step in play(group, 30):
        main = step["main"]
        ended = main["terminated"] | main["truncated"]
        assert (main["metrics"]["episode"][ended] == main["obs"][ended, 0]).all()


def test_masks_come_from_info_and_forbid() -> None:
    # The environment raises when a forbidden action arrives, so playing is the test.
    played = play(group_of(SCRIPTED, 2, args={"mask": True}), 60)
    for step in played:
        main = step["main"]
        allowed = main["action_mask"].sum(axis=1)
        assert (allowed[main["turn"]] == 2).all()
        assert (allowed[~main["turn"]] == 3).all()


def test_a_group_that_is_reset_again_shows_the_masks_of_its_first_observations() -> None:
    group = group_of(SCRIPTED, 2, args={"mask": True, "min_length": 3, "max_length": 3})
    assert play(group, 3)[-1]["main"]["action_mask"].all(), "final observations"
    assert (group.reset(0)["main"].action_mask.sum(axis=1) == 2).all()


class Parts(ScriptedEnv):
    """Two choices, one of which has nothing that is allowed."""

    def __init__(self) -> None:
        super().__init__(mask=True)
        self.action_space = gymnasium.spaces.MultiDiscrete([3, 2])

    def _mask(self) -> np.ndarray:
        return np.array([1, 1, 1, 0, 0], np.int8)


def test_every_part_of_an_action_must_have_a_choice() -> None:
    with pytest.raises(EnvError, match="at least one allowed action"):
        group_of(f"{__name__}:Parts", 2).reset(0)


def test_an_undeclared_mask_is_found_in_the_first_reset() -> None:
    group = group_of("Taxi-v4", 2)
    assert group.spec.agents["agent"].has_action_mask
    assert not play(group, 5)[-1]["main"]["action_mask"].all()
    group.close()


def test_the_limit_truncates() -> None:
    group = group_of("CartPole-v1", 2, backend="single", max_episode_steps=5)
    played = play(group, 12)
    assert stacked(played, "main", "truncated")[5].all()
    assert not stacked(played, "main", "terminated").any()
    group = group_of(
        "srl.testing.envs:ScriptedEnv",
        1,
        {"main": ("agent",)},
        args={"min_length": 9, "max_length": 9},
        max_episode_steps=4,
    )
    played = play(group, 4)
    assert stacked(played, "main", "truncated")[:, 0].tolist() == [False] * 4 + [True]
    # The environment does not know that its episode ended, so it reported nothing.
    assert np.isnan(played[4]["main"]["metrics"]["episode"][0])


def test_on_call_names_call_and_environment() -> None:
    from srl.envs.protocol import EnvConfig
    from srl.envs.registry import make_group

    calls: list[tuple[str, int]] = []
    group = make_group(
        EnvConfig(id=SCRIPTED, args={"max_length": 1}),
        num_envs=2,
        policy_agents={"p": ("agent",)},
        on_call=lambda call, index: calls.append((call, index)),
    )
    assert calls == [("make", 0), ("make", 1)]
    calls.clear()
    group.reset(0)
    group.step({"p": np.zeros(2, np.int64)})
    group.step({"p": np.zeros(2, np.int64)})
    assert [name for name, _ in calls] == ["reset", "reset", "step", "step", "reset", "reset"]
    assert [index for _, index in calls] == [0, 1] * 3


@pytest.mark.parametrize(
    ("name", "args", "parts"),
    [
        ("CrashingEnv", {"at_step": 2}, ["environment 0", "step()", "RuntimeError", "on purpose"]),
        ("CrashingEnv", {"at_step": 1, "call": "reset"}, ["environment 0", "reset()"]),
        ("NanEnv", {}, ["obs", "expected finite", "nan", "environment 0", "step()"]),
        ("NanEnv", {"what": "reward"}, ["reward", "nan", "environment 0"]),
        ("NanEnv", {"what": "reward", "value": float("inf")}, ["reward", "inf"]),
        ("BadShapeEnv", {}, ["expected float32[4]", "got float32[1]", "environment 0", "Declare"]),
        ("BadShapeEnv", {"shape": [4], "dtype": "complex64"}, ["expected float32[4]", "complex64"]),
        ("BadShapeEnv", {"call": "reset", "at_step": 1}, ["float32[1]", "reset()"]),
    ],
)
def test_what_goes_wrong_is_named(name: str, args: dict, parts: list[str]) -> None:
    with pytest.raises(EnvError) as caught:
        play(group_of(f"srl.testing.envs:{name}", 2, args=args), 10)
    for part in parts:
        assert part in str(caught.value)


def test_the_right_environment_is_blamed() -> None:
    group = group_of(SCRIPTED, 3)
    group.reset(0)
    group._envs[2].step = lambda action: (np.zeros(4, np.float32), float("nan"), False, False, {})
    with pytest.raises(EnvError, match="environment 2"):
        group.step({"main": np.zeros(3, np.int64)})
    group._envs[1].step = lambda action: (np.zeros(4, np.float32), None, False, False, {})
    group.reset(0)
    with pytest.raises(EnvError, match="reward: expected a finite number, got None"):
        group.step({"main": np.zeros(3, np.int64)})


def test_a_reward_that_is_no_number_is_named() -> None:
    group = group_of(SCRIPTED, 2)
    group.reset(0)
    group._envs[1].step = lambda action: (np.zeros(4, np.float32), "high", False, False, {})
    with pytest.raises(EnvError, match="reward: expected one number, got str 'high'"):
        group.step({"main": np.zeros(2, np.int64)})


def test_the_cause_of_a_crash_is_kept() -> None:
    with pytest.raises(EnvError) as caught:
        play(group_of("srl.testing.envs:CrashingEnv", 1), 10)
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_box_actions_are_clipped_and_cast() -> None:
    group = group_of("Pendulum-v1", 1)
    group.reset(0)
    seen = []
    real = group._envs[0].step
    group._envs[0].step = lambda action: (seen.append(action), real(action))[1]
    action = np.array([[50.0]], np.float32)
    group.step({"main": action})
    assert seen[0] == 2.0
    assert seen[0].dtype == np.float32
    assert action[0, 0] == 50.0


def test_render_gives_pictures() -> None:
    group = group_of(SCRIPTED, 1, render=True)
    group.reset(0)
    assert group.render(0).shape == (8, 8, 3)


def test_closing_twice_is_safe() -> None:
    group = group_of(SCRIPTED, 1)
    group.close()
    group.close()
