"""What an algorithm declares in its settings: its fragments, its dataflow and its exploration.

The head reads these declarations, so nothing here imports torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from srl.algorithms.suggestion import Suggestion
from srl.data.spec import EnvSpec
from srl.errors import ConfigError
from srl.graph import FragmentShape, Graph
from srl.settings import check_types

Schedule = Literal["constant", "linear"]
"""How a learning rate changes over an experiment."""
RewardClip = Literal["sign"] | float | None
"""How rewards are clipped before a loss sees them."""


@dataclass(frozen=True, kw_only=True)
class Sampling(FragmentShape):
    """The fragments that an algorithm wants, and how old they may be."""

    max_policy_age: int | None = 0
    """Versions by which the oldest step of a fragment may lag when it is consumed; 0 is
    synchronous, None unbounded. Anything but 0 needs `Algorithm.handles_stale_samples`."""

    def __post_init__(self) -> None:
        if self.bootstrap > 1 and self.max_policy_age is not None:
            raise ConfigError(
                "sampling: a bound on policy age expects bootstrap 1, because only the last action "
                f"of a fragment can be asked again; got bootstrap {self.bootstrap} with "
                f"max_policy_age {self.max_policy_age}. Declare max_policy_age=None."
            )


@dataclass(frozen=True, kw_only=True)
class AlgorithmConfig:
    """Base class of the settings of an algorithm, which are `--set algorithm.*`."""

    network: ClassVar[str] = "actor_critic"
    """Name or import path of the policy class that a run takes if its settings name none."""

    def __post_init__(self) -> None:
        check_types(self, "algorithm")

    @classmethod
    def suggest(cls, spec: EnvSpec) -> Suggestion:
        """Settings for an environment that has no recipe with this algorithm."""
        return Suggestion()

    def reuse(self) -> float:
        """How often each environment step is learned from. If it is often, learning takes more
        time than acting, and gets more cores."""
        return 1.0

    def sampling(self) -> Sampling:
        """The fragments that the algorithm wants from actors."""
        raise NotImplementedError

    def dataflow(self, graph: Graph, policy: str) -> Graph:
        """Changes the graph of workers and streams for a policy, whose stream has its name. By
        default actors write what the trainer reads."""
        return graph

    def explore(self, num_envs: int) -> list[float]:
        """How much the policy explores in each environment, from 0 (greedy) to 1."""
        return [1.0] * num_envs

    def check_steps(self, steps: int) -> None:
        """Raises if nothing would be learned in an experiment of so many environment steps."""
        return

    def _expect(self, name: str, condition: bool, expected: str) -> None:
        """Raises unless a condition on a setting holds."""
        if not condition:
            raise ConfigError(
                f"algorithm.{name}: expected {expected}, got {getattr(self, name)!r}."
            )

    def _expect_positive(self, *names: str) -> None:
        for name in names:
            self._expect(name, 0 < getattr(self, name) < math.inf, "a positive number")

    def _expect_positive_or_nothing(self, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            self._expect(name, value is None or value > 0, "a positive number or nothing")

    def _expect_share(self, *names: str) -> None:
        for name in names:
            self._expect(name, 0 <= getattr(self, name) <= 1, "a number from 0 to 1")

    def _expect_count(self, *names: str) -> None:
        for name in names:
            self._expect(name, getattr(self, name) >= 1, "at least 1")

    def _expect_one_of(self, name: str, kind: object) -> None:
        """Raises unless a setting has a value of a Literal."""
        known = get_args(kind)
        self._expect(name, getattr(self, name) in known, " or ".join(known))

    def _expect_reward_clip(self, name: str) -> None:
        bound = getattr(self, name)
        positive = not isinstance(bound, str) and (bound is None or bound > 0)
        self._expect(name, bound == "sign" or positive, "sign, a positive number or nothing")


def scheduled(value: float, schedule: Schedule, progress: float) -> float:
    """A setting after this share of the experiment."""
    return value if schedule == "constant" else value * max(0.0, 1.0 - progress)
