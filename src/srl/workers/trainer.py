"""The trainer: fills batches, lets the algorithm make newer weights of them, and publishes those.

*Consumes* fragments of one sample stream. *Waits for* fragments. *Unblocked by* actors (or a worker
in between). *Produces* snapshots for the parameter service, one version for each learner step.

Between minibatches it looks at stop and fills the next batch. An unfinished learner step can be
undone, because the algorithm keeps aside what it was like before it.
"""

from __future__ import annotations

import time

import numpy as np

from srl.algorithms.protocol import Algorithm
from srl.data.batching import BatchBuilder
from srl.data.records import SampleBatch, Snapshot, TrainResult
from srl.data.tree import Tree
from srl.errors import LearnError
from srl.services.messages import Update
from srl.services.metrics_client import MetricsClient
from srl.services.parameters import ParameterWriter
from srl.streams.sample import SampleSource
from srl.workers.wiring import Context, load_weights
from srl.workers.worker import DONE, GIVEN_UP, MADE, Progress, Wait, Worker


class TrainerWorker(Worker):
    """Trains one policy."""

    in_every_checkpoint = True

    def __init__(
        self,
        name: str,
        *,
        policy_name: str,
        algorithm: Algorithm,
        source: SampleSource,
        parameters: ParameterWriter,
        metrics: MetricsClient,
        total_steps: int,
    ) -> None:
        self.name = name
        self.policy_name = policy_name
        self.version = 0
        self.env_steps = 0
        self.agent_steps = 0
        self._algorithm = algorithm
        self._source = source
        self._parameters = parameters
        self._metrics = metrics
        self._total_steps = total_steps
        spec = source.spec
        self._filling = BatchBuilder(spec.trajectory, spec.items_per_batch)
        self._training = BatchBuilder(spec.trajectory, spec.items_per_batch)
        self._published = False
        self._wait = Wait("samples")

    @classmethod
    def build(cls, context: Context) -> TrainerWorker:
        """A trainer from its part of the plan."""
        (policy,) = context.worker.trains
        (stream,) = context.worker.reads
        return cls(
            context.name,
            policy_name=policy,
            algorithm=context.make_algorithm(policy),
            source=context.sample_source(stream),
            parameters=context.parameter_writer(policy),
            metrics=context.metrics,
            total_steps=int(context.plan.experiment["steps"]),
        )

    def step(self) -> Progress | Wait:
        """Publishes the first weights, does one learner step, or takes what has arrived."""
        if not self._published:
            self._publish()
            return MADE
        got = self._fill()
        if self._filling.full and not self._training.full:
            self._filling, self._training = self._training, self._filling
        if self._training.full:
            return MADE if self._learn() else GIVEN_UP
        if got:
            return MADE
        return DONE if self._source.closed else self._wait

    def _fill(self) -> bool:
        """Copies fragments that are ready into the batch that comes next."""
        got = False
        while not self._filling.full:
            item = self._source.take()
            if item is None:
                break
            self._filling.add(item.item_id, item.trajectory, item.length, item.env_steps)
            item.release()
            got = True
        return got

    def _learn(self) -> bool:
        """One learner step; False if it was given up between minibatches, because the run stops."""
        start = time.perf_counter_ns()
        self._algorithm.remember()
        progress = min(1.0, self.env_steps / self._total_steps) if self._total_steps else 0.0
        try:
            for result in self._algorithm.update(self._training.batch(), progress):
                if result is not None:
                    self._finish(result, (time.perf_counter_ns() - start) / 1e9)
                    return True
                self.row.add("count_minibatches", 1)
                if self.stopping():
                    break
                self._fill()
                self.row.beat()
        except LearnError as error:
            self._algorithm.undo()
            raise LearnError(f"{error} (policy {self.policy_name!r} in {self.name})") from error
        # The batch stays, to be trained on if the run goes on.
        self._algorithm.undo()
        return False

    def _finish(self, result: TrainResult, seconds: float) -> None:
        batch = self._training.batch()
        age_mean, age_max = self._policy_age(batch)
        self.version += 1
        self.env_steps += self._training.num_env_steps
        self.agent_steps += batch.num_steps
        self._training.clear()
        self._source.acknowledge(len(batch.item_ids))
        self._publish()
        self.row.add("count_updates", 1)
        self.row.set("count_env_steps", self.env_steps)
        self.row.set("count_agent_steps", self.agent_steps)
        self._metrics.send(
            Update(
                worker=self.name,
                policy=self.policy_name,
                policy_version=self.version,
                env_steps=self.env_steps,
                agent_steps=self.agent_steps,
                policy_age_mean=age_mean,
                policy_age_max=age_max,
                seconds=seconds,
                metrics=result.metrics,
            )
        )

    def _policy_age(self, batch: SampleBatch) -> tuple[float, float]:
        used = slice(batch.burn_in, -1)
        versions = batch.data.policy_version[used][batch.data.acted[used]]
        if not versions.size:
            return 0.0, 0.0
        return float(self.version - versions.mean()), float(self.version - versions.min())

    def _publish(self) -> None:
        self._published = True
        self.row.set("count_policy_version", self.version)
        self._parameters.publish(Snapshot(self.version, self.weights()[self.policy_name]))

    def weights(self) -> dict[str, dict[str, np.ndarray]]:
        """The policy's parameters and buffers, as arrays."""
        tensors = self._algorithm.policy.state_dict()
        return {self.policy_name: {name: t.detach().cpu().numpy() for name, t in tensors.items()}}

    def _learner_state(self) -> Tree:
        weights = self.weights()[self.policy_name]
        copies = {name: np.array(array, copy=True) for name, array in weights.items()}
        return {"weights": copies, "algorithm": self._algorithm.state()}

    def _load_learner(self, state: Tree) -> None:
        load_weights(self._algorithm.policy, state["weights"], self.policy_name)
        self._algorithm.restore(state["algorithm"])

    def state(self, exact: bool) -> Tree:
        """Learner and counters; in an exact checkpoint also the batches that are
        full or filling."""
        return {
            "version": self.version,
            "env_steps": self.env_steps,
            "agent_steps": self.agent_steps,
            "learner": self._learner_state(),
            "filling": self._filling.state() if exact else None,
            "training": self._training.state() if exact else None,
        }

    def restore(self, state: Tree, exact: bool) -> None:
        """Goes on from `state`."""
        self.version = state["version"]
        self.env_steps = state["env_steps"]
        self.agent_steps = state["agent_steps"]
        self._load_learner(state["learner"])
        if exact:
            self._filling.restore(state["filling"])
            self._training.restore(state["training"])
            self._published = True
        self.row.set("count_policy_version", self.version)
        self.row.set("count_env_steps", self.env_steps)
        self.row.set("count_agent_steps", self.agent_steps)

    def close(self) -> None:
        """Leaves the stream."""
        self._source.close()
