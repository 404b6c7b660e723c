"""Environments that remember what they showed and were told, and datasets that are made of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from srl.data.records import EnvStep
from srl.datasets.recorder import Recorder
from srl.datasets.writer import DatasetWriter
from srl.envs.check import random_actions
from srl.envs.gym_group import GymGroup

RICH = spaces.Dict(
    {
        "pair": spaces.Tuple((spaces.Discrete(3, start=5), spaces.Box(-1, 1, (2,), np.float64))),
        "image": spaces.Box(0, 255, (36, 36, 3), np.uint8),
        "bits": spaces.MultiBinary(4),
        "grid": spaces.MultiDiscrete([3, 4]),
    }
)
ACTIONS = {
    "discrete": spaces.Discrete(4, start=2),
    "several": spaces.MultiDiscrete([3, 4]),
    "switches": spaces.MultiBinary(5),
    "numbers": spaces.Box(-0.5, 0.5, (2,), np.float32),
}


class Logging(gymnasium.Env[Any, Any]):
    """Shows samples of a space. Episodes are 1 to 5 steps long; the even ones are truncated."""

    metadata = {"render_modes": []}  # noqa: RUF012

    def __init__(
        self,
        observation: spaces.Space[Any] = RICH,
        action: spaces.Space[Any] = ACTIONS["discrete"],
        *,
        masked: bool = False,
        length: int = 0,
    ) -> None:
        self.observation_space, self.action_space = observation, action
        self.has_action_mask = masked
        self.length = length
        self.episodes: list[dict[str, list[Any]]] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.episodes.append({"obs": [], "actions": [], "rewards": [], "masks": []})
        self.left = self.length or 1 + len(self.episodes) % 5
        return self.show()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        episode = self.episodes[-1]
        reward = float(self.np_random.normal())
        episode["actions"].append(np.copy(action))
        episode["rewards"].append(reward)
        self.left -= 1
        over, even = self.left == 0, len(self.episodes) % 2 == 0
        obs, info = self.show()
        return obs, reward, over and not even, over and even, info

    def show(self) -> tuple[Any, dict[str, Any]]:
        obs = self.observation_space.sample()
        self.episodes[-1]["obs"].append(obs)
        if not self.has_action_mask:
            return obs, {}
        mask = self.np_random.integers(0, 2, 4).astype(np.int8)
        mask[self.np_random.integers(4)] = 1
        # The observation after the last step needs no mask, so SRL records that all is allowed.
        self.episodes[-1]["masks"].append(mask if self.left else np.ones(4, np.int8))
        return obs, {"action_mask": mask}


def record(envs: list[Logging], folder: Path, ticks: int = 20) -> Path:
    """Plays environments at random and writes all whole episodes; returns the dataset's folder."""
    group = GymGroup(list(envs), None, lambda call, index: None)
    spaces_of = group.spaces["agent"]
    random = np.random.default_rng(0)
    with DatasetWriter(
        folder, observation_space=spaces_of.observation, action_space=spaces_of.action
    ) as writer:
        recorder = Recorder(spaces_of, len(envs), 1, seed=7, add=writer.add)
        step: EnvStep = group.reset(7)["agent"]
        recorder.observe(step)
        for _ in range(ticks):
            actions = random_actions(group.spec, {"agent": step}, group.policy_agents, random)
            recorder.act(actions["agent"])
            step = group.step(actions)["agent"]
            recorder.observe(step)
            for row in np.flatnonzero(step.terminated | step.truncated).tolist():
                recorder.end(row, bool(step.terminated[row]))
        return writer.finish()
