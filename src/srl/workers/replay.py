"""The replay worker: keeps fragments, and draws batches from them again and again.

*Consumes* fragments of the actors, and priorities of the trainers. *Waits for* fragments, and,
while it owes too much, for a free slot of the trainer's stream. *Unblocked by* actors and trainers.
*Produces* fragments of windows, each as wide as a minibatch.

For each environment step that it stores it owes the trainer a number of minibatches
(`batches_per_step`). It writes no more than it owes, and stores nothing new while it owes too much.
So the ratio of learning to acting holds in both directions, whichever side is slower.

What it keeps is in checkpoints, as `checkpoint.replay` says. Without it, a worker that is started
again has lost its share, which is counted, and fills it anew.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from srl.algorithms.off_policy_config import ReplayConfig
from srl.data.replay import Replay, key_base
from srl.data.replay_columns import replay_bytes, replay_capacity
from srl.data.samplers import sampler_maker
from srl.data.trajectory import TrajectorySpec
from srl.data.tree import Tree
from srl.errors import ConfigError
from srl.plan import SamplePlan, WorkerPlan
from srl.services.checkpoints import CheckpointConfig, CheckpointPart
from srl.services.messages import Note
from srl.services.metrics_client import MetricsClient
from srl.services.segments import SegmentFolder
from srl.settings import convert
from srl.streams.sample import SampleSink, SampleSource
from srl.streams.sample_queue import FragmentInfo
from srl.workers.replay_segments import ReplaySegments
from srl.workers.wiring import Context
from srl.workers.worker import DONE, PROGRESS, StepResult, Wait, Worker


class ReplayWorker(Worker):
    """Keeps what it reads from one stream, and writes draws of it to another."""

    in_every_checkpoint = True

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
        shard: int = 0,
        incarnation: int = 0,
        folder: SegmentFolder | None = None,
        metrics: MetricsClient | None = None,
    ) -> None:
        """`share` is its part of everything that is stored and drawn. `feedback` has the
        priorities that trainers give to keys, which name the `shard`: its number. What it keeps is
        saved in `folder`."""
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
        capacity = _capacity_steps(config, stored, share)
        self.replay = Replay(stored, drawn, capacity, sampler)
        self._segments = ReplaySegments(self.replay, folder)
        self._saves = folder is not None
        self._metrics = metrics
        self._shard, self._incarnation = shard, incarnation
        self._begin_session(incarnation)
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
        self._is_new = True
        self._waits = {what: Wait(what) for what in ("samples", "ratio")}

    @classmethod
    def build(cls, context: Context) -> ReplayWorker:
        """A replay worker from its part of the plan."""
        checkpoint = context.settings("checkpoint", CheckpointConfig)
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
            shard=context.worker.index,
            incarnation=context.incarnation,
            folder=context.segment_folder() if cls.is_saved(checkpoint) else None,
            metrics=context.metrics,
        )

    @classmethod
    def is_saved(cls, config: CheckpointConfig) -> bool:
        """As `checkpoint.replay` says."""
        return config.replay != "never"

    def _begin_session(self, number: int) -> None:
        """Tells apart what is stored and drawn from now on, by a number that no other life of this
        worker has: no fragment continues one from before, and no priority is for one."""
        self._session = number
        self.replay.session, self.replay.key_base = number, key_base(self._shard, number)

    @classmethod
    def memory_bytes(cls, worker: WorkerPlan, samples: Mapping[str, SamplePlan]) -> int:
        """The bytes of a full replay."""
        config = convert(worker.settings, ReplayConfig, "replay")
        reads = next(samples[name] for name in worker.reads if not samples[name].has_tables)
        stored, drawn = reads.spec.trajectory, samples[worker.writes[0]].spec.trajectory
        steps = _capacity_steps(config, stored, 1 / reads.parts)
        return replay_bytes(stored, replay_capacity(stored, drawn, steps, reads.at_once))

    def step(self) -> StepResult | Wait:
        """Draws a minibatch if it owes one, else stores a fragment."""
        if self._is_new:
            self._count_lost()
        self._read_feedback()
        if self._owed >= 1.0 and self.replay.can_draw:
            if self._draw():
                return PROGRESS
            if all(sink.closed for sink in self._sinks):
                return DONE
            if self._owed >= self._max_owed:
                return self._waits["ratio"]
        return PROGRESS if self._insert() else self._idle()

    def _count_lost(self) -> None:
        """Counts what an earlier incarnation had stored, and this one has not."""
        self._is_new = False
        lost = self.stats.get("count_stored") - self.replay.stored_steps
        self.stats.set("count_stored", self.replay.stored_steps)
        if lost <= 0:
            return
        self.stats.add("count_lost", lost)
        if self._metrics is not None:
            text = f"{lost:,} environment steps of the replay were lost; its share is filled anew"
            self._metrics.send(Note(self.name, "warning", text))

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
        self._segments.follow()
        return True

    @property
    def restorable(self) -> bool:
        """Whether its fragments are saved."""
        return self._saves

    def state(self, exact: bool) -> Tree:
        """All but the fragments, which are in segments."""
        if not self._saves:
            return None
        return {
            "layout": self._segments.layout,
            "session": self._session,
            "replay": self.replay.state(),
            "owed": self._owed,
            "num_inserted": self._num_inserted,
            "num_reported": self._num_reported,
            "next": self._next,
        }

    def restore(self, state: Tree, exact: bool) -> None:
        """Continues from `state`, with the fragments of the segments. Without them it begins
        empty."""
        if state["layout"] != self._segments.layout:
            if self._metrics is not None:
                text = "what it kept does not fit these settings; its share is filled anew"
                self._metrics.send(Note(self.name, "warning", text))
            return
        if not self._segments.restore(state["replay"]):
            return
        self._owed, self._next = state["owed"], state["next"]
        self._num_inserted, self._num_reported = state["num_inserted"], state["num_reported"]
        session = state["session"]
        # An incarnation may begin with the same checkpoint as the one before.
        self._begin_session(session if exact else session + 1 + self._incarnation)

    def save_segments(self, folder: Path) -> None:
        """Puts its fragments into an unfinished checkpoint."""
        self._segments.save(folder)

    def load_segments(self, folder: Path, parts: Sequence[CheckpointPart]) -> None:
        """Finds its fragments in a checkpoint."""
        self._segments.find(folder, parts)

    def close(self) -> None:
        """Closes its ends of the streams."""
        self._segments.close()
        self._source.close()
        if self._feedback is not None:
            self._feedback.close()
        for sink in self._sinks:
            sink.close()


def _capacity_steps(config: ReplayConfig, stored: TrajectorySpec, share: float) -> int:
    """Environment steps that a worker with this share keeps: as many as the limits of steps and of
    bytes allow."""
    steps = int(config.capacity_steps * share)
    if not config.capacity_bytes:
        return steps
    fragment, size = stored.length * stored.envs, replay_bytes(stored, 1)
    kept = min(steps, int(config.capacity_bytes * share) // size * fragment)
    if kept < config.warmup_steps * share:
        least = math.ceil(math.ceil(config.warmup_steps * share / fragment) * size / share)
        raise ConfigError(
            f"algorithm.buffer_bytes: expected at least {least:,}, "
            f"so that the replay can hold the {config.warmup_steps} environment steps "
            f"(algorithm.learning_starts) with which learning begins, got "
            f"{config.capacity_bytes:,}."
        )
    return kept
