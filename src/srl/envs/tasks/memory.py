"""Small tasks that need memory: a policy without it stays at chance, or soon drops the pole."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class CueRecall(gymnasium.Env[np.ndarray, np.int64]):  # type: ignore[misc]
    """Shows a cue in the first step only; the policy must name it `delay` steps later.

    The reward is 1 for the right name and 0 otherwise, so a policy without memory averages
    1 / num_cues. An observation is the cue one-hot (zeros while waiting), and 1 if it is time to
    answer.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012
    metrics = ("recalled",)

    def __init__(
        self, *, num_cues: int = 4, delay: int = 8, render_mode: str | None = None
    ) -> None:
        self.num_cues = num_cues
        self.delay = delay
        self.render_mode = render_mode
        self.observation_space = spaces.Box(0.0, 1.0, (num_cues + 1,), np.float32)
        self.action_space = spaces.Discrete(num_cues)
        self._cue = 0
        self._time = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Shows a new cue."""
        super().reset(seed=seed)
        self._cue = int(self.np_random.integers(self.num_cues))
        self._time = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Waits, and compares the action with the cue at the end."""
        is_last = self._time == self.delay
        recalled = float(is_last and int(action) == self._cue)
        self._time += 1
        return self._observe(), recalled, is_last, False, {"recalled": recalled} if is_last else {}

    def _observe(self) -> np.ndarray:
        obs = np.zeros(self.num_cues + 1, np.float32)
        if self._time == 0:
            obs[self._cue] = 1.0
        obs[-1] = self._time == self.delay
        return obs

    def state(self) -> dict[str, Any]:
        """Everything that later steps depend on."""
        return {
            "cue": self._cue,
            "time": self._time,
            "random": self.np_random.bit_generator.state,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from `state`."""
        self._cue, self._time = state["cue"], state["time"]
        self.np_random.bit_generator.state = state["random"]


class MaskedVelocities(gymnasium.ObservationWrapper[Any, Any, Any]):  # type: ignore[misc]
    """CartPole's observation without its two velocities."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        space = env.observation_space
        self.observation_space = spaces.Box(space.low[[0, 2]], space.high[[0, 2]], dtype=np.float32)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        """Position and angle."""
        return observation[[0, 2]]


def MaskedCartPole(**args: Any) -> gymnasium.Env[Any, Any]:
    """CartPole-v1 without velocities: a policy must remember positions to know them."""
    return MaskedVelocities(gymnasium.make("CartPole-v1", disable_env_checker=True, **args))
