"""What the trainer asks of an algorithm: batches in, newer weights out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from srl.algorithms.ranks import Ranks
from srl.data.records import SampleBatch, TrainResult
from srl.data.tree import Tree
from srl.policies.protocol import Policy


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """What fragments an algorithm wants; the plan sizes the sample stream by it."""

    length: int
    """Ticks of a fragment that a loss may see."""
    burn_in: int = 0
    state_every: int = 1
    cut: Literal["fixed", "episode"] = "fixed"
    max_policy_age: int | None = 1
    """Versions by which the oldest step of a fragment may lag when it is consumed; 0 is
    synchronous, None unbounded."""


class Algorithm(ABC):
    """Batch to newer weights. Knows gradients; knows nothing of streams, processes or versions.

    Built as `AlgorithmClass(policy, config, device=..., seed=...)` in the trainer, and found by
    import path.
    """

    Config: ClassVar[type]
    """The settings dataclass; its fields are `--set algorithm.*`."""

    data_parallel: ClassVar[bool] = False
    """Whether several trainers can learn together: `update` sums over `ranks` what is whole."""

    policy: Policy
    ranks = Ranks()
    """The trainers that learn together."""

    @classmethod
    @abstractmethod
    def sampling(cls, config: Any) -> Sampling:
        """What fragments this algorithm wants, from its settings alone."""

    @classmethod  # noqa: B027 (to have nothing to check is fine)
    def check(cls, config: Any, policy: Policy) -> None:
        """Raises a ConfigError if the policy lacks what this algorithm needs (extras, methods)."""

    @abstractmethod
    def update(self, batch: SampleBatch, progress: float) -> Iterator[TrainResult | None]:
        """One learner step as an iterator: None after each minibatch, and the TrainResult last.

        `progress` runs from 0 to 1 over the experiment, for schedules. The trainer may drop the
        iterator between two minibatches; it then calls `undo`. Batch arrays stay valid while it
        runs.
        """

    @abstractmethod
    def state(self) -> Tree:
        """Optimizer, schedules, random states, normalisers that are not in the policy: nested dicts
        of numpy arrays and plain values. The policy's weights are saved beside it by the trainer.
        """

    @abstractmethod
    def restore(self, state: Tree) -> None:
        """Continues from `state`."""

    def join(self, ranks: Ranks) -> None:
        """Learns together with other trainers from now on; each has a part of every batch."""
        self.ranks = ranks

    def remember(self) -> None:
        """Keeps aside what an update changes, so that `undo` can bring it back. Called before every
        update: worth overriding where copying all of `state` takes long."""
        weights = {name: tensor.clone() for name, tensor in self.policy.state_dict().items()}
        self._remembered: Tree = (weights, self.state())

    def undo(self) -> None:
        """Back to when `remember` was called."""
        weights, state = self._remembered
        self.policy.load_state_dict(weights)
        self.restore(state)


def seeded(seed: int, device: str | torch.device = "cpu") -> torch.Generator:
    """A generator of its own for everything random in one place."""
    return torch.Generator(device=device).manual_seed(seed % (1 << 63))
