"""A worker between actors and trainer that writes some fragments more or less often than once."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import srl
from srl.data.trajectory import copy_trajectory
from srl.workers.wiring import Context
from srl.workers.worker import DONE, PROGRESS, StepResult, Wait, Worker


class Rationing(Worker):
    """Writes every fragment `times` as often as it reads it; 0.5 drops every second one."""

    def __init__(self, context: Context) -> None:
        self.name = context.name
        self.source = context.sample_source(context.worker.reads[0])
        self.sink = context.sample_sink(context.worker.writes[0])
        self.times = float(context.worker.settings["times"])
        self.owed = 0.0
        self.item: Any = None

    @classmethod
    def build(cls, context: Context) -> Rationing:
        return cls(context)

    def step(self) -> StepResult | Wait:
        if self.item is None:
            self.item = self.source.take()
            if self.item is None:
                return DONE if self.source.closed else Wait("samples")
            self.owed += self.times
        if self.owed >= 1:
            slot = self.sink.claim(newest_version=0)
            if slot is None:
                return DONE if self.sink.closed else Wait("slots")
            copy_trajectory(self.item.trajectory, slot.trajectory)
            slot.commit(self.item.info)
            self.owed -= 1
        if self.owed < 1:
            self.item.release()
            self.source.acknowledge(1)
            self.item = None
        return PROGRESS

    def close(self) -> None:
        self.source.close()
        self.sink.close()


class Permitted(Rationing):
    """Passes on nothing until a file in the run's folder permits it."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.permit = context.run_dir / "permit"

    def step(self) -> StepResult | Wait:
        return super().step() if self.permit.exists() else Wait("permission")


def _graph(
    graph: srl.Graph, times: float, kind: type[Rationing] = Rationing, **stream: Any
) -> srl.Graph:
    group = srl.WorkerGroup(kind=f"{__file__}:{kind.__name__}", settings={"times": times})
    return graph.insert("ration", group, into="default", **stream)


def halving(graph: srl.Graph) -> srl.Graph:
    """Every second fragment is dropped."""
    return _graph(graph, 0.5)


def multiplying(graph: srl.Graph) -> srl.Graph:
    """Every fragment is passed on so often that several batches consist of it alone."""
    return _graph(graph, 16.0)


def declared_halving(graph: srl.Graph) -> srl.Graph:
    """Every second fragment is dropped, as the stream says."""
    return _graph(graph, 0.5, ratio=Fraction(1, 2))


def declared_doubling(graph: srl.Graph) -> srl.Graph:
    """Every fragment is passed on twice, as the stream says."""
    return _graph(graph, 2.0, ratio=2)


def permitted(graph: srl.Graph) -> srl.Graph:
    """Every fragment is passed on once, from when a file permits it on."""
    return _graph(graph, 1.0, Permitted)
