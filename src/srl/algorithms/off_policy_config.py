"""Settings that off-policy algorithms share: the replay, and how often it is learned from.

Nothing here imports torch.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import asdict, dataclass
from typing import ClassVar, get_args

from srl.algorithms.config import AlgorithmConfig, Sampling
from srl.data.samplers import SamplerName
from srl.data.spec import ArraySpec
from srl.data.table import TableSpec
from srl.errors import ConfigError
from srl.graph import FragmentShape, Graph, WorkerGroup

PRIORITIZED = {"key": ArraySpec(dtype="int64"), "weight": ArraySpec(dtype="float32")}
"""What a window that is drawn by priority has: its key, and its weight in the loss."""
FEEDBACK = {"key": ArraySpec(dtype="int64"), "priority": ArraySpec(dtype="float32")}
"""What the trainer says of windows, for the replay."""


@dataclass(frozen=True, kw_only=True)
class ReplayConfig:
    """Settings of a replay worker (`WorkerGroup.settings`)."""

    capacity_steps: int
    """Environment steps that all replay workers together keep; the oldest go first."""
    capacity_bytes: int = 0
    """Bytes that they may take together; fewer steps are kept where these take more. 0: no
    limit."""
    warmup_steps: int = 0
    """Environment steps that they store before they draw the first batch."""
    batches_per_step: float = 1.0
    """Batches that they draw for each environment step."""
    sampler: SamplerName = "uniform"
    """How windows are chosen."""
    priority_exponent: float = 0.6
    """`prioritized`: power of the priority that a window's probability is proportional to."""
    max_uses: int = 1
    """`fifo`: how often each window is drawn."""
    max_batches_owed: float = 0.0
    """They store no more while they owe this many batches; 0 takes those of two learner steps, or
    of one fragment if these are more."""


@dataclass(frozen=True, kw_only=True)
class OffPolicyConfig(AlgorithmConfig):
    """Base class of the settings of algorithms that learn from a replay, again and again."""

    gives_priorities: ClassVar[bool] = False
    """Whether the learner returns a priority for each row, for `replay=prioritized`."""

    buffer_size: int = 100_000
    """Environment steps that the replay keeps; the oldest go first."""
    buffer_bytes: int = 0
    """Most bytes that the replay takes: it keeps fewer steps where these take more. 0 has no limit.
    A run prints at its start what its replay takes."""
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
    replay: SamplerName = "uniform"
    """How windows are drawn: `uniform`; `prioritized` by what the learner says of them (Schaul et
    al. 2016); `fifo` in the order of their arrival, each `max_uses` times."""
    priority_exponent: float = 0.6
    """`prioritized`: 0 draws uniformly, 1 in proportion to the priorities."""
    importance_exponent: float = 0.4
    """`prioritized`: how far the loss corrects for draws that are not uniform at the start; it
    rises to 1, which is fully."""
    max_uses: int = 1
    """`fifo`: how often each window is drawn."""
    replay_workers: int = 1
    """Replay workers. Each keeps a part of the buffer, and draws a part of the batches."""
    replay_beside_trainer: bool = False
    """Whether each replay worker is in the process of a trainer. Then a small machine has a process
    less to run, but storing and drawing wait for the learner, and it for them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in (
            *("buffer_size", "batch_size", "gradient_steps"),
            *("fragment_length", "replay_workers"),
        ):
            self._expect(name, getattr(self, name) >= 1, "at least 1")
        self._expect("buffer_bytes", self.buffer_bytes >= 0, "at least 0")
        self._expect("updates_per_step", 0 < self.updates_per_step < math.inf, "a positive number")
        enough = 0 <= self.learning_starts <= self.buffer_size
        self._expect("learning_starts", enough, f"0 to buffer_size ({self.buffer_size})")
        for name in ("priority_exponent", "importance_exponent"):
            self._expect(name, 0 <= getattr(self, name) <= 1, "a number from 0 to 1")
        self._expect("max_uses", self.max_uses >= 1, "at least 1")
        names = [n for n in get_args(SamplerName) if n != "prioritized" or self.gives_priorities]
        self._expect("replay", self.replay in names, " or ".join(names))
        if self.replay == "fifo":
            self._check_fifo()

    def _check_fifo(self) -> None:
        """Raises if windows would overlap, or if there are too few of them."""
        length = self.windows().length
        fits = self.fragment_length % length == 0
        self._expect("fragment_length", fits, f"a multiple of {length} with replay=fifo")
        uses = math.ceil(self.updates_per_step * self.batch_size * length)
        enough = self.max_uses >= uses
        self._expect(
            "max_uses", enough, f"at least {uses} (updates_per_step x batch_size x {length} ticks)"
        )

    def check_steps(self, steps: int) -> None:
        """The first learner step needs a replay of some size, and enough gradient steps."""
        least = self.learning_starts + math.ceil(self.gradient_steps / self.updates_per_step)
        if steps < least:
            raise ConfigError(
                f"steps: expected at least {least}, because algorithm.learning_starts is "
                f"{self.learning_starts}, and the first {self.gradient_steps} gradient steps "
                f"(algorithm.gradient_steps) take {least - self.learning_starts} environment steps "
                f"(algorithm.updates_per_step is {self.updates_per_step:g}), got {steps}. Raise "
                "steps, or change these."
            )

    def importance_exponent_at(self, progress: float) -> float:
        """How far the loss corrects for the draws after this share of the experiment."""
        start = self.importance_exponent
        return start + (1.0 - start) * min(1.0, progress)

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
            capacity_bytes=self.buffer_bytes,
            warmup_steps=self.learning_starts,
            batches_per_step=self.updates_per_step,
            sampler=self.replay,
            priority_exponent=self.priority_exponent,
            max_uses=self.max_uses,
        )
        trainer = graph.trainer(policy)
        if self.replay_beside_trainer:
            count = graph.workers[trainer].count
            fits = self.replay_workers <= count
            self._expect("replay_workers", fits, f"at most trainer.count ({count}) beside trainers")
        group = WorkerGroup(
            kind="srl.workers.replay:ReplayWorker",
            count=self.replay_workers,
            beside=trainer if self.replay_beside_trainer else "",
            settings=asdict(config),
        )
        several = len({node.policy for node in graph.streams.values()}) > 1
        name = f"replay-{policy}" if several else "replay"
        windows = dataclasses.replace(self.windows(), envs=self.batch_size)
        if self.replay == "prioritized":
            windows = dataclasses.replace(windows, row={**windows.row, **PRIORITIZED})
        graph = graph.insert(
            name,
            group,
            into=policy,
            split="readers",
            shape=windows,
            ratio=None,
            fragments_per_batch=self.gradient_steps,
        )
        if self.replay != "prioritized":
            return graph
        return graph.connect(
            f"{policy}/priorities",
            writer=trainer,
            reader=name,
            policy=policy,
            table=TableSpec(columns=FEEDBACK, capacity=self.gradient_steps * self.batch_size),
        )
