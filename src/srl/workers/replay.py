"""The replay worker: keeps fragments, and draws batches from them again and again.

*Consumes* fragments of the actors. *Waits for* fragments, and, while it owes too much, for a free
slot of the trainer's stream. *Unblocked by* actors and trainers. *Produces* fragments of windows,
each as wide as a minibatch.

For each environment step that it stores it owes the trainer a number of minibatches
(`batches_per_step`). It writes no more than it owes, and stores nothing new while it owes too much.
So the ratio of learning to acting holds in both directions, whichever side is slower.
"""

from __future__ import annotations

from srl.algorithms.off_policy import ReplayConfig
from srl.data.replay import Replay
from srl.settings import convert
from srl.streams.sample import SampleSink, SampleSource
from srl.streams.sample_memory import FragmentInfo
from srl.workers.wiring import Context
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
    ) -> None:
        """`share` is its part of everything that is stored and drawn."""
        self.name = name
        self._source, self._sinks, self._config = source, sinks, config
        stored, drawn = source.spec.trajectory, sinks[0].spec.trajectory
        self.replay = Replay(stored, drawn, int(config.capacity_steps * share), seed)
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
        (reads,) = context.worker.reads
        count = context.plan.samples[reads].parts
        return cls(
            context.name,
            context.sample_source(reads),
            [context.sample_sink(stream) for stream in context.worker.writes],
            convert(context.worker.settings, ReplayConfig, "replay"),
            share=1 / count,
            seed=context.seed,
        )

    def step(self) -> StepResult | Wait:
        """Draws a minibatch if it owes one, else stores a fragment."""
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
        for sink in self._sinks:
            sink.close()
