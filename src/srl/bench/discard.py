"""Collects without learning: fragments are made and carried as usual, and then discarded."""

from __future__ import annotations

import dataclasses
import time

import numpy as np

from srl.data.tree import Tree
from srl.graph import Graph
from srl.services.messages import Update
from srl.workers.trainer import TrainerWorker
from srl.workers.wiring import Context
from srl.workers.worker import PROGRESS, StepResult, Wait, Worker

REPORT_SECONDS = 0.1
"""Interval between two reports of the environment steps."""


class DiscardWorker(Worker):
    """Takes the place of a trainer: publishes the first weights, and discards all fragments."""

    def __init__(self, context: Context) -> None:
        self.name = context.name
        (self._policy,) = context.worker.trains
        (stream,) = context.worker.reads
        self._source = context.sample_source(stream)
        self._trainer = TrainerWorker.build(context)
        self._metrics = context.metrics
        self._env_steps = 0
        self._sent = 0.0
        self._published = False

    @classmethod
    def build(cls, context: Context) -> DiscardWorker:
        """Makes the worker from its part of the plan."""
        return cls(context)

    def step(self) -> StepResult | Wait:
        """Takes, counts and releases one fragment."""
        if not self._published:
            self._published = True
            self._trainer.stats = self.stats
            return self._trainer.step()
        item = self._source.take()
        if item is None:
            return Wait("samples")
        self._env_steps += item.info.env_steps
        item.release()
        self._source.acknowledge(1)
        self.stats.add("count_updates", 1)
        self.stats.set("count_env_steps", self._env_steps)
        now = time.monotonic()
        if now - self._sent > REPORT_SECONDS:
            self._sent = now
            self._metrics.send(
                Update(self.name, self._policy, 0, self._env_steps, 0, 0.0, 0.0, 0.0, {})
            )
        return PROGRESS

    def weights(self) -> dict[str, dict[str, np.ndarray]]:
        """The weights that the run started with."""
        return self._trainer.weights()

    def state(self, exact: bool) -> Tree:
        """None, because it learns nothing."""
        return None

    def close(self) -> None:
        """Closes its end of the stream."""
        self._source.close()


def without_training(graph: Graph) -> Graph:
    """The same graph without learning, and without a bound on policy age."""
    workers = {
        name: dataclasses.replace(group, kind="srl.bench.discard:DiscardWorker", count=1)
        if group.trains
        else group
        for name, group in graph.workers.items()
    }
    streams = {
        name: dataclasses.replace(node, bounds_age=False) for name, node in graph.streams.items()
    }
    return Graph(workers=workers, streams=streams)
