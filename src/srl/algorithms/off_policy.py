"""Settings that off-policy algorithms share: the replay, and how often it is learned from.

Nothing here imports torch.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import asdict, dataclass

from srl.algorithms.config import AlgorithmConfig, Sampling
from srl.graph import FragmentShape, Graph, WorkerGroup
from srl.settings import check_types


@dataclass(frozen=True, kw_only=True)
class ReplayConfig:
    """Settings of a replay worker (`WorkerGroup.settings`)."""

    capacity_steps: int
    """Environment steps that all replay workers together keep; the oldest go first."""
    warmup_steps: int = 0
    """Environment steps that they store before they draw the first batch."""
    batches_per_step: float = 1.0
    """Batches that they draw for each environment step."""
    max_batches_owed: float = 0.0
    """They store no more while they owe this many batches; 0 takes those of two learner steps, or
    of one fragment if these are more."""


@dataclass(frozen=True, kw_only=True)
class OffPolicyConfig(AlgorithmConfig):
    """Base class of the settings of algorithms that learn from a replay, again and again."""

    buffer_size: int = 100_000
    """Environment steps that the replay keeps; the oldest go first."""
    learning_starts: int = 1000
    """Environment steps in the replay before the first gradient step."""
    updates_per_step: float = 0.25
    """Gradient steps for each environment step: 0.25 is one for every 4. Whichever side is slower,
    the other one waits."""
    batch_size: int = 64
    """Windows of a gradient step."""
    gradient_steps: int = 8
    """Gradient steps of a learner step. Then the weights are published, once."""
    fragment_length: int = 8
    """Ticks that actors write at once."""
    replay_workers: int = 1
    """Replay workers. Each keeps a part of the buffer, and draws a part of the batches."""

    def __post_init__(self) -> None:
        check_types(self, "algorithm")
        for name in (
            *("buffer_size", "batch_size", "gradient_steps"),
            *("fragment_length", "replay_workers"),
        ):
            self._expect(name, getattr(self, name) >= 1, "at least 1")
        self._expect("updates_per_step", 0 < self.updates_per_step < math.inf, "a positive number")
        enough = 0 <= self.learning_starts <= self.buffer_size
        self._expect("learning_starts", enough, f"0 to buffer_size ({self.buffer_size})")

    def windows(self) -> FragmentShape:
        """The windows that a gradient step learns from; a batch has `batch_size` of them."""
        raise NotImplementedError

    def reuse(self) -> float:
        """Windows that are drawn for each environment step."""
        return self.updates_per_step * self.batch_size

    def sampling(self) -> Sampling:
        """Short fragments, and actors that wait for no weights."""
        return Sampling(length=self.fragment_length, max_policy_age=None)

    def dataflow(self, graph: Graph, policy: str) -> Graph:
        """Puts a replay between the actors and the trainer of a policy.

        The trainer gets `gradient_steps` batches at once, next to each other.
        """
        config = ReplayConfig(
            capacity_steps=self.buffer_size,
            warmup_steps=self.learning_starts,
            batches_per_step=self.updates_per_step,
        )
        group = WorkerGroup(
            kind="srl.workers.replay:ReplayWorker",
            count=self.replay_workers,
            settings=asdict(config),
        )
        several = len({node.policy for node in graph.streams.values()}) > 1
        return graph.insert(
            f"replay-{policy}" if several else "replay",
            group,
            into=policy,
            split="readers",
            shape=dataclasses.replace(self.windows(), envs=self.batch_size),
            ratio=None,
            fragments_per_batch=self.gradient_steps,
        )
