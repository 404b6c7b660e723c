"""Small tasks, one for each kind of observation and action: what to do is in what is seen.

Every step pays up to 1 for doing what the observation says, and episodes are a few steps long. A
policy that does not look gets what chance gives, a policy that does gets about 1 per step.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

STEPS = 8


class _Task(gymnasium.Env[Any, Any]):
    """Draws a secret, shows it, and pays for the answer."""

    metadata = {"render_modes": []}  # noqa: RUF012

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        self.draw()
        return self.observe(), self.info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = float(self.pay(action)) / STEPS
        self.time += 1
        self.draw()
        return self.observe(), reward, self.time == STEPS, False, self.info()

    def info(self) -> dict[str, Any]:
        return {}

    def draw(self) -> None:
        raise NotImplementedError

    def observe(self) -> Any:
        raise NotImplementedError

    def pay(self, action: Any) -> float:
        raise NotImplementedError


class NameIt(_Task):
    """Discrete: name the place of the one."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0, 1, (4,), np.float32)
        self.action_space = spaces.Discrete(4)

    def draw(self) -> None:
        self.secret = int(self.np_random.integers(4))

    def observe(self) -> Any:
        return np.eye(4, dtype=np.float32)[self.secret]

    def pay(self, action: Any) -> float:
        return float(int(action) == self.secret)


class NameAll(_Task):
    """MultiDiscrete: name two places at once; half a point each."""

    def __init__(self) -> None:
        self.observation_space = spaces.MultiDiscrete([3, 4])
        self.action_space = spaces.MultiDiscrete([3, 4])

    def draw(self) -> None:
        self.secret = self.np_random.integers([3, 4])

    def observe(self) -> Any:
        return self.secret.astype(np.int64)

    def pay(self, action: Any) -> float:
        return float(np.mean(np.asarray(action) == self.secret))


class CopyBits(_Task):
    """MultiBinary: press the buttons that are lit."""

    def __init__(self) -> None:
        self.observation_space = spaces.MultiBinary(5)
        self.action_space = spaces.MultiBinary(5)

    def draw(self) -> None:
        self.secret = self.np_random.integers(0, 2, 5)

    def observe(self) -> Any:
        return self.secret.astype(np.int8)

    def pay(self, action: Any) -> float:
        return float(np.mean(np.asarray(action) == self.secret))


class PointAt(_Task):
    """Box: point at what is seen; less for every bit of distance."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = spaces.Box(-2.0, 2.0, (2,), np.float32)

    def draw(self) -> None:
        self.secret = self.np_random.uniform(-1.0, 1.0, 2).astype(np.float32)

    def observe(self) -> Any:
        return self.secret

    def pay(self, action: Any) -> float:
        return 1.0 - float(np.abs(np.asarray(action) - self.secret).mean())


class AddUp(_Task):
    """Dict observation with a Tuple in it: the answer is a sum of two parts."""

    def __init__(self) -> None:
        part = spaces.Discrete(3)
        self.observation_space = spaces.Dict(
            {
                "pair": spaces.Tuple((part, spaces.Box(0, 1, (3,), np.float32))),
                "noise": spaces.Box(-1, 1, (2, 2), np.float64),
            }
        )
        self.action_space = spaces.Discrete(5)

    def draw(self) -> None:
        self.secret = self.np_random.integers(3, size=2)
        self.noise = self.np_random.uniform(-1, 1, (2, 2))

    def observe(self) -> Any:
        one_hot = np.eye(3, dtype=np.float32)[self.secret[1]]
        return {"pair": (self.secret[0], one_hot), "noise": self.noise}

    def pay(self, action: Any) -> float:
        return float(int(action) == self.secret.sum())


class OnlyOneAllowed(_Task):
    """Action mask: nothing is seen, and only the mask says that two of forty may be done.

    The lower of the two pays. A masked action raises.
    """

    has_action_mask = True

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0, 1, (40,), np.float32)
        self.action_space = spaces.Discrete(40)

    def draw(self) -> None:
        self.secret = sorted(self.np_random.choice(40, 2, replace=False).tolist())

    def observe(self) -> Any:
        return np.zeros(40, np.float32)

    def info(self) -> dict[str, Any]:
        mask = np.zeros(40, np.int8)
        mask[self.secret] = 1
        return {"action_mask": mask}

    def pay(self, action: Any) -> float:
        if int(action) not in self.secret:
            raise ValueError(f"action {action} is masked")
        return float(int(action) == self.secret[0])


class SeeIt(_Task):
    """Image: say in which quarter the light is."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0, 255, (36, 36, 1), np.uint8)
        self.action_space = spaces.Discrete(4)

    def draw(self) -> None:
        self.secret = int(self.np_random.integers(4))
        self.place = self.np_random.integers(2, 14, 2)

    def observe(self) -> Any:
        picture = np.zeros((36, 36, 1), np.uint8)
        row, column = self.place + 18 * np.array(divmod(self.secret, 2))
        picture[row : row + 3, column : column + 3] = 255
        return picture

    def pay(self, action: Any) -> float:
        return float(int(action) == self.secret)


class Rivals(ParallelEnv):
    """Two agents with different spaces, each with a task of its own, that take from each other.

    The `counter` sees one of four lights and names it. The `pointer` sees a number and points at
    it. Each is paid for its answer, and half as much is taken from the other.
    """

    metadata = {"name": "rivals_v0", "render_modes": []}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None) -> None:
        self.possible_agents = ["counter", "pointer"]
        self.agents: list[str] = []
        self.render_mode = render_mode
        self.random = np.random.default_rng()

    def observation_space(self, agent: str) -> Any:
        if agent == "counter":
            return spaces.Box(0, 1, (4,), np.float32)
        return spaces.Dict({"number": spaces.Box(-1, 1, (1,), np.float32)})

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(4) if agent == "counter" else spaces.Box(-2, 2, (1,), np.float32)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            self.random = np.random.default_rng(seed)
        self.agents = list(self.possible_agents)
        self.time = 0
        return self._draw(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> Any:
        named = float(int(actions["counter"]) == self.light)
        pointed = 1.0 - abs(float(actions["pointer"][0]) - self.number)
        rewards = {
            "counter": (named - 0.5 * pointed) / STEPS,
            "pointer": (pointed - 0.5 * named) / STEPS,
        }
        self.time += 1
        over = dict.fromkeys(self.agents, self.time == STEPS)
        going_on = dict.fromkeys(self.agents, False)
        infos: dict[str, Any] = {agent: {} for agent in self.agents}
        if self.time == STEPS:
            self.agents = []
        return self._draw(), rewards, over, going_on, infos

    def _draw(self) -> dict[str, Any]:
        self.light = int(self.random.integers(4))
        self.number = float(self.random.uniform(-1, 1))
        return {
            "counter": np.eye(4, dtype=np.float32)[self.light],
            "pointer": {"number": np.array([self.number], np.float32)},
        }


class NameTogether(ParallelEnv):
    """A team: each of two agents names the light that it sees. Both are paid the same, for the
    share of right answers, and the global state has both lights."""

    metadata = {"name": "name_together_v0", "render_modes": []}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None) -> None:
        self.possible_agents = ["agent_0", "agent_1"]
        self.agents: list[str] = []
        self.render_mode = render_mode
        self.random = np.random.default_rng()
        self.state_space = spaces.Box(0, 1, (8,), np.float32)

    def observation_space(self, agent: str) -> Any:
        return spaces.Box(0, 1, (4,), np.float32)

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(4)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            self.random = np.random.default_rng(seed)
        self.agents = list(self.possible_agents)
        self.time = 0
        return self._draw(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> Any:
        right = [int(actions[a]) == x for a, x in zip(self.agents, self.lights, strict=True)]
        rewards = dict.fromkeys(self.agents, float(np.mean(right)) / STEPS)
        self.time += 1
        over = dict.fromkeys(self.agents, self.time == STEPS)
        going_on = dict.fromkeys(self.agents, False)
        infos: dict[str, Any] = {agent: {} for agent in self.agents}
        if self.time == STEPS:
            self.agents = []
        return self._draw(), rewards, over, going_on, infos

    def state(self) -> np.ndarray:
        return np.eye(4, dtype=np.float32)[self.lights].reshape(-1)

    def _draw(self) -> dict[str, Any]:
        self.lights = self.random.integers(4, size=2)
        shown = np.eye(4, dtype=np.float32)[self.lights]
        return dict(zip(self.possible_agents, shown, strict=True))
