"""Scripted environments, for tests of SRL and for your tests.

`ScriptedEnv` is deterministic: its seed decides everything. Each of its subclasses is slow or fails
in one way.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

_Step = tuple[Any, Any, bool, bool, dict[str, Any]]


class ScriptedEnv(gymnasium.Env[Any, Any]):  # type: ignore[misc]
    """Episodes whose lengths, rewards and ends follow from the seed; actions change nothing.

    The observation is (episode, step, length, whether the end is a termination). Rewards are whole
    numbers, so that sums are exact. `script(seed, episode)` returns what will happen.
    """

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    metrics = ("episode",)

    def __init__(
        self,
        *,
        min_length: int = 1,
        max_length: int = 6,
        mask: bool = False,
        render_mode: str | None = None,
    ) -> None:
        self.min_length, self.max_length = min_length, max_length
        self.has_action_mask = mask
        self.render_mode = render_mode
        self.observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
        self.action_space = spaces.Discrete(3)
        self.actions: list[int] = []
        """The actions of this episode."""
        self._seed = 0
        self._episode = -1
        self._time = 0
        self._over = True

    @staticmethod
    def script(
        seed: int, episode: int, min_length: int = 1, max_length: int = 6
    ) -> tuple[list[int], bool]:
        """The rewards of an episode, and whether it ends by termination."""
        random = np.random.default_rng([seed, episode])
        length = int(random.integers(min_length, max_length + 1))
        return [int(r) for r in random.integers(-9, 10, length)], bool(random.integers(2))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Starts the next episode of the script, or the first one if a seed is given."""
        super().reset(seed=seed)
        if seed is not None:
            self._seed, self._episode = seed, -1
        self._episode += 1
        self._rewards, self._terminates = self.script(
            self._seed, self._episode, self.min_length, self.max_length
        )
        self._time = 0
        self._over = False
        self.actions = []
        return self._observe(), self._info()

    def step(self, action: Any) -> _Step:
        """Returns the next reward of the script."""
        if self._over:
            raise RuntimeError("step after the end of the episode")
        if self.has_action_mask and not self._mask()[int(action)]:
            raise ValueError(f"action {action} is masked")
        self.actions.append(int(action))
        reward = float(self._rewards[self._time])
        self._time += 1
        self._over = self._time == len(self._rewards)
        ends = (self._over and self._terminates, self._over and not self._terminates)
        return self._observe(), reward, *ends, self._info()

    def render(self) -> np.ndarray:
        """A gray picture."""
        return np.full((8, 8, 3), self._time, np.uint8)

    def _observe(self) -> np.ndarray:
        return np.array(
            [self._episode, self._time, len(self._rewards), self._terminates], np.float32
        )

    def _mask(self) -> np.ndarray:
        mask = np.ones(3, np.int8)
        mask[(self._episode + self._time) % 3] = 0
        return mask

    def _info(self) -> dict[str, Any]:
        info: dict[str, Any] = {"action_mask": self._mask()} if self.has_action_mask else {}
        if self._over:
            info["episode"] = float(self._episode)
        return info

    def state(self) -> dict[str, Any]:
        """The position in the script."""
        return {
            "seed": self._seed,
            "episode": self._episode,
            "time": self._time,
            "over": self._over,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from `state`."""
        self._seed, self._episode = state["seed"], state["episode"]
        self._time, self._over = state["time"], state["over"]
        self._rewards, self._terminates = self.script(
            self._seed, max(self._episode, 0), self.min_length, self.max_length
        )


class _FaultyEnv(ScriptedEnv):
    """A scripted environment that misbehaves once, at the n-th step (or reset) of its life."""

    def __init__(self, *, at_step: int = 3, call: str = "step", **script: Any) -> None:
        super().__init__(**{"min_length": 2, **script})
        self.at_step, self.call = at_step, call
        self._calls = {"reset": 0, "step": 0}

    def _due(self, call: str) -> bool:
        self._calls[call] += 1
        return call == self.call and self._calls[call] == self.at_step

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Resets; misbehaves if this is the n-th reset."""
        due = self._due("reset")
        obs, info = super().reset(seed=seed, options=options)
        return (self.misbehave((obs, 0.0, False, False, info))[0] if due else obs), info

    def step(self, action: Any) -> _Step:
        """Steps; misbehaves if this is the n-th step."""
        due = self._due("step")
        result = super().step(action)
        return self.misbehave(result) if due else result

    @abstractmethod
    def misbehave(self, result: _Step) -> _Step:
        """Changes the result of a step or reset, raises, or hangs."""


class CrashingEnv(_FaultyEnv):
    """Raises at its n-th step (or reset)."""

    def misbehave(self, result: _Step) -> _Step:
        """Raises."""
        raise RuntimeError("this environment crashes on purpose")


class HangingEnv(_FaultyEnv):
    """Hangs for `seconds` in its n-th step (or reset)."""

    def __init__(self, *, seconds: float = 3600.0, **rest: Any) -> None:
        super().__init__(**rest)
        self.seconds = seconds

    def misbehave(self, result: _Step) -> _Step:
        """Hangs."""
        time.sleep(self.seconds)
        return result


class NanEnv(_FaultyEnv):
    """Returns NaN, as the observation (`what="obs"`) or the reward (`what="reward"`)."""

    def __init__(self, *, what: str = "obs", value: float = float("nan"), **rest: Any) -> None:
        super().__init__(**rest)
        self.what, self.value = what, value

    def misbehave(self, result: _Step) -> _Step:
        """Returns a value that is not a number."""
        obs, _reward, *ends = result
        if self.what == "reward":
            return obs, self.value, *ends
        obs = obs.copy()
        obs[1] = self.value
        return obs, 0.0, *ends


class BadShapeEnv(_FaultyEnv):
    """Returns an observation of another shape or dtype than it declared."""

    def __init__(
        self, *, shape: tuple[int, ...] = (1,), dtype: str = "float32", **rest: Any
    ) -> None:
        super().__init__(**rest)
        self.shape, self.dtype = tuple(shape), dtype

    def misbehave(self, result: _Step) -> _Step:
        """Returns the wrong array."""
        return np.zeros(self.shape, self.dtype), *result[1:]


class SlowEnv(ScriptedEnv):
    """Takes `seconds` for every step."""

    def __init__(self, *, seconds: float = 0.01, **script: Any) -> None:
        super().__init__(**script)
        self.seconds = seconds

    def step(self, action: Any) -> _Step:
        """Sleeps, then steps."""
        time.sleep(self.seconds)
        return super().step(action)
