"""Settings of behaviour cloning, each checked when it is set."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from srl.algorithms.config import Sampling
from srl.algorithms.imitation_config import ImitationConfig
from srl.graph import Graph, WorkerGroup


@dataclass(frozen=True, kw_only=True)
class BCConfig(ImitationConfig):
    """Settings of behaviour cloning, `--set algorithm.*`."""

    dataset: str = ""
    """The folder of a dataset in Minari's format, as `srl record` writes it. It must be on the host
    of the workers that read it."""

    def reuse(self) -> float:
        """Nobody acts, so learning gets all cores."""
        return float("inf")

    def sampling(self) -> Sampling:
        """Windows of a dataset, which has no age."""
        return Sampling(
            **dataclasses.asdict(dataclasses.replace(self.windows(), envs=self.batch_size)),
            max_policy_age=None,
        )

    def dataflow(self, graph: Graph, policy: str) -> Graph:
        """Puts a worker that reads the dataset in place of the actors."""
        from srl.datasets.reader import find_dataset

        find_dataset(Path(self.dataset), "algorithm.dataset")
        several = len({node.policy for node in graph.streams.values()}) > 1
        group = WorkerGroup(
            kind="srl.workers.dataset:DatasetWorker",
            settings={"dataset": str(Path(self.dataset).resolve())},
        )
        return graph.supply(
            f"dataset-{policy}" if several else "dataset",
            group,
            stream=policy,
            fragments_per_batch=self.gradient_steps,
        )
