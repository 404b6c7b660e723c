"""Train on an environment of your own.

    python examples/02_own_environment.py [FOLDER]

Anything that keeps the Gymnasium interface can be trained on. `DockingShip` below is a ship without
brakes that has to arrive at its berth slowly. Its observation is a dict (three numbers, and where
the wind blows), and it forbids actions with a mask: there is only so much fuel.

Worker processes import the class by its path, so it stands at the top of a file, and what starts
the training stands under `if __name__ == "__main__":`. On the command line the same is

    srl check examples/02_own_environment.py:DockingShip
    srl train examples/02_own_environment.py:DockingShip --steps 60000
"""

import sys
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

import srl
from srl.envs.check import check_env

LEFT, DRIFT, RIGHT = range(3)


class DockingShip(gymnasium.Env):
    """Arrive at position 0 with next to no speed: 1 for that, less for every bit of speed."""

    metadata = {"render_modes": []}  # noqa: RUF012
    metrics = ("docked",)
    """Numbers of `info` at the end of an episode that are logged like the return."""
    has_action_mask = True
    """`info["action_mask"]` says what may be done next."""

    def __init__(self, *, fuel: int = 12, wind: float = 0.02, render_mode: str | None = None):
        self.max_fuel, self.wind = fuel, wind
        self.render_mode = render_mode
        self.observation_space = spaces.Dict(
            {
                "ship": spaces.Box(-2.0, 2.0, (3,), np.float32),
                "wind": spaces.Box(0, 1, (8,), np.int8),
            }
        )
        self.action_space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None):
        super().reset(seed=seed)
        self.position = float(self.np_random.uniform(-1.0, 1.0))
        self.speed, self.fuel, self.time = 0.0, self.max_fuel, 0
        self.blows = int(self.np_random.integers(8))
        return self._observe(), self._info()

    def step(self, action: Any):
        self.time += 1
        self.fuel -= int(action) != DRIFT
        self.speed += 0.05 * (int(action) - 1) + self.wind * np.sin(self.blows * np.pi / 4)
        self.position = float(np.clip(self.position + self.speed, -1.9, 1.9))
        self.speed = float(np.clip(self.speed, -0.5, 0.5))
        docked = abs(self.position) < 0.1 and abs(self.speed) < 0.1
        lost = abs(self.position) >= 1.9
        reward = 1.0 - 5.0 * abs(self.speed) if docked else -1.0 if lost else 0.0
        info = {**self._info(), "docked": float(docked)}
        return self._observe(), reward, docked or lost, self.time >= 60, info

    def _observe(self):
        ship = [self.position, self.speed, self.fuel / self.max_fuel]
        return {
            "ship": np.array(ship, np.float32),
            "wind": np.eye(8, dtype=np.int8)[self.blows],
        }

    def _info(self) -> dict[str, Any]:
        has_fuel = self.fuel > 0
        return {"action_mask": np.array([has_fuel, True, has_fuel], np.int8)}


if __name__ == "__main__":
    folder = sys.argv[1] if len(sys.argv) > 1 else "runs/example_02"
    path = f"{__file__}:DockingShip"
    for finding in check_env(srl.EnvConfig(id=path)):
        print(f"{finding.level:8} {finding.title}: {finding.detail}")
    run = srl.train(DockingShip, steps=60_000, run_dir=folder)
    score = run.evaluate(episodes=100)
    random = run.evaluate(episodes=100, policies={"default": "random"})
    print(f"return: {score.mean:.2f}, of at most 1; at random: {random.mean:.2f}")
