"""Native vector environments and EnvPool keep the same rules as copies do."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from playing import check_episode_rules, group_of, play, stacked

from srl.envs.gym_group import GymGroup
from srl.envs.protocol import BackgroundGroup, EnvConfig
from srl.envs.registry import make_group
from srl.envs.vector_group import VectorGroup
from srl.errors import ConfigError, EnvError
from srl.testing.envs import CrashingEnv, ScriptedEnv


def scripted_vector(num_envs: int, mode: str = "NEXT_STEP", mask: bool = False) -> Any:
    vector = SyncVectorEnv(
        [lambda: ScriptedEnv(mask=mask)] * num_envs, autoreset_mode=AutoresetMode[mode]
    )
    vector.metrics = ("episode",)
    return vector


class Shown(ScriptedEnv):
    """Its mask is in what it shows."""

    def __init__(self) -> None:
        super().__init__(mask=True)
        mask = gymnasium.spaces.Box(0, 1, (3,), np.int8)
        seen = self.observation_space
        self.observation_space = gymnasium.spaces.Dict(observation=seen, action_mask=mask)

    def reset(self, **options: Any) -> Any:
        obs, info = super().reset(**options)
        return {"observation": obs, "action_mask": info.pop("action_mask")}, info

    def step(self, action: Any) -> Any:
        obs, *rest, info = super().step(action)
        return {"observation": obs, "action_mask": info.pop("action_mask")}, *rest, info


def showing_vector(num_envs: int) -> Any:
    vector = SyncVectorEnv([Shown] * num_envs)
    vector.metrics = ("episode",)
    return vector


class Forgetful(ScriptedEnv):
    """Gives a mask in every step, and none in a reset."""

    def __init__(self) -> None:
        super().__init__(mask=True)

    def reset(self, **options: Any) -> Any:
        obs, _ = super().reset(**options)
        return obs, {}


def forgetful_vector(num_envs: int) -> Any:
    vector = SyncVectorEnv([lambda: ScriptedEnv(mask=True), Forgetful][:num_envs])
    vector.metrics, vector.has_action_mask = ("episode",), True
    return vector


def test_a_mask_that_is_left_out_is_missed() -> None:
    with pytest.raises(EnvError, match=r"action_mask: expected at least one allowed action"):
        group_of(f"{__name__}:forgetful_vector", 2).reset(0)


def test_a_mask_in_the_observation_is_that_of_copies() -> None:
    vector = group_of(f"{__name__}:showing_vector", 3)
    copies = group_of("srl.testing.envs:ScriptedEnv", 3, args={"mask": True})
    assert vector.spec == copies.spec
    ours, theirs = play(vector, 60), play(copies, 60)
    for field in ("obs", "action_mask"):
        assert (stacked(ours, "main", field) == stacked(theirs, "main", field)).all(), field


def test_native_atari_shows_what_copies_do() -> None:
    pytest.importorskip("ale_py")
    vector, copies = (
        group_of("ALE/Pong-v5", 2, backend=backend) for backend in ("vector", "single")
    )
    assert isinstance(vector, VectorGroup)
    assert vector.spec.agents["agent"].obs == copies.spec.agents["agent"].obs
    check_episode_rules(play(vector, 5))
    stacks = group_of("ALE/Pong-v5", 2, backend="vector", args={"stack_num": 3})
    assert stacks.spec.agents["agent"].obs.shape == (3, 84, 84)
    for group in (vector, copies, stacks):
        group.close()


def crashing_vector(num_envs: int) -> Any:
    return SyncVectorEnv([CrashingEnv] * num_envs)


HERE = f"{__name__}:scripted_vector"


@pytest.mark.parametrize("mask", [False, True])
def test_a_vector_environment_equals_copies(mask: bool) -> None:
    vector, copies = (
        group_of(id, 3, args={"mask": mask}) for id in (HERE, "srl.testing.envs:ScriptedEnv")
    )
    assert isinstance(vector, VectorGroup)
    assert vector.spec == copies.spec
    ours, theirs = play(vector, 60), play(copies, 60)
    check_episode_rules(ours)
    for field in ("obs", "reward", "terminated", "truncated", "is_first", "turn", "alive"):
        assert (stacked(ours, "main", field) == stacked(theirs, "main", field)).all(), field
    for a, b in zip(ours, theirs, strict=True):
        ended = a["main"]["terminated"] | a["main"]["truncated"]
        assert (
            a["main"]["metrics"]["episode"][ended] == b["main"]["metrics"]["episode"][ended]
        ).all()


@pytest.mark.parametrize("mode", ["SAME_STEP", "DISABLED"])
def test_other_autoreset_modes_are_refused_with_the_reason(mode: str) -> None:
    with pytest.raises(ConfigError, match=r"next-step autoreset.*NEXT_STEP"):
        group_of(HERE, 2, args={"mode": mode})


def test_a_crash_is_named() -> None:
    with pytest.raises(EnvError, match=r"vector environment raised RuntimeError in step\(\)"):
        play(group_of(f"{__name__}:crashing_vector", 2), 10)


@pytest.mark.parametrize("call", ["reset", "step"])
def test_a_vector_that_ends_the_program_is_named(call: str) -> None:
    group = group_of(HERE, 2)
    actions = {"main": np.zeros(2, np.int64)}
    group.reset(0)

    def leave(*_: Any, **__: Any) -> None:
        raise SystemExit(0)

    setattr(group._vector, call, leave)
    with pytest.raises(EnvError, match=rf"vector environment raised SystemExit in {call}\(\)"):
        group.reset(0) if call == "reset" else group.step(actions)


@pytest.mark.parametrize("pictures", [None, [np.zeros(3, np.uint8)] * 2, [np.zeros((8, 8, 3))] * 2])
@pytest.mark.parametrize("id", [HERE, "envpool:CartPole-v1"])
def test_what_is_no_picture_is_named(id: str, pictures: Any, monkeypatch: Any) -> None:
    if id.startswith("envpool:"):
        pytest.importorskip("envpool")
    group = group_of(id, 2, render=True)
    try:
        group.reset(0)
        monkeypatch.setattr(group._vector, "render", lambda **which: pictures)
        with pytest.raises(
            EnvError, match=r"render: expected .*, got (none|uint8\[3\]|float64\[8)"
        ):
            group.render(1 if pictures is None else 0)
    finally:
        group.close()


def test_auto_takes_the_native_cartpole_when_there_are_many() -> None:
    assert isinstance(group_of("CartPole-v1", 2), GymGroup)
    assert isinstance(group_of("CartPole-v1", 16), VectorGroup)
    assert isinstance(group_of("CartPole-v1", 16, render=True), GymGroup)
    with pytest.raises(ConfigError, match="Acrobot"):
        group_of("Acrobot-v1", 2, backend="vector")


def test_native_cartpole_moves_as_the_single_one_does() -> None:
    group = group_of("CartPole-v1", 8, backend="vector", max_episode_steps=30)
    played = play(group, 120)
    check_episode_rules(played)
    assert stacked(played, "main", "truncated").any()
    assert stacked(played, "main", "terminated").any()
    single = gymnasium.make("CartPole-v1").unwrapped
    random = np.random.default_rng(0)
    steps = group.reset(3)["main"]
    for _ in range(60):
        before = group._vector.state.copy()
        goes_on = steps.turn.copy()
        actions = random.integers(0, 2, 8)
        steps = group.step({"main": actions})["main"]
        for index in np.flatnonzero(goes_on):
            single.reset()
            single.state = before[:, index]
            obs, reward, terminated, _, _ = single.step(int(actions[index]))
            assert (obs == steps.obs[index]).all()
            assert reward == steps.reward[index]
            assert terminated == steps.terminated[index]


def test_envpool_cartpole_moves_as_gymnasium_does() -> None:
    pytest.importorskip("envpool")
    group = group_of("envpool:CartPole-v1", 4, max_episode_steps=20)
    played = play(group, 150)
    check_episode_rules(played)
    single = gymnasium.make("CartPole-v1").unwrapped
    random = np.random.default_rng(0)
    steps = group.reset(0)["main"]
    ends = {"terminated": 0, "truncated": 0}
    elapsed = np.zeros(4, int)
    for _ in range(150):
        before, goes_on = steps.obs.astype(np.float64), steps.turn.copy()
        actions = random.integers(0, 2, 4)
        steps = group.step({"main": actions})["main"]
        elapsed = np.where(goes_on, elapsed + 1, 0)
        for index in np.flatnonzero(goes_on):
            single.reset()
            single.state = before[index]
            obs, reward, terminated, _, _ = single.step(int(actions[index]))
            np.testing.assert_allclose(obs, steps.obs[index], atol=1e-5)
            assert reward == steps.reward[index]
            if elapsed[index] < 20:
                assert terminated == steps.terminated[index]
            else:
                # EnvPool calls whatever ends in the last allowed step truncated.
                assert steps.truncated[index]
        ends["terminated"] += int(steps.terminated.sum())
        ends["truncated"] += int(steps.truncated.sum())
    assert min(ends.values()) > 0
    group.close()


def test_envpool_seeds_decide_the_run() -> None:
    pytest.importorskip("envpool")
    group = group_of("envpool:CartPole-v1", 3)
    once, again, other = play(group, 5, 1), play(group, 5, 1), play(group, 5, 2)
    assert (stacked(once, "main", "obs") == stacked(again, "main", "obs")).all()
    assert (stacked(once, "main", "obs")[0] != stacked(other, "main", "obs")[0]).any()
    assert len(np.unique(once[0]["main"]["obs"][:, 0])) == 3
    group.close()
    group.close()


@pytest.mark.parametrize("id", ["envpool:CartPole-v1", "envpool:Pong-v5"])
def test_envpool_steps_in_the_background_as_at_once(id: str) -> None:
    pytest.importorskip("envpool")
    group, other = group_of(id, 3), group_of(id, 3)
    assert isinstance(group, BackgroundGroup)
    group.reset(4)
    other.reset(4)
    rng = np.random.default_rng(0)
    for _ in range(40):
        actions = {"main": rng.integers(0, 2, 3)}
        group.begin(actions)
        at_once = other.step(actions)["main"]
        finished = group.finish()["main"]
        for name in ("obs", "reward", "terminated", "truncated", "is_first"):
            np.testing.assert_array_equal(getattr(finished, name), getattr(at_once, name))
    group.begin(actions)
    group.close()
    other.close()


def test_envpool_atari_is_one_raw_frame() -> None:
    pytest.importorskip("envpool")
    group = group_of("envpool:Pong-v5", 2, max_episode_steps=20)
    leaf = group.spec.agents["agent"].obs
    assert (leaf.shape, leaf.dtype, leaf.stack) == ((84, 84), "uint8", 4)
    played = play(group, 45)
    check_episode_rules(played)
    assert np.flatnonzero(stacked(played, "main", "truncated")[:, 0]).tolist() == [20, 41]
    assert group.state() is None
    config = group._vector.spec.config
    assert (config.stack_num, config.episodic_life, config.reward_clip) == (1, False, False)
    group.close()


def test_envpool_settings_that_do_not_exist_are_named() -> None:
    pytest.importorskip("envpool")
    with pytest.raises(ConfigError, match="did you mean"):
        group_of("envpool:Pong-v5", 1, args={"nop_max": 3})
    with pytest.raises(ConfigError, match="'Pong-v5'"):
        group_of("envpool:Pong-v55", 1)
    with pytest.raises(ConfigError, match="batch_size"):
        group_of("envpool:Pong-v5", 2, args={"batch_size": 1})


@pytest.mark.parametrize("id", [HERE, "envpool:CartPole-v1"])
def test_a_quiet_tick_is_one_in_which_nothing_begins_or_ends(id: str) -> None:
    """What is not written in a quiet tick must be what it would have been."""
    group = group_of(id, 3)
    rng = np.random.default_rng(0)
    step = group.reset(0)["main"]
    assert not step.quiet
    seen = set()
    for _ in range(200):
        step = group.step({"main": rng.integers(0, 2, 3)})["main"]
        final = step.terminated | step.truncated
        assert step.quiet == (not final.any() and not step.is_first.any())
        assert (step.turn == ~final).all()
        seen.add(step.quiet)
    assert seen == {True, False}
    group.close()


def test_envpool_threads_are_a_setting() -> None:
    def threads(id: str, **settings: int) -> int:
        group = make_group(
            EnvConfig(id=id, **settings),
            num_envs=4,
            policy_agents={"main": ("agent",)},
            on_call=lambda call, index: None,
        )
        group.reset(0)
        found = group._vector.config["num_threads"]  # type: ignore[attr-defined]
        group.close()
        return int(found)

    assert threads("envpool:CartPole-v1") == 1
    assert threads("envpool:CartPole-v1", threads=3) == 3
    assert threads("envpool:HalfCheetah-v4") == 0, "EnvPool's own choice: one for each core"
    with pytest.raises(ConfigError, match=r"env\.threads: expected at least 0"):
        EnvConfig(id="envpool:CartPole-v1", threads=-1)
