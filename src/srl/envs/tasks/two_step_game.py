"""The two-step game of the QMIX paper (Rashid et al. 2018, section 5): what a sum of values cannot
represent.

The first agent chooses between two games. In one of them all joint actions pay 7. The other pays 8
if both agents choose the second action, 1 if one of them does, and 0 if none does. Under uniform
exploration the best fit by a sum of both agents' values is 6.5 for the 8. So learning with a sum
ends at 7, and learning with a monotonic mixture at 8.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

PAYOFF = np.array([[[7.0, 7.0], [7.0, 7.0]], [[0.0, 1.0], [1.0, 8.0]]])
"""[game, action of the first agent, action of the second]."""


class TwoStepGame(ParallelEnv):  # type: ignore[misc]
    """Two agents, two ticks. Both are paid the same.

    The global state is the situation (the choice, or one of the games) one-hot. An observation is
    the state, and which agent it is (one-hot).
    """

    metadata = {"name": "two_step_game_v0", "render_modes": []}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None) -> None:
        self.possible_agents = ["first", "second"]
        self.agents: list[str] = []
        self.render_mode = render_mode
        self.state_space = spaces.Box(0.0, 1.0, (3,), np.float32)
        self._spaces = spaces.Box(0.0, 1.0, (5,), np.float32), spaces.Discrete(2)
        self._situation = 0

    def observation_space(self, agent: str) -> Any:
        """The same space for both agents."""
        return self._spaces[0]

    def action_space(self, agent: str) -> Any:
        """The same space for both agents."""
        return self._spaces[1]

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        """Begins with the choice of a game."""
        self.agents = list(self.possible_agents)
        self._situation = 0
        return self._observe(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> Any:
        """The first tick chooses the game and pays nothing, the second one plays it."""
        choices = [int(actions[agent]) for agent in self.possible_agents]
        acted, over, paid = self.agents, self._situation > 0, 0.0
        if over:
            paid = float(PAYOFF[self._situation - 1, choices[0], choices[1]])
            self.agents = []
        else:
            self._situation = 1 + choices[0]
        return (
            self._observe(),
            dict.fromkeys(acted, paid),
            dict.fromkeys(acted, over),
            dict.fromkeys(acted, False),
            {agent: {} for agent in acted},
        )

    def state(self) -> np.ndarray:
        """The situation, one-hot."""
        shown = np.zeros(3, np.float32)
        shown[self._situation] = 1.0
        return shown

    def _observe(self) -> dict[str, np.ndarray]:
        names = np.eye(2, dtype=np.float32)
        return {
            agent: np.concatenate([self.state(), names[number]])
            for number, agent in enumerate(self.possible_agents)
        }
