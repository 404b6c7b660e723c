"""The replay worker: keeps fragments, and draws batches from them again and again.

*Consumes* fragments of the actors, and priorities of the trainers. *Waits for* fragments, and,
while it owes too much, for a free slot of the trainer's stream. *Unblocked by* actors and trainers.
*Produces* fragments of windows, each as wide as a minibatch.

For each environment step that it stores it owes the trainer a number of minibatches
(`batches_per_step`). It writes no more than it owes, and stores nothing new while it owes too much.
So the ratio of learning to acting holds in both directions, whichever side is slower.
"""

from __future__ import annotations

from collections.abc import Mapping

from srl.algorithms.off_policy import ReplayConfig
from srl.data.replay import Replay, key_base, replay_bytes, replay_capacity
from srl.data.samplers import sampler_maker
from srl.settings import convert
from srl.streams.sample import SampleSink, SampleSource
from srl.streams.sample_queue import FragmentInfo
from srl.workers.wiring import Context, SamplePlan, WorkerPlan
from srl.workers.worker import DONE, MADE, StepResult, Wait, Worker


class ReplayWorker(Worker):
    """Keeps what it reads from one stream, and writes draws of it to another."""

    restorable = False

    def __init__(
        self,
        name: str,
        source: SampleSource,
        sinks: list[SampleSink],
        config: ReplayConfig,
        *,
        share: float,
        seed: int,
        feedback: SampleSource | None = None,
        key_base: int = 0,
    ) -> None:
        """`share` is its part of everything that is stored and drawn. `feedback` has the
        priorities that trainers give to keys, which begin with `key_base`."""
        self.name = name
        self._source, self._sinks, self._config = source, sinks, config
        self._feedback = feedback
        stored, drawn = source.spec.trajectory, sinks[0].spec.trajectory
        sampler = sampler_maker(
            config.sampler,
            seed=seed,
            exponent=config.priority_exponent,
            length=drawn.length,
            uses=config.max_uses,
        )
        capacity = int(config.capacity_steps * share)
        self.replay = Replay(stored, drawn, capacity, sampler, key_base=key_base)
        self._warmup_steps = config.warmup_steps * share
        per_fragment = config.batches_per_step * stored.length * stored.envs
        self._max_owed = config.max_batches_owed * share or max(
            per_fragment, 2.0 * sinks[0].spec.fragments_per_batch
        )
        self._owed = 0.0
        """Minibatches that it may draw for what it has stored."""
        self._num_inserted = self._num_reported = 0
        """Environment steps stored so far, and those that its commits have reported."""
        self._next = 0
        self._waits = {what: Wait(what) for what in ("samples", "ratio")}

    @classmethod
    def build(cls, context: Context) -> ReplayWorker:
        """A replay worker from its part of the plan."""
        streams = {name: context.plan.samples[name] for name in context.worker.reads}
        (fragments,) = (name for name, stream in streams.items() if not stream.has_tables)
        tables = [name for name, stream in streams.items() if stream.has_tables]
        return cls(
            context.name,
            context.sample_source(fragments),
            [context.sample_sink(stream) for stream in context.worker.writes],
            convert(context.worker.settings, ReplayConfig, "replay"),
            share=1 / streams[fragments].parts,
            seed=context.seed,
            feedback=context.sample_source(tables[0]) if tables else None,
            key_base=key_base(context.worker.index, context.incarnation),
        )

    @classmethod
    def memory_bytes(cls, worker: WorkerPlan, samples: Mapping[str, SamplePlan]) -> int:
        """The bytes of a full replay."""
        config = convert(worker.settings, ReplayConfig, "replay")
        reads = next(samples[name] for name in worker.reads if not samples[name].has_tables)
        stored, drawn = reads.spec.trajectory, samples[worker.writes[0]].spec.trajectory
        steps = int(config.capacity_steps / reads.parts)
        return replay_bytes(stored, replay_capacity(stored, drawn, steps, reads.at_once))

    def step(self) -> StepResult | Wait:
        """Draws a minibatch if it owes one, else stores a fragment."""
        self._read_feedback()
        if self._owed >= 1.0 and self.replay.can_draw:
            if self._draw():
                return MADE
            if all(sink.closed for sink in self._sinks):
                return DONE
            if self._owed >= self._max_owed:
                return self._waits["ratio"]
        return MADE if self._insert() else self._idle()

    def _idle(self) -> StepResult | Wait:
        if self._source.closed or all(sink.closed for sink in self._sinks):
            return DONE
        return self._waits["samples"]

    def _draw(self) -> bool:
        """Writes a minibatch to the next trainer whose stream has a free slot."""
        for _ in self._sinks:
            sink = self._sinks[self._next]
            self._next = (self._next + 1) % len(self._sinks)
            slot = sink.claim(newest_version=0)
            if slot is None:
                continue
            self.replay.draw(slot.trajectory)
            new = self._num_inserted - self._num_reported
            self._num_reported = self._num_inserted
            length = self.replay.drawn.capacity
            slot.commit(FragmentInfo(length=length, env_steps=new))
            self._owed -= 1.0
            self.stats.add("count_sampled", self.replay.drawn.envs)
            return True
        return False

    def _read_feedback(self) -> None:
        """Takes over the priorities that trainers have sent."""
        while self._feedback is not None and (item := self._feedback.take()) is not None:
            length = item.info.length
            keys, priorities = item.table["key"][:length], item.table["priority"][:length]
            fresh = self.replay.feed(keys, priorities)
            self.stats.add("count_reprioritized", fresh)
            item.release()
            self._feedback.acknowledge(1)

    def _insert(self) -> bool:
        """Stores the next fragment that is ready."""
        item = self._source.take()
        if item is None:
            return False
        info = item.info
        self.replay.insert(item.trajectory, info.length, info.origin, info.sequence)
        item.release()
        self._source.acknowledge(1)
        before, self._num_inserted = self._num_inserted, self._num_inserted + info.env_steps
        counted = self._num_inserted - max(self._warmup_steps, before)
        self._owed += self._config.batches_per_step * max(0.0, counted)
        self.stats.add("count_inserted", info.env_steps)
        self.stats.set("count_stored", self.replay.stored_steps)
        return True

    def close(self) -> None:
        """Closes its ends of the streams."""
        self._source.close()
        if self._feedback is not None:
            self._feedback.close()
        for sink in self._sinks:
            sink.close()
