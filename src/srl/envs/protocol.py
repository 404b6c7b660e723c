"""The interface between an actor and its environments: a group, stepped by one call.

Users rarely write a group. They write a Gymnasium or PettingZoo environment, and
`registry.make_group` puts copies of it into a group of the right kind: `gym_group`,
`vector_group`, `envpool_group`, `jax_group`, `parallel_group` or `aec_group`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from srl.data.records import EnvStep
from srl.data.spec import EnvSpec
from srl.data.tree import Tree
from srl.envs.spaces import AgentSpaces
from srl.errors import ConfigError

PolicyAgents = Mapping[str, tuple[str, ...]]
"""Policy name to the agents that the policy controls, in row order. Each agent has one policy."""

OnCall = Callable[[str, int], None]
"""Called before user code runs, with the call ("make", "reset", "step") and an index.

The index is the environment's. It is -1 where one call is for all environments.
"""


@dataclass(frozen=True, kw_only=True)
class EnvConfig:
    """Which environment to run, and what an actor does when the environment fails."""

    id: str
    """A Gymnasium id, `envpool:ID`, `pettingzoo:module`, `jax:module:Class`, or the import path of
    a class or function."""
    args: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments for its constructor (`--env-arg k=v`)."""
    backend: Literal["auto", "single", "vector"] = "auto"
    """`single` steps copies one by one, `vector` steps a native vector environment by one call."""
    max_episode_steps: int = 0
    """Truncates episodes after this many steps; 0 leaves it to the environment."""
    threads: int = 0
    """Threads of each EnvPool group. 0 means one thread where steps are tiny (classic control, toy
    text); else the cores divided by the actors (layout `remote`: one for each core). The actor's
    own thread steps all other environments, but hide-and-seek uses as many threads as are set."""
    step_timeout_seconds: float = 60.0
    """An environment step that takes longer is a failure (see `failure_steps`)."""
    reset_timeout_seconds: float = 120.0
    """A reset (or construction) that takes longer is a failure (see `failure_steps`)."""
    failure_steps: int = 2000
    """Steps of a group that allow one failure (an exception, or a call that takes too long). After
    a failure the actor makes the group's environments anew and begins their fragment again. If
    they fail before they have done this many steps, or fail more often, the error ends the run."""
    max_failures: int = 10
    """Failures in a row that an actor recovers from, after many steps without a failure; 0 ends
    the run at the first failure."""

    def __post_init__(self) -> None:
        for name in ("step_timeout_seconds", "reset_timeout_seconds"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"env.{name}: expected more than 0, got {getattr(self, name)}.")
        for name in ("max_episode_steps", "threads", "max_failures", "failure_steps"):
            if getattr(self, name) < 0:
                raise ConfigError(f"env.{name}: expected at least 0, got {getattr(self, name)}.")


class EnvGroup(Protocol):
    """Environments that an actor steps together. A policy's rows are env-major: [envs, agents]."""

    spec: EnvSpec
    spaces: dict[str, AgentSpaces]
    """By agent."""
    num_envs: int
    policy_agents: PolicyAgents

    def reset(self, seed: int) -> dict[str, EnvStep]:
        """Starts an episode in every environment; environment i is seeded with `seed + i`."""
        ...

    def step(self, actions: dict[str, np.ndarray]) -> dict[str, EnvStep]:
        """Steps every environment by one tick.

        Actions are [rows, ...] by policy; the action of a row without `turn` is ignored. Rows whose
        last observation was final start a new episode (next-step autoreset). An environment with
        several agents starts it in the tick after all its agents are done.

        The arrays of the returned records belong to the group: the next `step`, `reset` or
        `restore` may write them again. Copy what you keep.
        """
        ...

    def render(self, index: int) -> np.ndarray:
        """A picture (uint8 [height, width, 3]) of one environment, if made with `render=True`."""
        ...

    def state(self) -> Tree | None:
        """All that `restore` needs to continue exactly; None if the environments offer no state."""
        ...

    def restore(self, state: Tree) -> dict[str, EnvStep]:
        """Continues from `state` (instead of `reset`), and returns the last EnvStep again."""
        ...

    def close(self) -> None:
        """Frees what the environments hold. Safe to call twice."""
        ...


@runtime_checkable
class BackgroundGroup(EnvGroup, Protocol):
    """A group whose environments step in threads of their own, while its actor does other work."""

    def begin(self, actions: dict[str, np.ndarray]) -> None:
        """Starts a step. Nothing of the group may be used until `finish`."""
        ...

    def finish(self) -> dict[str, EnvStep]:
        """Waits until the step has ended, and returns what `step` returns."""
        ...
