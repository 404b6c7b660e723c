"""Ids, and what is said when one is wrong."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces
from playing import group_of, play

from srl.data.spec import AgentSpec, ArraySpec, Box, EnvSpec, MultiBinary, action_bounds_warning
from srl.envs.buffers import blank_step
from srl.envs.check import _random, check_env
from srl.envs.listing import list_envs
from srl.envs.protocol import EnvConfig
from srl.envs.registry import probe
from srl.errors import ConfigError, EnvError


@pytest.mark.parametrize(
    ("id", "text"),
    [
        ("CartPole-v11", "'CartPole-v1'"),
        ("CartPol-v1", "'CartPole-v1'"),
        ("ALE/Pongg-v5", "'ALE/Pong-v5'"),
        ("Nowhere/Pong-v5", "unknown environment"),
        ("no_such_module:Env-v0", "no_such_module"),
        ("no_such_module:Env", "no_such_module"),
        ("no_such_file.py:Env", "no_such_file"),
        ("srl.testing.envs:ScriptedEn", "ScriptedEnv"),
        ("srl.testing.envs:np", "class or function"),
        ("builtins:dict", "expected a gymnasium.Env"),
        ("pettingzoo:classic.tictacto_v3", "classic.tictactoe_v3"),
        ("pettingzoo:classic.leduc_holdem_v4", "rlcard"),
    ],
)
def test_wrong_ids_are_answered_with_what_was_meant(id: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        probe(EnvConfig(id=id))


@pytest.mark.parametrize("id", ["CartPole-v1", "srl.testing.envs:ScriptedEnv", "ALE/Pong-v5"])
def test_wrong_arguments_are_settings_errors(id: str) -> None:
    with pytest.raises(ConfigError, match=r"env.args.*no_such_argument"):
        probe(EnvConfig(id=id, args={"no_such_argument": 1}))


def test_a_constructor_that_raises_is_named() -> None:
    with pytest.raises(EnvError, match=r"ALE/Pong-v5.*while it was made"):
        probe(EnvConfig(id="ALE/Pong-v5", args={"frame_skip": -1}))


def test_a_file_is_an_environment_too(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from srl.testing.envs import ScriptedEnv\n"
        "def make(longest):\n    return ScriptedEnv(max_length=longest)\n"
    )
    group = group_of(f"{file}:make", 2, args={"longest": 2})
    assert len(play(group, 5)) == 6


def test_atari_is_one_frame_stacked_by_the_system() -> None:
    leaf = probe(EnvConfig(id="ALE/Pong-v5")).agents["agent"].obs
    assert (leaf.shape, leaf.dtype, leaf.stack) == ((84, 84), "uint8", 4)
    group = group_of("ALE/Pong-v5", 1, max_episode_steps=6)
    played = play(group, 7)
    assert [step["main"]["truncated"][0] for step in played] == [False] * 6 + [True, False]
    group.close()


def test_sticky_actions_repeat_as_often_as_the_id_says() -> None:
    group = group_of("ALE/Pong-v5", 1)
    group.reset(0)
    sticky = group._envs[0].env
    assert sticky.probability == 0.25
    assert sticky.unwrapped.ale.getFloat("repeat_action_probability") == 0.0
    kept = 0
    for tick in range(2000):
        sticky.step(tick % 2 + 2)
        kept += sticky.last_action != tick % 2 + 2
    # Two kinds of action alternate, so a repeat of a repeat looks like a fresh one.
    assert 0.16 < kept / 2000 < 0.24
    group.close()


def test_the_list_holds_every_kind() -> None:
    names = list_envs()
    for name in ("CartPole-v1", "ALE/Pong-v5", "envpool:Pong-v5", "pettingzoo:mpe2.simple_tag_v3"):
        assert name in names


def test_nothing_here_imports_torch() -> None:
    import subprocess

    code = "import sys, srl.envs.registry, srl.envs.check; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("id", "args", "title", "level"),
    [
        ("CartPole-v1", {}, "exact state", "ok"),
        ("CartPole-v1", {}, "seed", "ok"),
        ("srl.testing.envs:NanEnv", {}, "protocol", "error"),
        ("srl.testing.envs:CrashingEnv", {}, "protocol", "error"),
        ("CartPol-v1", {}, "make", "error"),
        ("pettingzoo:classic.tictactoe_v3", {}, "episode end", "ok"),
        (f"{__name__}:Careless", {}, "seed", "error"),
        (f"{__name__}:Careless", {}, "observations", "warning"),
        (f"{__name__}:Careless", {}, "reward", "warning"),
        (f"{__name__}:Forgetful", {}, "exact state", "error"),
        (f"{__name__}:Distant", {}, "actions", "warning"),
    ],
)
def test_check_finds(id: str, args: dict, title: str, level: str) -> None:
    findings = {f.title: f for f in check_env(EnvConfig(id=id, args=args))}
    assert findings[title].level == level
    assert findings[title].fix or level == "ok"


@pytest.mark.parametrize(
    ("low", "high", "far"),
    [
        ((-1.0, 10.0), (1.0, 20.0), "action 1 is bounded by [10, 20]"),
        ((-8.0,), (-2.0,), "action 0 is bounded by [-8, -2]"),
        ((-math.inf,), (-3.0,), "action 0 is bounded by [-inf, -3]"),
        ((0.0, -2.0, -math.inf), (1.0, 2.0, math.inf), ""),
    ],
)
def test_bounds_that_a_new_policy_does_not_reach_are_named(
    low: tuple[float, ...], high: tuple[float, ...], far: str
) -> None:
    action = Box((len(low),), low, high)
    spec = EnvSpec(agents={"agent": AgentSpec(obs=ArraySpec(shape=(2,)), action=action)})
    assert far in action_bounds_warning(spec)
    assert bool(far) == bool(action_bounds_warning(spec))


def test_random_switches_are_those_that_are_allowed() -> None:
    agent = AgentSpec(obs=ArraySpec(), action=MultiBinary(3), has_action_mask=True)
    step = blank_step(agent, np.zeros(50, np.float32), rows=50, envs=50)
    # Off only, on only, and both.
    step.action_mask[:] = [True, False, False, True, True, True]
    drawn = _random(agent.action, step.action_mask, 50, np.random.default_rng(0))
    assert (drawn[:, :2] == [0, 1]).all()
    assert set(drawn[:, 2].tolist()) == {0, 1}


def test_cue_recall_needs_memory() -> None:
    group = group_of("srl.envs.tasks.memory:CueRecall", 1, args={"num_cues": 3, "delay": 4})
    steps = group.reset(0)["main"]
    scores, cue = [], 0
    for _ in range(300):
        if steps.is_first[0]:
            cue = int(np.argmax(steps.obs[0]))
            assert steps.obs[0].sum() == 1
        elif steps.turn[0]:
            assert not steps.obs[0, :-1].any()
        steps = group.step({"main": np.array([cue])})["main"]
        if steps.terminated[0]:
            scores.append(steps.reward[0])
    assert scores
    assert all(score == 1.0 for score in scores)


from srl.testing.envs import ScriptedEnv  # noqa: E402


class Careless(ScriptedEnv):
    def reset(self, **options):
        obs, info = super().reset(**options)
        return obs.astype(np.float64) + np.random.rand(), info

    def step(self, action):
        obs, reward, *rest = super().step(action)
        return obs, np.array(reward), *rest


class Distant(ScriptedEnv):
    def __init__(self, **options):
        super().__init__(**options)
        self.action_space = spaces.Box(np.float32([-1, 10]), np.float32([1, 20]))

    def step(self, action):
        assert 10 <= action[1] <= 20
        return super().step(0)


class Forgetful(ScriptedEnv):
    def state(self):
        return {**super().state(), "time": 0}


@pytest.mark.parametrize("setting", [{"stack": 2}, {"terminal_on_life_loss": True}])
def test_settings_of_images_are_refused_where_there_are_none(setting: dict[str, object]) -> None:
    pytest.importorskip("ale_py")
    (name,) = setting
    with pytest.raises(ConfigError, match=rf"obs_type='ram', got {name}"):
        probe(EnvConfig(id="ALE/Breakout-v5", args={"obs_type": "ram", **setting}))
    ram = probe(EnvConfig(id="ALE/Breakout-v5", args={"obs_type": "ram"}))
    assert ram.agents["agent"].obs.shape == (128,)
