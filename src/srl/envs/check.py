"""Checks whether an environment keeps the protocol, and says what to change (`srl check ENV`)."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces

from srl.data.records import EnvStep
from srl.data.spec import (
    RESCALE_ADVICE,
    ActionSpec,
    Box,
    Discrete,
    EnvSpec,
    MultiBinary,
    MultiDiscrete,
    action_bounds_warning,
)
from srl.data.tree import leaves, paths
from srl.envs import registry
from srl.envs.buffers import step_state
from srl.envs.gym_group import AGENT, GymGroup
from srl.envs.protocol import EnvConfig, EnvGroup
from srl.envs.spaces import ActionAdapter
from srl.errors import SrlError
from srl.tracebacks import USER_ERRORS, described

_STEPS = 300
"""Ticks that a check plays; enough for most tasks to end an episode."""
_SECONDS = 5.0
"""A check of a slow environment stops playing after this time."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    level: Literal["ok", "warning", "error"]
    title: str
    detail: str
    fix: str = ""


def check_env(config: EnvConfig) -> list[Finding]:
    """Makes the environment, plays it with random actions, and returns what it found."""
    try:
        group = _make(config, 2)
    except SrlError as error:
        fix = "Correct the id, or let the environment accept these settings."
        return [Finding("error", "make", str(error), fix)]
    findings = [_describe_spaces(group.spec)]
    unreachable = action_bounds_warning(group.spec)
    if unreachable:
        findings.append(Finding("warning", "actions", unreachable, RESCALE_ADVICE))
    try:
        findings += _check_play(group)
        if isinstance(group, GymGroup):
            findings += _check_one_env(group)
        findings.append(_check_exact_state(config, group))
    except SrlError as error:
        findings.append(Finding("error", "protocol", str(error), "The message says what to do."))
    except USER_ERRORS as error:
        findings.append(Finding("error", "protocol", f"it raised {described(error)}"))
    findings += _check_close(group)
    findings.append(_check_render(config))
    return findings


def _check_close(group: EnvGroup) -> Iterator[Finding]:
    try:
        group.close()
    except SrlError as error:
        yield Finding(
            "error", "close", str(error), "Let close() work at any time, and more than once."
        )


def random_actions(
    spec: EnvSpec, steps: dict[str, EnvStep], policy_agents: Any, random: np.random.Generator
) -> dict[str, np.ndarray]:
    """Random allowed actions, for every row of every policy."""
    return {
        name: _random(
            spec.agents[policy_agents[name][0]].action, step.action_mask, len(step.reward), random
        )
        for name, step in steps.items()
    }


def _random(
    action: ActionSpec, masks: np.ndarray | None, rows: int, random: np.random.Generator
) -> np.ndarray:
    match action:
        case Discrete(n):
            if masks is None:
                return random.integers(0, n, rows)
            return np.array([random.choice(np.flatnonzero(mask)) for mask in masks])
        case MultiDiscrete(nvec):
            if masks is None:
                return random.integers(0, nvec, (rows, len(nvec)))
            bounds = np.cumsum((0, *nvec))
            parts = [masks[:, a:b] for a, b in itertools.pairwise(bounds)]
            picks = [[random.choice(np.flatnonzero(row)) for row in part] for part in parts]
            return np.array(picks).T
        case MultiBinary(n):
            drawn = random.integers(0, 2, (rows, n)).astype(np.int8)
            if masks is None:
                return drawn
            # A pair says whether the switch may be 0, and whether it may be 1.
            pairs = masks.reshape(rows, n, 2)
            return np.where(pairs.all(2), drawn, pairs[:, :, 1]).astype(np.int8)
        case Box(shape, low, high):
            # Where a side has no bound, actions stay within 10 of 0.
            least = np.clip(np.array(low, np.float64).reshape(shape), -10.0, None)
            most = np.clip(np.array(high, np.float64).reshape(shape), None, 10.0)
            return random.uniform(least, most, (rows, *shape)).astype(np.float32)


def _make(config: EnvConfig, num_envs: int, render: bool = False) -> EnvGroup:
    return registry._build(
        config,
        num_envs=num_envs,
        policy_agents=None,
        on_call=lambda call, index: None,
        render=render,
    )


def _describe_spaces(spec: EnvSpec) -> Finding:
    name, agent = next(iter(spec.agents.items()))
    seen = ", ".join(f"{path or 'obs'} {leaf}" for path, leaf in paths(agent.obs))
    more = f" and {len(spec.agents) - 1} other agents" if len(spec.agents) > 1 else ""
    mask = ", with action masks" if agent.has_action_mask else ""
    return Finding("ok", "spaces", f"{name}: {seen}; {agent.action}{mask}{more}")


def _check_play(group: EnvGroup) -> Iterator[Finding]:
    """Plays through the group, which raises on shapes, dtypes, NaN and rewards that do not fit."""
    random = np.random.default_rng(0)
    steps = group.reset(seed=0)
    ended, ticks, started = 0, 0, time.perf_counter()
    while ticks < _STEPS and time.perf_counter() - started < _SECONDS:
        steps = group.step(random_actions(group.spec, steps, group.policy_agents, random))
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


def _check_one_env(group: GymGroup) -> Iterator[Finding]:
    """Checks types, bounds and seeds, which only the environment itself can show."""
    first, second = _rollout(group, seed=7), _rollout(group, seed=7)
    same_start = _equal(first[0][0], second[0][0])
    same_course = len(first) == len(second) and all(
        _equal(a, b) for a, b in zip(first, second, strict=True)
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
    yield from _check_observations(group._envs[0].observation_space, [obs for obs, *_ in first])
    yield from _check_types(first[1:])


def _rollout(group: GymGroup, seed: int) -> list[tuple[Any, ...]]:
    """What the first environment returns, unchanged, under random allowed actions."""
    env, own, agent = group._envs[0], group.spaces[AGENT], group.spec.agents[AGENT]
    random, actions = np.random.default_rng(seed), ActionAdapter(own.action)
    obs, info = env.reset(seed=seed)
    played: list[tuple[Any, ...]] = [(_copied(obs),)]
    for _ in range(50):
        masks = None
        if agent.has_action_mask:
            masks = np.asarray(own.take_mask(obs, info)[1], bool)[None]
        action = actions.one(_random(agent.action, masks, 1, random)[0])
        obs, reward, terminated, truncated, info = env.step(action)
        played.append((_copied(obs), reward, terminated, truncated))
        if terminated or truncated:
            break
    return played


def _check_observations(space: gymnasium.Space[Any], shown: list[Any]) -> list[Finding]:
    """Checks whether observations are in their space."""
    found = list(_misfits(space, shown, "obs"))
    return found or [Finding("ok", "observations", "every observation is in the declared space")]


def _misfits(space: gymnasium.Space[Any], shown: list[Any], name: str) -> Iterator[Finding]:
    """A finding for each part of a space that some observations do not fit."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        keys = space.spaces if isinstance(space, spaces.Dict) else range(len(space.spaces))
        for key in keys:
            yield from _misfits(space[key], [obs[key] for obs in shown], f"{name}.{key}")
        return
    outside = [obs for obs in shown if not space.contains(obs)]
    if outside:
        # A network cannot use a category that does not exist; other values are used as they are.
        counted = isinstance(space, spaces.Discrete | spaces.MultiDiscrete)
        yield Finding(
            "error" if counted and not _is_category(space, outside[0]) else "warning",
            "observations",
            f"{name}: expected {space}, got {_value_text(space, outside[0])} "
            f"({len(outside)} of {len(shown)} observations)",
            "Return what the space declares: dtype, shape, and numbers within its bounds.",
        )


def _is_category(space: gymnasium.Space[Any], value: Any) -> bool:
    """Whether a number is in the space after a cast to the space's dtype."""
    return bool(space.contains(np.asarray(value).astype(space.dtype)))


def _value_text(space: gymnasium.Space[Any], value: Any) -> str:
    """An observation's dtype and shape, and its first number out of bounds, or else the first."""
    array = np.asarray(value)
    text = f"{array.dtype}{list(array.shape)}"
    if array.ndim == 0 or not array.size:
        return f"{text} {array}"
    bad = np.zeros(array.shape, bool)
    if isinstance(space, spaces.Box) and array.shape == space.shape:
        bad = ~((array >= space.low) & (array <= space.high))
    position = tuple(int(i) for i in np.unravel_index(int(np.argmax(bad)), bad.shape))
    return f"{text} with {array[position]} at {list(position)}"


def _check_types(played: list[tuple[Any, ...]]) -> Iterator[Finding]:
    for _, reward, terminated, truncated in played:
        if not isinstance(reward, float | int | np.floating | np.integer):
            yield Finding(
                "warning",
                "reward",
                f"expected a number, got {type(reward).__name__}",
                "Return a float.",
            )
            return
        for name, flag in (("terminated", terminated), ("truncated", truncated)):
            if not isinstance(flag, bool | np.bool_):
                yield Finding(
                    "warning",
                    name,
                    f"expected bool, got {type(flag).__name__}",
                    f"Return bool({name}).",
                )
                return
    yield Finding("ok", "types", "rewards are numbers, terminated and truncated are bools")


def _check_exact_state(config: EnvConfig, group: EnvGroup) -> Finding:
    """Checks whether a second group continues bit by bit from the state of the first."""
    random = np.random.default_rng(1)
    steps = group.reset(seed=1)
    for _ in range(5):
        steps = group.step(random_actions(group.spec, steps, group.policy_agents, random))
    saved = group.state()
    if saved is None:
        return Finding(
            "warning",
            "exact state",
            "the environment offers none: a resumed run starts new episodes",
            "If runs must continue exactly, give a Gymnasium environment state() and restore().",
        )
    other = _make(config, group.num_envs)
    try:
        other.restore(saved)
        for tick in range(20):
            actions = random_actions(group.spec, steps, group.policy_agents, random)
            steps = group.step(actions)
            copies = other.step(actions)
            if not all(_equal(step_state(steps[n]), step_state(copies[n])) for n in steps):
                return Finding(
                    "error",
                    "exact state",
                    f"the restored environment differed after {tick + 1} steps",
                    "Let state() hold all that later steps need, the random generator included.",
                )
    finally:
        other.close()
    return Finding("ok", "exact state", "a restored environment continues bit by bit")


def _check_render(config: EnvConfig) -> Finding:
    fix = "Support render_mode='rgb_array' to watch it (`srl play`, videos)."
    try:
        group = _make(config, 1, render=True)
    except SrlError as error:
        return Finding("warning", "render", str(error), fix)
    try:
        group.reset(seed=0)
        picture = group.render(0)
    except SrlError as error:
        return Finding("warning", "render", str(error), fix)
    except USER_ERRORS as error:  # A renderer may fail in any way; only pictures need it.
        return Finding("warning", "render", f"it raised {described(error)}", fix)
    finally:
        with suppress(SrlError):
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


def _equal(a: Any, b: Any) -> bool:
    left, right = leaves(a), leaves(b)
    return len(left) == len(right) and all(
        np.array_equal(x, y) for x, y in zip(left, right, strict=True)
    )
