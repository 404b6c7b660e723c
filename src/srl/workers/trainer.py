"""The trainer: fills batches, lets the algorithm learn from them, and publishes newer weights.

*Consumes* fragments of its own sample stream. *Waits for* fragments, and for the other trainers of
its policy, if there are any. *Unblocked by* actors (or a worker in between). *Produces* snapshots
for the parameter service, one version for each learner step, and priorities of the samples where a
replay asks for them.

Between minibatches it checks whether the run stops, and fills the next batch. An unfinished learner
step can be rolled back, because the algorithm made a backup before.

Trainers form a group when they start, and whenever one of them has died. All take over the learner
state of the furthest trainer, or else of the checkpoint. They continue above the newest version
that was published. One trainer alone is a group too.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from srl.algorithms.collective import CollectiveBroken
from srl.algorithms.protocol import Algorithm
from srl.data.batching import BatchBuilder
from srl.data.codec import dump_state, parse_state
from srl.data.records import NO_VERSION, SampleBatch, Snapshot, TrainResult
from srl.data.tree import Tree
from srl.errors import LearnError
from srl.services.messages import Note, Update
from srl.services.metrics_client import MetricsClient
from srl.services.parameters import ParameterReader, ParameterWriter
from srl.services.trainer_table import BatchNumbers, RankProgress
from srl.streams.sample import SampleSource, propagate_version
from srl.workers.age_check import AgeCheck
from srl.workers.feedback import Feedback
from srl.workers.trainer_group import TrainerGroup
from srl.workers.wiring import Context, load_weights
from srl.workers.worker import DONE, GIVEN_UP, PROGRESS, StepResult, Wait, Worker


class TrainerWorker(Worker):
    """Trains one policy, alone or together with others."""

    in_every_checkpoint = True

    def __init__(
        self,
        name: str,
        *,
        policy_name: str,
        algorithm: Algorithm,
        source: SampleSource,
        parameters: ParameterWriter,
        newest: ParameterReader,
        metrics: MetricsClient,
        total_steps: int,
        group: TrainerGroup,
        upstream: Callable[[int], None],
        age: AgeCheck,
        feedback: Feedback,
    ) -> None:
        self.name = name
        self.policy_name = policy_name
        self.version = 0
        self.env_steps = 0
        self.agent_steps = 0
        self._algorithm = algorithm
        self._source = source
        self._parameters = parameters
        self._newest = newest
        self._metrics = metrics
        self._total_steps = total_steps
        self._group = group
        self._upstream = upstream
        """Tells the streams that lead to its own for which version the next batch is."""
        self._age = age
        self._feedback = feedback
        spec = source.spec
        self._filling = BatchBuilder(spec.trajectory, spec.fragments_per_batch)
        self._training = BatchBuilder(spec.trajectory, spec.fragments_per_batch)
        self._has_learned = False
        """Whether it has what this run has learned, and not only what it started with."""
        self._wait = Wait("samples", source.poll_seconds)
        self._wait_others = Wait("workers")
        self._wait_slots = Wait("slots")

    @classmethod
    def build(cls, context: Context) -> TrainerWorker:
        """A trainer from its part of the plan."""
        (policy,) = context.worker.trains
        (stream,) = context.worker.reads
        group = TrainerGroup(context)
        own = context.plan.samples[stream]
        upstream = [
            plan.spec
            for name, plan in context.plan.samples.items()
            if name != stream
            and (plan.policy, plan.part) == (policy, own.part)
            and plan.spec.max_policy_age is not None
        ]
        return cls(
            context.name,
            policy_name=policy,
            algorithm=context.make_algorithm(policy, group.device),
            source=context.sample_source(stream),
            parameters=context.parameter_writer(policy),
            newest=context.parameter_reader(policy),
            metrics=context.metrics,
            total_steps=int(context.plan.experiment["steps"]),
            group=group,
            upstream=partial(propagate_version, own.spec, upstream, context.shared),
            age=_age_check(context, stream),
            feedback=Feedback.build(context),
        )

    def step(self) -> StepResult | Wait:
        """Joins the trainer group, does one learner step, or takes fragments that have arrived."""
        if not self._group.formed:
            return self._join_group()
        if self._group.broken or self._newest.newest_remote_version > self.version:
            self._group.give_up()
            return PROGRESS
        if not self._feedback.flush():
            return self._wait_slots
        got = self._fill()
        if self._filling.full and not self._training.full:
            self._filling, self._training = self._training, self._filling
        if self._training.full:
            numbers = self._group.ready(self.version, self._batch_numbers)
            if numbers is not None:
                return PROGRESS if self._learn(numbers) else GIVEN_UP
        if got:
            return PROGRESS
        # With a full batch it does not end: the other trainers may also have their parts.
        ends = self._source.closed and not self._training.full
        self._group.leave(ends)
        if ends or self._group.over:
            return DONE
        return self._wait_others if self._training.full else self._wait

    # -- the group ---------------------------------------------------------------------------------

    def _join_group(self) -> StepResult | Wait:
        """Forms a group once all its members are there and this host owns the stream."""
        if not self._source.here:
            return self._wait
        rest = self._group.pause_seconds
        if rest > 0:
            return Wait("workers", rest)
        # Steps that an earlier incarnation consumed count, even if its updates are lost.
        self.env_steps = max(self.env_steps, self.stats.get("count_env_steps"))
        self.agent_steps = max(self.agent_steps, self.stats.get("count_agent_steps"))
        progress = RankProgress(
            holds=self.version if self._has_learned else -1,
            due=self._source.due,
            published=self._published(),
            env_steps=self.env_steps,
            agent_steps=self.agent_steps,
        )
        if not self._group.meet(progress):
            return self._wait_others
        try:
            self._group.connect(self.stats.beat, self.stopping)
            self._take_over()
        except CollectiveBroken as broken:
            self._end_group(broken)
            return self._wait_others
        return PROGRESS

    def _end_group(self, broken: CollectiveBroken) -> None:
        """Ends the group. Warns if groups keep ending: a single death is reported elsewhere."""
        self._group.give_up()
        failures = self._group.failures
        if failures > 1 and failures.bit_count() == 1:
            text = f"{failures} groups of trainers have ended without an update: {broken}"
            self._metrics.send(Note(self.name, "warning", text))

    def _take_over(self) -> None:
        """Takes over the learner state, the version and the counters of the furthest rank.

        All numbers are as that rank saw them, because other ranks may count further meanwhile.
        """
        source = self._group.source()
        own = b""
        if source == self._group.rank:
            learner = self._learner_state() if self._group.count > 1 else None
            furthest = self._group.furthest()._asdict()
            own = dump_state({**furthest, "version": self.version, "learner": learner})
        state = parse_state(self._group.share(own, source))
        self.version = state["version"]
        self.env_steps, self.agent_steps = state["env_steps"], state["agent_steps"]
        if source != self._group.rank:
            self._load_learner(state["learner"])
        self._algorithm.join(self._group.collective)
        self._skip_lost_versions(state["published"])
        if self._source.due < state["due"]:
            self._skip_batch()
        self._source.expect(self.version)
        if state["published"] >= 0:
            self._upstream(self.version)
            self._age.start_again(self.version)
        self._has_learned = self._group.formed = True
        if self._group.rank == 0 and self._newest.version != self.version:
            self._publish()
        self._show_counters()

    def _published(self) -> int:
        """The newest version that was published on any host; -1 if there is none."""
        counted = self.stats.get("count_policy_version") or -1
        return max(self._newest.version, self._newest.newest_remote_version, counted)

    def _skip_lost_versions(self, published: int) -> None:
        """Raises the version above those that readers have seen, if their updates are lost."""
        lost = published - self.version
        if lost <= 0:
            return
        self.version = published + 1
        if self._group.rank == 0:
            self.stats.add("count_lost_updates", lost)
            text = f"{lost} updates were lost with a trainer; continuing as version {self.version}"
            self._metrics.send(Note(self.name, "warning", text))

    def _skip_batch(self) -> None:
        """Gives up its part of a batch whose update the others have finished.

        It died during that update, or left it when another rank died. There is only one such
        batch, because every update needs all ranks.
        """
        builder = self._training if self._training.num_added else self._filling
        self._source.skip_batch(builder.num_added)
        builder.clear()

    # -- learning ----------------------------------------------------------------------------------

    def _fill(self) -> bool:
        """Copies fragments that are ready into the next batch."""
        got = False
        while not self._filling.full:
            item = self._source.take()
            if item is None:
                break
            self._filling.add(item.trajectory, item.info.length, item.info.env_steps)
            item.release()
            got = True
        return got

    def _learn(self, numbers: BatchNumbers) -> bool:
        """Does one learner step; False if it gave up between minibatches because the run stops."""
        start = time.perf_counter_ns()
        self._algorithm.backup()
        progress = min(1.0, self.env_steps / self._total_steps) if self._total_steps else 0.0
        batch = self._training.batch()
        batch.learner_version = self.version
        try:
            for result in self._algorithm.update(batch, progress):
                if result is not None:
                    self._finish(result, numbers, (time.perf_counter_ns() - start) / 1e9)
                    return True
                self.stats.add("count_minibatches", 1)
                if self._group.giving_up(self.stopping()):
                    break
                self._fill()
                self.stats.beat()
        except LearnError as error:
            self._algorithm.rollback()
            raise LearnError(f"{error} (policy {self.policy_name!r} in {self.name})") from error
        except CollectiveBroken as broken:
            self._algorithm.rollback()
            self._end_group(broken)
            return not self.stopping()
        # The batch is kept: the trainer learns from it if the run continues.
        self._algorithm.rollback()
        return False

    def _finish(self, result: TrainResult, numbers: BatchNumbers, seconds: float) -> None:
        batch = self._training.batch()
        self._feedback.add(batch.data.row, result.priorities, batch.num_agents)
        if self._group.rank == 0 and self._age.exceeded(self.version, numbers.age_max):
            self._note_too_old(numbers.age_max)
        self.version += 1
        self.env_steps += numbers.env_steps
        self.agent_steps += numbers.agent_steps
        count = self._training.num_added
        self._training.clear()
        self._source.acknowledge(count)
        if self._group.rank == 0:
            self._publish()
        self.stats.add("count_updates", 1)
        self._show_counters()
        if self._group.rank == 0:
            self._metrics.send(
                Update(
                    worker=self.name,
                    policy=self.policy_name,
                    policy_version=self.version,
                    env_steps=self.env_steps,
                    agent_steps=self.agent_steps,
                    policy_age_mean=numbers.age_sum / max(1, numbers.age_count),
                    policy_age_max=float(numbers.age_max),
                    seconds=seconds,
                    metrics=result.metrics,
                )
            )

    def _note_too_old(self, age: int) -> None:
        """Counts an update with data beyond the bound on policy age; warns at 1, 10, 100, ..."""
        self.stats.add("count_too_old_updates", 1)
        count = self.stats.get("count_too_old_updates")
        if str(count).strip("0") == "1":
            text = (
                f"learned from data of {age} versions ago, expected at most {self._age.bound} "
                f"(algorithm.max_policy_age), in {count} updates so far. The bound expects "
                "workers between actors and trainer to write as many fragments for each one that "
                "they read as the stream's ratio says, in the same order. Change these workers, "
                "declare another ratio, or raise the bound."
            )
            self._metrics.send(Note(self.name, "warning", text))

    def _batch_numbers(self) -> BatchNumbers:
        """The numbers of this rank's part of the batch."""
        batch: SampleBatch = self._training.batch()
        versions = batch.data.policy_version[batch.used][batch.data.acted[batch.used]]
        versions = versions[versions != NO_VERSION]
        return BatchNumbers(
            env_steps=self._training.num_env_steps,
            agent_steps=batch.num_steps,
            age_sum=int(self.version * versions.size - versions.sum()),
            age_count=int(versions.size),
            age_max=int(self.version - versions.min()) if versions.size else 0,
        )

    def _publish(self) -> None:
        self._parameters.publish(Snapshot(self.version, self._weights()))

    def _show_counters(self) -> None:
        for name, value in (("policy_version", self.version), *self._steps().items()):
            self.stats.set(f"count_{name}", value)

    # -- state -------------------------------------------------------------------------------------

    @property
    def settled(self) -> bool:
        """Whether it has joined a group: before that, a restarted trainer may be far behind."""
        return self._has_learned

    def weights(self) -> dict[str, dict[str, np.ndarray]]:
        """The policy's parameters and buffers as arrays; only the first trainer returns them."""
        return {self.policy_name: self._weights()} if self._group.rank == 0 else {}

    def _weights(self) -> dict[str, np.ndarray]:
        tensors = self._algorithm.policy.state_dict()
        return {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}

    def _learner_state(self) -> Tree:
        copies = {name: np.array(array, copy=True) for name, array in self._weights().items()}
        return {"weights": copies, "algorithm": self._algorithm.state()}

    def _load_learner(self, state: Tree) -> None:
        load_weights(self._algorithm.policy, state["weights"], self.policy_name)
        self._algorithm.restore(state["algorithm"])

    def _steps(self) -> dict[str, int]:
        return {"env_steps": self.env_steps, "agent_steps": self.agent_steps}

    def state(self, exact: bool) -> Tree:
        """Learner and counters, only from the first trainer of the group; in an exact checkpoint
        also the batches that are full or being filled."""
        if self._group.rank:
            return None
        return {
            "version": self.version,
            **self._steps(),
            "learner": self._learner_state(),
            "filling": self._filling.state() if exact else None,
            "training": self._training.state() if exact else None,
            "feedback": self._feedback.state() if exact else None,
        }

    def restore(self, state: Tree, exact: bool) -> None:
        """Continues from `state`."""
        self.version = state["version"]
        self.env_steps, self.agent_steps = state["env_steps"], state["agent_steps"]
        self._load_learner(state["learner"])
        if exact:
            self._filling.restore(state["filling"])
            self._training.restore(state["training"])
            self._feedback.restore(state["feedback"])
            self._has_learned = self._group.formed = True
            self._show_counters()

    def close(self) -> None:
        """Closes its ends of the streams."""
        self._source.close()
        self._feedback.close()


def _age_check(context: Context, stream: str) -> AgeCheck:
    """The age check of a stream's trainer, with the bound of the stream that the actors write."""
    own = context.plan.samples[stream]
    on_the_way = [
        plan.spec
        for plan in context.plan.samples.values()
        if (plan.policy, plan.part) == (own.policy, own.part) and not plan.has_tables
    ]
    bounds = [spec.max_policy_age for spec in on_the_way if spec.max_policy_age is not None]
    batches = sum(spec.slots / spec.fragments_per_batch for spec in on_the_way)
    return AgeCheck(min(bounds, default=None), math.ceil(batches) if len(on_the_way) > 1 else 0)
