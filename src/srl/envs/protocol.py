"""What the actor asks of environments: a group of them, stepped by one call.

Users rarely write a group. They write a Gymnasium or PettingZoo environment, and
`registry.make_group` puts copies of it into the group that fits: `gym_group`, `vector_group`,
`envpool_group`, `parallel_group`, `aec_group`.
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

Lanes = Mapping[str, tuple[str, ...]]
"""Lane (the policy's name) to the agents it controls, in row order. Each agent is in one lane."""

OnCall = Callable[[str, int], None]
"""Told the call ("make", "reset", "step") and the environment's index before user code runs.

The index is -1 where all environments are called at once.
"""


@dataclass(frozen=True, kw_only=True)
class EnvConfig:
    """Which environment, and what an actor does when it misbehaves."""

    id: str
    """A Gymnasium id, `envpool:ID`, `pettingzoo:module`, or the import path of a class or function.
    """
    args: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments for its constructor (`--env-arg k=v`)."""
    backend: Literal["auto", "single", "vector"] = "auto"
    """`single` steps copies one by one, `vector` steps a native vector environment by one call."""
    max_episode_steps: int = 0
    """Truncates episodes after this many steps; 0 leaves it to the environment."""
    threads: int = 0
    """Threads of each EnvPool group; 0 takes one where steps are tiny (classic control, toy text),
    and elsewhere the cores divided by the actors (on other hosts one for each core). Other
    environments are stepped by the actor's own thread."""
    step_timeout_seconds: float = 60.0
    """An environment step that takes longer is a failure (see `failure_steps`)."""
    reset_timeout_seconds: float = 120.0
    """A reset (or construction) that takes longer is a failure (see `failure_steps`)."""
    failure_steps: int = 2000
    """One failure (an exception, or a call that takes too long) in so many steps of a group is made
    good: its environments are made anew, and its fragment is begun again. Environments that fail
    before they have worked for so long, or more often, end the run with the error."""
    max_failures: int = 10
    """Failures that may come at once after many steps without any; 0 makes none good."""

    def __post_init__(self) -> None:
        for name in ("step_timeout_seconds", "reset_timeout_seconds"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"env.{name}: expected more than 0, got {getattr(self, name)}.")
        for name in ("max_episode_steps", "threads", "max_failures", "failure_steps"):
            if getattr(self, name) < 0:
                raise ConfigError(f"env.{name}: expected at least 0, got {getattr(self, name)}.")


class EnvGroup(Protocol):
    """Environments that an actor steps together. Rows of a lane are env-major: [envs, agents]."""

    spec: EnvSpec
    spaces: dict[str, AgentSpaces]
    """By agent."""
    num_envs: int
    lanes: Lanes

    def reset(self, seed: int) -> dict[str, EnvStep]:
        """Starts an episode in every environment; environment i is seeded with `seed + i`."""
        ...

    def step(self, actions: dict[str, np.ndarray]) -> dict[str, EnvStep]:
        """Steps every environment by one tick.

        Actions are [rows, ...] per lane, ignored where a row has no turn. Rows whose last
        observation was final start a new episode (next-step autoreset). An environment with
        several agents does so in the tick after all its agents are done.

        The arrays of the returned records belong to the group: the next `step`, `reset` or
        `restore` may write them again. Copy what you keep.
        """
        ...

    def render(self, index: int) -> np.ndarray:
        """A picture (uint8 [height, width, 3]) of one environment, if made with `render=True`."""
        ...

    def state(self) -> Tree | None:
        """All that `restore` needs to continue exactly here; None where environments offer none."""
        ...

    def restore(self, state: Tree) -> dict[str, EnvStep]:
        """Continues from `state` (in place of `reset`), and shows the last EnvStep again."""
        ...

    def close(self) -> None:
        """Frees what the environments hold. Safe to call twice."""
        ...


@runtime_checkable
class BackgroundGroup(EnvGroup, Protocol):
    """A group whose environments step in threads of their own, while its actor does other work."""

    def begin(self, actions: dict[str, np.ndarray]) -> None:
        """Starts what `step` does; nothing of the group may be used until `finish`."""
        ...

    def finish(self) -> dict[str, EnvStep]:
        """Waits for the step that was begun, and returns what `step` does."""
        ...
