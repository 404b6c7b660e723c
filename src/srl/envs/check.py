"""Does an environment keep the protocol? What `srl check ENV` tries, and what to change if not."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import gymnasium
import numpy as np

from srl.data.records import EnvStep
from srl.data.spec import (
    RESCALE,
    AgentSpec,
    Box,
    Discrete,
    EnvSpec,
    MultiBinary,
    MultiDiscrete,
    out_of_reach,
)
from srl.data.tree import leaves, paths
from srl.envs import registry
from srl.envs.buffers import step_state
from srl.envs.gym_group import GymGroup
from srl.envs.protocol import EnvConfig, EnvGroup
from srl.errors import SrlError

_STEPS = 300
"""Ticks that a check plays; enough for most tasks to end an episode."""
_SECONDS = 5.0
"""A check of a slow environment plays for no longer than this."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    level: Literal["ok", "warning", "error"]
    title: str
    detail: str
    fix: str = ""


def check_env(config: EnvConfig) -> list[Finding]:
    """Makes the environment, plays it at random, and says what it found, the worst included."""
    try:
        group = _make(config, 2)
    except SrlError as error:
        return [Finding("error", "make", str(error), "Make it construct with these settings.")]
    findings = [_spaces(group.spec)]
    far = out_of_reach(group.spec)
    if far:
        findings.append(Finding("warning", "actions", far, RESCALE))
    try:
        findings += _play(group)
        if isinstance(group, GymGroup) and _can_be_drawn(group):
            for env in group._envs[:1]:
                findings += _raw(env)
        findings.append(_exact(config, group))
    except SrlError as error:
        findings.append(Finding("error", "protocol", str(error), "The message says what to do."))
    finally:
        group.close()
    findings.append(_render(config))
    return findings


def random_actions(
    spec: EnvSpec, steps: dict[str, EnvStep], lanes: Any, random: np.random.Generator
) -> dict[str, np.ndarray]:
    """Allowed actions at random, for every row of every lane."""
    return {
        name: _random(spec.agents[lanes[name][0]], step, random) for name, step in steps.items()
    }


def _random(agent: AgentSpec, step: EnvStep, random: np.random.Generator) -> np.ndarray:
    rows = len(step.reward)
    match agent.action:
        case Discrete(n):
            if step.action_mask is None:
                return random.integers(0, n, rows)
            return np.array([random.choice(np.flatnonzero(mask)) for mask in step.action_mask])
        case MultiDiscrete(nvec):
            if step.action_mask is None:
                return random.integers(0, nvec, (rows, len(nvec)))
            bounds = np.cumsum((0, *nvec))
            parts = [step.action_mask[:, a:b] for a, b in itertools.pairwise(bounds)]
            picks = [[random.choice(np.flatnonzero(row)) for row in part] for part in parts]
            return np.array(picks).T
        case MultiBinary(n):
            drawn = random.integers(0, 2, (rows, n)).astype(np.int8)
            if step.action_mask is None:
                return drawn
            # For each: whether it may be 0, and whether it may be 1.
            pairs = step.action_mask.reshape(rows, n, 2)
            return np.where(pairs.all(2), drawn, pairs[:, :, 1]).astype(np.int8)
        case Box(shape, low, high):
            # Unbounded sides are played near 0.
            least = np.clip(np.array(low, np.float64).reshape(shape), -10.0, None)
            most = np.clip(np.array(high, np.float64).reshape(shape), None, 10.0)
            return random.uniform(least, most, (rows, *shape)).astype(np.float32)


def _make(config: EnvConfig, num_envs: int, render: bool = False) -> EnvGroup:
    return registry._build(
        config, num_envs=num_envs, lanes=None, on_call=lambda call, index: None, render=render
    )


def _spaces(spec: EnvSpec) -> Finding:
    name, agent = next(iter(spec.agents.items()))
    seen = ", ".join(f"{path or 'obs'} {leaf}" for path, leaf in paths(agent.obs))
    more = f" and {len(spec.agents) - 1} other agents" if len(spec.agents) > 1 else ""
    mask = ", with action masks" if agent.has_action_mask else ""
    return Finding("ok", "spaces", f"{name}: {seen}; {agent.action}{mask}{more}")


def _play(group: EnvGroup) -> Iterator[Finding]:
    """Plays through the group, which raises on shapes, dtypes, NaN and rewards that do not fit."""
    random = np.random.default_rng(0)
    steps = group.reset(seed=0)
    ended, ticks, started = 0, 0, time.perf_counter()
    while ticks < _STEPS and time.perf_counter() - started < _SECONDS:
        steps = group.step(random_actions(group.spec, steps, group.lanes, random))
        ended += sum(int((s.terminated | s.truncated).sum()) for s in steps.values())
        ticks += 1
    seconds = time.perf_counter() - started
    yield Finding("ok", "play", f"{ticks} steps in {group.num_envs} environments")
    speed = ticks * group.num_envs / seconds
    yield Finding("ok", "speed", f"{speed:,.0f} steps/s on one core, random actions included")
    if ended:
        yield Finding("ok", "episode end", f"{ended} agents' episodes ended, and new ones began")
    else:
        yield Finding(
            "warning",
            "episode end",
            f"no episode ended within {ticks} steps",
            "If episodes may last forever, set env.max_episode_steps.",
        )


def _can_be_drawn(group: GymGroup) -> bool:
    """Whether a space itself can draw allowed actions: it knows only masks of one choice."""
    agent = next(iter(group.spec.agents.values()))
    one_choice = isinstance(agent.action, Discrete) and not group._mask_in_obs
    return one_choice or not agent.has_action_mask


def _raw(env: gymnasium.Env[Any, Any]) -> Iterator[Finding]:
    """What only the environment itself can show: types, bounds, and what its seed decides."""
    first, second = _rollout(env, seed=7), _rollout(env, seed=7)
    same_start = _same(first[0][0], second[0][0])
    same_course = len(first) == len(second) and all(
        _same(a, b) for a, b in zip(first, second, strict=True)
    )
    if same_start and same_course:
        yield Finding("ok", "seed", "equal seeds and actions give equal episodes")
    else:
        what = "the episode" if same_start else "the first observation"
        yield Finding(
            "error",
            "seed",
            f"reset(seed=7) twice, same actions: {what} differed",
            "Call super().reset(seed=seed) and draw only from self.np_random.",
        )
    yield _declared(env, first)
    yield from _types(first[1:])


def _rollout(env: gymnasium.Env[Any, Any], seed: int) -> list[tuple[Any, ...]]:
    env.action_space.seed(seed)
    obs, info = env.reset(seed=seed)
    played: list[tuple[Any, ...]] = [(_copied(obs),)]
    for _ in range(50):
        mask = info.get("action_mask")
        action = env.action_space.sample(None if mask is None else np.asarray(mask, np.int8))
        obs, reward, terminated, truncated, info = env.step(action)
        played.append((_copied(obs), reward, terminated, truncated))
        if terminated or truncated:
            break
    return played


def _declared(env: gymnasium.Env[Any, Any], played: list[tuple[Any, ...]]) -> Finding:
    outside = [obs for obs, *_ in played if not env.observation_space.contains(obs)]
    if not outside:
        return Finding("ok", "observations", "every one is in the declared space")
    obs = outside[0]
    got = f"{obs.dtype}{list(obs.shape)}" if isinstance(obs, np.ndarray) else type(obs).__name__
    return Finding(
        "warning",
        "observations",
        f"{len(outside)} of {len(played)} are not in {env.observation_space}; one is {got}",
        "Return what the space declares: dtype, shape, and numbers within its bounds.",
    )


def _types(played: list[tuple[Any, ...]]) -> Iterator[Finding]:
    for _, reward, terminated, truncated in played:
        if not isinstance(reward, float | int | np.floating | np.integer):
            yield Finding(
                "warning", "reward", f"it is a {type(reward).__name__}", "Return a float."
            )
            return
        for name, flag in (("terminated", terminated), ("truncated", truncated)):
            if not isinstance(flag, bool | np.bool_):
                yield Finding(
                    "warning", name, f"it is a {type(flag).__name__}", f"Return bool({name})."
                )
                return
    yield Finding("ok", "types", "rewards are numbers, terminated and truncated are bools")


def _exact(config: EnvConfig, group: EnvGroup) -> Finding:
    """Whether a second group continues bit by bit from the state of the first."""
    random = np.random.default_rng(1)
    steps = group.reset(seed=1)
    for _ in range(5):
        steps = group.step(random_actions(group.spec, steps, group.lanes, random))
    saved = group.state()
    if saved is None:
        return Finding(
            "warning",
            "exact state",
            "it offers none: a resumed run starts new episodes",
            "If runs must continue exactly, give a Gymnasium environment state() and restore().",
        )
    other = _make(config, group.num_envs)
    try:
        other.restore(saved)
        for tick in range(20):
            actions = random_actions(group.spec, steps, group.lanes, random)
            steps = group.step(actions)
            copies = other.step(actions)
            if not all(_same(step_state(steps[n]), step_state(copies[n])) for n in steps):
                return Finding(
                    "error",
                    "exact state",
                    f"the restored environment differed after {tick + 1} steps",
                    "Let state() hold everything that decides the future, its generator included.",
                )
    finally:
        other.close()
    return Finding("ok", "exact state", "a restored environment continues bit by bit")


def _render(config: EnvConfig) -> Finding:
    fix = "Support render_mode='rgb_array' to watch it (`srl play`, videos)."
    try:
        group = _make(config, 1, render=True)
    except SrlError as error:
        return Finding("warning", "render", str(error), fix)
    try:
        group.reset(seed=0)
        picture = group.render(0)
    except Exception as error:  # a renderer may fail in any way, and only pictures depend on it
        return Finding("warning", "render", f"{type(error).__name__}: {error}", fix)
    finally:
        group.close()
    if picture.ndim != 3 or picture.dtype != np.uint8:
        return Finding("warning", "render", f"got {picture.dtype}{list(picture.shape)}", fix)
    return Finding("ok", "render", f"pictures of {picture.shape[1]}x{picture.shape[0]}")


def _copied(obs: Any) -> Any:
    if isinstance(obs, dict):
        return {key: _copied(value) for key, value in obs.items()}
    if isinstance(obs, tuple):
        return tuple(_copied(value) for value in obs)
    return obs.copy() if isinstance(obs, np.ndarray) else obs


def _same(a: Any, b: Any) -> bool:
    left, right = leaves(a), leaves(b)
    return len(left) == len(right) and all(
        np.array_equal(x, y) for x, y in zip(left, right, strict=True)
    )
