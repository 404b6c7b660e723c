"""Small environments with Gymnax's and with JaxMARL's interface, which need neither package."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

LEAVES = {"scout": 2, "guard": 5}
"""Steps after which each agent of `Patrol` leaves the game."""


@dataclasses.dataclass
class WalkParams:
    goal: int = 4
    max_steps_in_episode: int = 6


class Walk:
    """Gymnax's interface: action 1 goes right, and the goal ends the episode."""

    default_params = WalkParams()
    traces = 0
    """How often Python has run a step; a compiled step runs no Python."""

    def __init__(self, bad: str = "") -> None:
        self.bad = bad

    def reset_env(self, key: Any, params: WalkParams) -> Any:
        state = {"at": jnp.int32(0), "time": jnp.int32(0), "luck": jax.random.uniform(key)}
        return self._seen(state), state

    def step_env(self, key: Any, state: Any, action: Any, params: WalkParams) -> Any:
        Walk.traces += 1
        state = {
            "at": state["at"] + action,
            "time": state["time"] + 1,
            "luck": jax.random.uniform(key),
        }
        reward = jnp.where(state["at"] >= params.goal, 1.0, -0.1)
        if self.bad == "reward":
            reward = reward / 0.0
        return self._seen(state), state, reward, self.is_terminal(state, params), {}

    def is_terminal(self, state: Any, params: WalkParams) -> Any:
        return (state["at"] >= params.goal) | (state["time"] >= params.max_steps_in_episode)

    def _seen(self, state: Any) -> Any:
        return jnp.stack([jnp.float32(state["at"]), jnp.float32(state["time"]), state["luck"]])

    def observation_space(self, params: WalkParams) -> Any:
        return SimpleNamespace(low=0.0, high=9.0, shape=(3,), dtype=np.float32)

    def action_space(self, params: WalkParams) -> Any:
        return SimpleNamespace(n=2)


class Patrol:
    """JaxMARL's interface: two agents that leave the game at different times."""

    agents = ("scout", "guard")

    def __init__(self, no_choice: bool = False, max_steps: int = 9) -> None:
        self.no_choice = no_choice
        self.max_steps = max_steps

    def reset(self, key: Any) -> Any:
        state = {"time": jnp.int32(0), "luck": jax.random.uniform(key)}
        return self._seen(state), state

    def step_env(self, key: Any, state: Any, actions: Any) -> Any:
        state = {"time": state["time"] + 1, "luck": state["luck"]}
        time = state["time"]
        rewards = {name: jnp.float32(actions[name]) for name in self.agents}
        dones: dict[str, Any] = {name: time >= LEAVES[name] for name in self.agents}
        dones["__all__"] = (time >= max(LEAVES.values())) | (time >= self.max_steps)
        return self._seen(state), state, rewards, dones, {}

    def get_avail_actions(self, state: Any) -> Any:
        """Action 2 is only allowed at even times."""
        even = state["time"] % 2 == 0
        mask = jnp.array([False, not self.no_choice, False])
        return {name: mask.at[2].set(even & (not self.no_choice)) for name in self.agents}

    def _seen(self, state: Any) -> Any:
        time = jnp.float32(state["time"])
        return {
            "scout": jnp.stack([time + 1, state["luck"]]),
            "guard": jnp.stack([time + 1, -state["luck"]]),
            "world_state": jnp.stack([time, state["luck"], time * 2]),
        }

    def observation_space(self, agent: str) -> Any:
        return SimpleNamespace(low=-9.0, high=9.0, shape=(2,), dtype=np.float32)

    def action_space(self, agent: str) -> Any:
        return SimpleNamespace(n=3)
