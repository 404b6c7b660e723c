"""The dataset worker: writes windows of recorded episodes, epoch after epoch, in random order.

*Consumes* nothing: it reads its dataset when it is built. *Waits for* a free slot of the trainer's
stream. *Unblocked by* trainers. *Produces* fragments of windows, each as wide as a minibatch.

The dataset is cut into windows at an offset that is drawn anew for each epoch. An epoch has each of
them once. What fragment number n holds follows from the seed and n alone, so the number of
fragments is all that a checkpoint needs.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from srl.data.tree import Tree
from srl.datasets.steps import RecordedSteps
from srl.streams.sample import SampleSink
from srl.streams.sample_queue import FragmentInfo
from srl.workers.wiring import Context
from srl.workers.worker import DONE, PROGRESS, StepResult, Wait, Worker


class WindowOrder:
    """The first tick of each window, by its number, over all epochs."""

    def __init__(self, num_ticks: int, length: int, seed: int) -> None:
        self._num_ticks, self._length, self._seed = num_ticks, length, seed
        self.per_epoch = -(-num_ticks // length)
        """Windows of an epoch."""
        self._epochs: dict[int, np.ndarray] = {}

    def starts(self, first: int, count: int) -> np.ndarray:
        """The first ticks of the windows from number `first` on."""
        epoch, place = np.divmod(np.arange(first, first + count), self.per_epoch)
        self._epochs = {int(number): self._epoch(int(number)) for number in np.unique(epoch)}
        found: np.ndarray = np.stack(
            [self._epochs[number][at] for number, at in zip(epoch.tolist(), place, strict=True)]
        )
        return found

    def _epoch(self, number: int) -> np.ndarray:
        """The first ticks of an epoch's windows, in their order."""
        known = self._epochs.get(number)
        if known is not None:
            return known
        rng = np.random.default_rng([self._seed, number])
        offset = int(rng.integers(self._length))
        return (rng.permutation(self.per_epoch) * self._length + offset) % self._num_ticks


class DatasetWorker(Worker):
    """Fills the streams of a policy's trainers in turn."""

    in_every_checkpoint = True

    def __init__(
        self, name: str, sinks: list[SampleSink], steps: RecordedSteps, *, seed: int
    ) -> None:
        self.name = name
        self._sinks, self._steps = sinks, steps
        self._spec = sinks[0].spec.trajectory
        self._order = WindowOrder(steps.num_ticks, self._spec.length, seed)
        self._num_fragments = 0
        """Fragments written so far, in all incarnations."""
        self._wait = Wait("slots")

    @classmethod
    def build(cls, context: Context) -> DatasetWorker:
        """A dataset worker from its part of the plan."""
        sinks = [context.sample_sink(stream) for stream in context.worker.writes]
        path = Path(context.worker.settings["dataset"])
        agent = sinks[0].spec.trajectory.agent
        seed = int(context.plan.experiment["seed"])
        return cls(context.name, sinks, RecordedSteps(path, agent, "algorithm.dataset"), seed=seed)

    def step(self) -> StepResult | Wait:
        """Writes one fragment."""
        # A killed worker goes on where it was, and not where the last checkpoint was.
        self._num_fragments = max(self._num_fragments, self.stats.get("count_fragments"))
        number = self._num_fragments % len(self._sinks)
        slot = self._sinks[number].claim(newest_version=0)
        if slot is None:
            return DONE if all(sink.closed for sink in self._sinks) else self._wait
        rows, trajectory = self._spec.rows, slot.trajectory
        start = self._order.starts(self._num_fragments * rows, rows) - self._spec.burn_in
        self._steps.read(start, trajectory)
        used = trajectory.acted[self._spec.burn_in : -self._spec.bootstrap]
        count = int(used.sum())
        slot.commit(FragmentInfo(length=self._spec.capacity, env_steps=count))
        self._num_fragments += 1
        self.stats.set("count_fragments", self._num_fragments)
        self.stats.add("count_env_steps", count)
        return PROGRESS

    def state(self, exact: bool) -> Tree:
        """How many fragments it has written."""
        return {"num_fragments": self._num_fragments}

    def restore(self, state: Tree, exact: bool) -> None:
        """Continues from `state`."""
        self._num_fragments = state["num_fragments"]

    def close(self) -> None:
        """Leaves its streams."""
        for sink in self._sinks:
            sink.close()
