"""The interface of algorithms, as the trainer uses it: batches in, newer weights out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch

from srl.algorithms.collective import Collective
from srl.algorithms.config import AlgorithmConfig
from srl.data.records import SampleBatch, TrainResult
from srl.data.tree import Tree
from srl.policies.protocol import Policy


class Algorithm(ABC):
    """Makes newer weights from batches; it knows nothing of streams, processes or versions.

    It is built as `AlgorithmClass(policy, config, device=..., seed=...)` in the trainer, and found
    by import path.
    """

    Config: ClassVar[type[AlgorithmConfig]]
    """The settings, `--set algorithm.*`, with what the algorithm declares to the system."""

    data_parallel: ClassVar[bool] = False
    """Whether several trainers can learn together: `update` then sums by `collective`, so that its
    numbers are of the global batch."""

    handles_stale_samples: ClassVar[bool] = False
    """Whether `update` may learn from actions that an older version of the policy chose: it
    corrects for the difference, or does not depend on who chose them. Otherwise a run with
    `max_policy_age` other than 0 is refused. A subclass with another `loss` declares it again."""

    policy: Policy
    collective = Collective()
    """What the trainers that learn together do together."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        both = ("handles_stale_samples", "loss")
        names = [name for base in cls.__mro__ for name in both if name in vars(base)]
        if names[0] == "loss":
            # The declaration of a base class is about the loss of that class.
            cls.handles_stale_samples = False

    @classmethod  # noqa: B027 (a check is optional)
    def check(cls, config: Any, policy: Policy) -> None:
        """Raises a ConfigError if the policy lacks what this algorithm needs (extras, methods)."""

    @abstractmethod
    def update(self, batch: SampleBatch, progress: float) -> Iterator[TrainResult | None]:
        """One learner step as an iterator: None after each minibatch, and the TrainResult last.

        `progress` goes from 0 to 1 over the experiment, for schedules. The trainer may drop the
        iterator between two minibatches; it then calls `rollback`. The arrays of the batch stay
        valid while the iterator runs.
        """

    @abstractmethod
    def state(self) -> Tree:
        """The optimizer, schedules, random states, and normalisers that are not in the policy:
        nested dicts of numpy arrays and plain values. The trainer saves the policy's weights
        separately."""

    @abstractmethod
    def restore(self, state: Tree) -> None:
        """Continues from `state`."""

    def join(self, collective: Collective) -> None:
        """Learns together with other trainers from now on; each has a part of every batch."""
        self.collective = collective

    def backup(self) -> None:
        """Keeps a copy of all that an update changes, for `rollback`.

        The trainer calls it before every update. Override it where copying all of `state` takes
        long.
        """
        weights = {name: tensor.clone() for name, tensor in self.policy.state_dict().items()}
        self._backup: Tree = (weights, self.state())

    def rollback(self) -> None:
        """Restores what the last `backup` kept."""
        weights, state = self._backup
        self.policy.load_state_dict(weights)
        self.restore(state)


@contextmanager
def seeded_weights(seed: int) -> Iterator[None]:
    """Modules that are made in this block have the same first weights for the same seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed % (1 << 63))
        yield


def seeded(seed: int, device: str | torch.device = "cpu") -> torch.Generator:
    """A random generator of its own for one component, from any integer as its seed."""
    return torch.Generator(device=device).manual_seed(seed % (1 << 63))
