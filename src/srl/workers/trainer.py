"""The trainer: fills batches, lets the algorithm make newer weights of them, and publishes those.

*Consumes* fragments of a sample stream of its own. *Waits for* fragments, and for the other
trainers of its policy, if there are any. *Unblocked by* actors (or a worker in between). *Produces*
snapshots for the parameter service, one version for each learner step.

Between minibatches it looks at stop and fills the next batch. An unfinished learner step can be
undone, because the algorithm keeps aside what it was like before it.

Trainers form a group when they start and whenever one of them has died: all take what the one that
is furthest has learned, or else the checkpoint, and go on counting above the newest version that
was published. One trainer alone is a group too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np

from srl.algorithms.protocol import Algorithm
from srl.algorithms.ranks import GroupBroken
from srl.data.batching import BatchBuilder
from srl.data.codec import dump_state, parse_state
from srl.data.records import SampleBatch, Snapshot, TrainResult
from srl.data.tree import Tree
from srl.errors import LearnError
from srl.services.messages import Note, Update
from srl.services.metrics_client import MetricsClient
from srl.services.parameters import ParameterReader, ParameterWriter
from srl.services.trainers import BatchNumbers, Standing
from srl.streams.sample import SampleSource
from srl.streams.sample_books import tell_upstream
from srl.workers.trainer_group import TrainerGroup
from srl.workers.wiring import Context, load_weights
from srl.workers.worker import DONE, GIVEN_UP, MADE, Progress, Wait, Worker


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
        """Tells the streams on the way to its own which version the next batch is for."""
        spec = source.spec
        self._filling = BatchBuilder(spec.trajectory, spec.items_per_batch)
        self._training = BatchBuilder(spec.trajectory, spec.items_per_batch)
        self._holds = False
        """Whether it has what this run has learned, or only what it started with."""
        self._wait = Wait("samples", source.look_seconds)
        self._wait_others = Wait("workers")

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
            and (plan.carrier == "inline") == (own.carrier == "inline")
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
            upstream=partial(tell_upstream, own.spec, upstream, context.shared),
        )

    def step(self) -> Progress | Wait:
        """Meets the other trainers, does one learner step, or takes what has arrived."""
        if not self._group.formed:
            return self._meet()
        if self._group.broken or self._newest.newest_elsewhere > self.version:
            self._group.give_up()
            return MADE
        got = self._fill()
        if self._filling.full and not self._training.full:
            self._filling, self._training = self._training, self._filling
        if self._training.full:
            whole = self._group.ready(self.version, self._numbers)
            if whole is not None:
                return MADE if self._learn(whole) else GIVEN_UP
        if got:
            return MADE
        # (With a batch in hand it waits for the others, who may have theirs.)
        ends = self._source.closed and not self._training.full
        self._group.leave(ends)
        if ends or self._group.over:
            return DONE
        return self._wait_others if self._training.full else self._wait

    # -- the group ---------------------------------------------------------------------------------

    def _meet(self) -> Progress | Wait:
        """Forms a group once all its members are there, and the stream that they read."""
        if not self._source.here:
            return self._wait
        rest = self._group.rest_seconds
        if rest > 0:
            return Wait("workers", rest)
        # What a trainer before this one has consumed counts, though what it learned may be lost.
        self.env_steps = max(self.env_steps, self.row.get("count_env_steps"))
        self.agent_steps = max(self.agent_steps, self.row.get("count_agent_steps"))
        standing = Standing(
            holds=self.version if self._holds else -1,
            due=self._source.due,
            published=self._published(),
            env_steps=self.env_steps,
            agent_steps=self.agent_steps,
        )
        if not self._group.meet(standing):
            return self._wait_others
        try:
            self._group.connect(self.row.beat, self.stopping)
            self._take_up()
        except GroupBroken as broken:
            self._give_up(broken)
            return self._wait_others
        return MADE

    def _give_up(self, broken: GroupBroken) -> None:
        """Ends the group; says why, if that goes on: once is a death, which is told elsewhere."""
        self._group.give_up()
        failures = self._group.failures
        if failures > 1 and failures.bit_count() == 1:
            text = f"{failures} groups of trainers have ended without an update: {broken}"
            self._metrics.send(Note(self.name, "warning", text))

    def _take_up(self) -> None:
        """Takes what the furthest member has learned, and the number to go on with.

        Every number is as that member sees it: meanwhile others may already count on.
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
        self._algorithm.join(self._group.ranks)
        self._number(state["published"])
        if self._source.due < state["due"]:
            self._skip_batch()
        self._source.expect(self.version)
        if state["published"] >= 0:
            self._upstream(self.version)
        self._holds = self._group.formed = True
        if self._group.rank == 0 and self._newest.version != self.version:
            self._publish()
        self._show_counters()

    def _published(self) -> int:
        """The newest version that was published, on whatever host its trainer was; -1 if none."""
        told = self.row.get("count_policy_version") or -1
        return max(self._newest.version, self._newest.newest_elsewhere, told)

    def _number(self, published: int) -> None:
        """Goes on above what readers have seen, if what made it is lost."""
        lost = published - self.version
        if lost <= 0:
            return
        self.version = published + 1
        if self._group.rank == 0:
            self.row.add("count_lost_updates", lost)
            text = f"{lost} updates were lost with a trainer; going on as version {self.version}"
            self._metrics.send(Note(self.name, "warning", text))

    def _skip_batch(self) -> None:
        """Gives up its part of a batch that others are done with: the update that it died in, or
        left when somebody died. There is no other, because every update needs everyone."""
        builder = self._training if self._training.item_ids else self._filling
        self._source.skip_batch(len(builder.item_ids))
        builder.clear()

    # -- learning ----------------------------------------------------------------------------------

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

    def _learn(self, whole: BatchNumbers) -> bool:
        """One learner step; False if it was given up between minibatches, because the run stops."""
        start = time.perf_counter_ns()
        self._algorithm.remember()
        progress = min(1.0, self.env_steps / self._total_steps) if self._total_steps else 0.0
        batch = self._training.batch()
        batch.learner_version = self.version
        try:
            for result in self._algorithm.update(batch, progress):
                if result is not None:
                    self._finish(result, whole, (time.perf_counter_ns() - start) / 1e9)
                    return True
                self.row.add("count_minibatches", 1)
                if self._group.giving_up(self.stopping()):
                    break
                self._fill()
                self.row.beat()
        except LearnError as error:
            self._algorithm.undo()
            raise LearnError(f"{error} (policy {self.policy_name!r} in {self.name})") from error
        except GroupBroken as broken:
            self._algorithm.undo()
            self._give_up(broken)
            return not self.stopping()
        # The batch stays, to be trained on if the run goes on.
        self._algorithm.undo()
        return False

    def _finish(self, result: TrainResult, whole: BatchNumbers, seconds: float) -> None:
        self.version += 1
        self.env_steps += whole.env_steps
        self.agent_steps += whole.agent_steps
        count = len(self._training.item_ids)
        self._training.clear()
        self._source.acknowledge(count)
        if self._group.rank == 0:
            self._publish()
        self.row.add("count_updates", 1)
        self._show_counters()
        if self._group.rank == 0:
            self._metrics.send(
                Update(
                    worker=self.name,
                    policy=self.policy_name,
                    policy_version=self.version,
                    env_steps=self.env_steps,
                    agent_steps=self.agent_steps,
                    policy_age_mean=whole.age_sum / max(1, whole.age_count),
                    policy_age_max=float(whole.age_max),
                    seconds=seconds,
                    metrics=result.metrics,
                )
            )

    def _numbers(self) -> BatchNumbers:
        """What the batch in hand is like."""
        batch: SampleBatch = self._training.batch()
        used = slice(batch.burn_in, -1)
        versions = batch.data.policy_version[used][batch.data.acted[used]]
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
            self.row.set(f"count_{name}", value)

    # -- state -------------------------------------------------------------------------------------

    @property
    def settled(self) -> bool:
        """Not before it has met the others: a trainer that was started again may be far behind."""
        return self._holds

    def weights(self) -> dict[str, dict[str, np.ndarray]]:
        """The policy's parameters and buffers, as arrays, from the first trainer of the group."""
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
        """Learner and counters, from the first trainer of the group; in an exact checkpoint also
        the batches that are full or filling."""
        if self._group.rank:
            return None
        return {
            "version": self.version,
            **self._steps(),
            "learner": self._learner_state(),
            "filling": self._filling.state() if exact else None,
            "training": self._training.state() if exact else None,
        }

    def restore(self, state: Tree, exact: bool) -> None:
        """Goes on from `state`."""
        self.version = state["version"]
        self.env_steps, self.agent_steps = state["env_steps"], state["agent_steps"]
        self._load_learner(state["learner"])
        if exact:
            self._filling.restore(state["filling"])
            self._training.restore(state["training"])
            self._holds = self._group.formed = True
            self._show_counters()

    def close(self) -> None:
        """Leaves the stream."""
        self._source.close()
