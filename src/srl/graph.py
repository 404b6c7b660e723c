"""The graph of an experiment: groups of workers, and the sample streams between them.

Nothing here imports torch, so that settings classes can change a graph.
"""

from __future__ import annotations

import dataclasses
import graphlib
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal

from srl.data.table import TableSpec
from srl.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class WorkerGroup:
    """Workers of one kind, with the same streams and policies."""

    kind: str
    """Import path of the worker class; its `build(context)` makes one."""
    count: int = 1
    max_count: int = 0
    """Workers that the plan has room for; 0 is `count`."""
    serves: tuple[str, ...] = ()
    """Policies whose inference requests it answers."""
    requests: tuple[str, ...] = ()
    """Policies that it sends inference requests to."""
    reads: tuple[str, ...] = ()
    """Sample streams it reads."""
    writes: tuple[str, ...] = ()
    """Sample streams it writes."""
    trains: tuple[str, ...] = ()
    """Policies whose weights it publishes."""
    follows: tuple[str, ...] = ()
    """Policies whose weights it reads."""
    loads: dict[str, str] = field(default_factory=dict)
    """Policies of other runs that it asks, which play nothing here: the name that each has here,
    and RUN or RUN@CHECKPOINT[:POLICY]. It follows them, too."""
    beside: str = ""
    """Group whose workers share a process with this group's workers of the same index."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Plain values for the worker's own use."""
    restarts: bool = True
    """Whether a killed worker is started again."""
    max_restarts: int = -1
    """How often it is started again within the window; -1 takes the experiment's limit."""
    threads: int = 1
    """Threads for numeric libraries in its process."""

    @property
    def capacity(self) -> int:
        """The most workers that a run may have."""
        return max(self.count, self.max_count)


@dataclass(frozen=True, kw_only=True)
class FragmentShape:
    """The fragments of a stream: their ticks, and what is stored in them."""

    length: int
    """Ticks of a fragment that a loss may see."""
    burn_in: int = 0
    """Ticks before them that warm up a policy's memory."""
    bootstrap: int = 1
    """Ticks behind `length` that targets look ahead into: n for returns of n steps."""
    state_every: int = 1
    """Policy state is stored at every tick that is a multiple of this."""
    cut: Literal["fixed", "episode"] = "fixed"
    """`fixed` cuts only at `length`, across episode ends; `episode` (one environment per group)
    also cuts at each episode end."""
    envs: int | None = None
    """Environments of a fragment; None: those of an actor's group."""
    row: dict[str, Any] = field(default_factory=dict)
    """`ArraySpec` by name for what a row has once in a fragment, like a key."""


@dataclass(frozen=True, kw_only=True)
class Guide:
    """Another policy that acts in a share of the episodes, drawn for each row as one begins."""

    policy: str
    """The policy that then acts, greedily. It has no memory."""
    share: float = 1.0
    """Its share of the episodes at the start, from which it falls to 0."""
    versions: int = 1
    """Versions of the guided policy until then."""

    def share_at(self, version: int) -> float:
        """Its share of the episodes that begin with this version."""
        return self.share * max(0.0, 1.0 - max(0, version) / self.versions)


@dataclass(frozen=True, kw_only=True)
class StreamNode:
    """A sample stream with the fragments of one policy."""

    policy: str
    delivery: Literal["any", "all", "key"] = "any"
    shape: FragmentShape | TableSpec | None = None
    """Its fragments, or tables of other values; None: fragments as the policy's algorithm declares
    them."""
    ratio: Fraction | int | None = 1
    """Fragments that its writers write for each fragment that they read. None: no fixed number; a
    bound on policy age is refused then. It means nothing where actors write."""
    fragments_per_batch: int | None = None
    """Fragments of a batch, for all trainers together. None: one from each group of each actor,
    times the ratios on the way."""
    split: Literal["trainers", "readers"] = "trainers"
    """What has a part of the stream for itself: each trainer of the policy, or each worker that
    reads the stream. Parts may be on different hosts; the readers of one part share a host."""
    bounds_age: bool = True
    """Whether writers wait for newer weights; only true for the stream that actors write."""

    @property
    def has_tables(self) -> bool:
        """Whether it carries tables, and no fragments. It may lead back, from trainers to what they
        read."""
        return isinstance(self.shape, TableSpec)


@dataclass(frozen=True, kw_only=True)
class Graph:
    """The worker groups and sample streams of an experiment, by name.

    A stream may be split into parts, one for each trainer or each reader. The plan has a copy of
    the stream for each part, and divides the workers at its ends among the parts.
    """

    workers: dict[str, WorkerGroup]
    streams: dict[str, StreamNode]

    def insert(
        self,
        name: str,
        group: WorkerGroup,
        *,
        into: str,
        split: Literal["trainers", "readers"] | None = None,
        **stream: Any,
    ) -> Graph:
        """Puts workers into the middle of a stream: its readers now read what the workers write.

        `split` is set in the stream that the workers read. `stream` is set in the stream that they
        write, like `ratio=2`; the rest of that stream is as the one before.
        """
        if into not in self.streams:
            raise ConfigError(f"graph: no stream {into!r}; there are {', '.join(self.streams)}.")
        if name in self.workers:
            raise ConfigError(
                f"graph: there are workers {name!r} already. Insert these by another name."
            )
        after, before = f"{into}/{name}", self.streams[into]
        workers = {
            key: dataclasses.replace(
                value, reads=tuple(after if stream == into else stream for stream in value.reads)
            )
            for key, value in self.workers.items()
        }
        workers[name] = dataclasses.replace(
            group, reads=(*group.reads, into), writes=(*group.writes, after)
        )
        written = dataclasses.replace(before, bounds_age=False, ratio=1, fragments_per_batch=None)
        streams = {
            **self.streams,
            into: dataclasses.replace(before, split=split or before.split),
            after: dataclasses.replace(written, **stream),
        }
        return Graph(workers=workers, streams=streams)

    def connect(
        self, stream: str, *, writer: str, reader: str, policy: str, table: TableSpec
    ) -> Graph:
        """Adds a stream of tables from one group of workers to another, with a part for each
        reader."""
        if stream in self.streams:
            raise ConfigError(f"graph: there is a stream {stream!r} already. Take another name.")
        workers = dict(self.workers)
        for name in (writer, reader):
            if name not in workers:
                raise ConfigError(
                    f"graph: no workers {name!r}; there are {', '.join(self.workers)}."
                )
        workers[writer] = dataclasses.replace(
            workers[writer], writes=(*workers[writer].writes, stream)
        )
        workers[reader] = dataclasses.replace(
            workers[reader], reads=(*workers[reader].reads, stream)
        )
        node = StreamNode(
            policy=policy, shape=table, split="readers", fragments_per_batch=1, bounds_age=False
        )
        return Graph(workers=workers, streams={**self.streams, stream: node})

    def guide(self, policy: str, guide: Guide) -> Graph:
        """Lets another policy act in a share of a policy's episodes: actors ask both, and those who
        answer the one also answer the other."""
        workers = {}
        for name, group in self.workers.items():
            changes: dict[str, Any] = {}
            if policy in group.requests and policy in group.writes:
                changes["requests"] = (*group.requests, guide.policy)
                guides = {**group.settings.get("guides", {}), policy: dataclasses.asdict(guide)}
                changes["settings"] = {**group.settings, "guides": guides}
            if policy in group.serves:
                changes["serves"] = (*group.serves, guide.policy)
                changes["follows"] = (*group.follows, guide.policy)
            workers[name] = dataclasses.replace(group, **changes)
        return Graph(workers=workers, streams=self.streams)

    def loaded(self) -> dict[str, tuple[str, str]]:
        """Policies of other runs by their name here: where each comes from, and the policy whose
        fragments it is asked about."""
        return {
            name: (source, self.streams[group.reads[0]].policy)
            for group in self.workers.values()
            for name, source in group.loads.items()
        }

    def trainer(self, policy: str) -> str:
        """The name of the workers that train a policy."""
        for name, group in self.workers.items():
            if policy in group.trains:
                return name
        raise ConfigError(f"graph: no workers train policy {policy!r}.")

    def supply(self, name: str, group: WorkerGroup, *, stream: str, **changes: Any) -> Graph:
        """Puts workers in place of those that write a stream, like a dataset in place of actors.

        Workers that have nothing left to write are removed, and then those that serve a policy
        which nobody requests. `changes` are made in the stream, like `fragments_per_batch=8`.
        """
        if stream not in self.streams:
            raise ConfigError(f"graph: no stream {stream!r}; there are {', '.join(self.streams)}.")
        policy = self.streams[stream].policy
        workers = {}
        for key, value in self.workers.items():
            if stream not in value.writes:
                workers[key] = value
            elif writes := tuple(other for other in value.writes if other != stream):
                follows = tuple(other for other in value.follows if other != policy)
                workers[key] = dataclasses.replace(value, writes=writes, follows=follows)
        requested = {policy for value in workers.values() for policy in value.requests}
        workers = {
            key: value
            for key, value in workers.items()
            if not value.serves or requested.intersection(value.serves)
        }
        if name in workers:
            raise ConfigError(
                f"graph: there are workers {name!r} already. Add these by another name."
            )
        workers[name] = dataclasses.replace(group, writes=(*group.writes, stream))
        node = dataclasses.replace(self.streams[stream], bounds_age=False, **changes)
        return Graph(workers=workers, streams={**self.streams, stream: node})

    def parts(self, stream: str) -> int:
        """How many parts a stream is split into."""
        node = self.streams[stream]
        if node.split == "readers":
            return sum(group.count for group in self.workers.values() if stream in group.reads)
        return next((g.count for g in self.workers.values() if node.policy in g.trains), 1)

    def upstream(self, stream: str) -> list[str]:
        """The streams with the fragments that the writers of a stream read."""
        if self.streams[stream].has_tables:
            return []
        found = [
            name
            for group in self.workers.values()
            if stream in group.writes
            for name in group.reads
            if self.streams[name].policy == self.streams[stream].policy
            and not self.streams[name].has_tables
        ]
        return list(dict.fromkeys(found))

    def fragments_per_batch(self, stream: str, agent_batches: int) -> Fraction:
        """Fragments of a stream that make one batch, where one from each of so many agent batches
        of actors do so."""
        node = self.streams[stream]
        if node.fragments_per_batch is not None:
            return Fraction(node.fragments_per_batch)
        upstream = self.upstream(stream)
        if not upstream:
            return Fraction(agent_batches)
        read = sum((self.fragments_per_batch(n, agent_batches) for n in upstream), Fraction(0))
        return read if node.ratio is None else read * node.ratio


def check_graph(graph: Graph) -> None:
    """Raises if the graph cannot work, before anything starts."""
    for name, group in graph.workers.items():
        for stream in (*group.reads, *group.writes):
            if stream not in graph.streams:
                raise ConfigError(f"graph: {name!r} uses stream {stream!r}, which is not declared.")
        if group.count < 1:
            raise ConfigError(f"graph: {name!r} expects at least 1 worker, got {group.count}.")
        _check_beside(graph, name, group)
        written = [graph.streams[stream].policy for stream in group.writes]
        twice = [policy for policy in group.requests if written.count(policy) > 1]
        if twice:
            raise ConfigError(
                f"graph: {name!r} plays policy {twice[0]!r} and expects one stream for its "
                f"fragments, got several of {', '.join(group.writes)}. Let several groups read one "
                'stream instead (delivery="all").'
            )
    for stream, node in graph.streams.items():
        writers = [n for n, g in graph.workers.items() if stream in g.writes]
        readers = [n for n, g in graph.workers.items() if stream in g.reads]
        if not readers:
            raise ConfigError(
                f"graph: stream {stream!r} is written but never read. Let a worker group read it."
            )
        if not writers:
            raise ConfigError(
                f"graph: stream {stream!r} is read but never written. Let a worker group write it."
            )
        if node.ratio is not None and node.ratio <= 0:
            raise ConfigError(
                f"graph: stream {stream!r}: expected a ratio above 0, or None where it is not "
                f"fixed, got {node.ratio}."
            )
        if node.fragments_per_batch is not None and node.fragments_per_batch < 1:
            raise ConfigError(
                f"graph: stream {stream!r}: expected fragments_per_batch of at least 1, got "
                f"{node.fragments_per_batch}."
            )
    _check_order(graph)
    _check_policies(graph)


def _check_beside(graph: Graph, name: str, group: WorkerGroup) -> None:
    """Raises unless each worker of a group has a worker in whose process it can be."""
    if not group.beside:
        return
    other = graph.workers.get(group.beside)
    if other is None:
        raise ConfigError(f"graph: {name!r} is beside {group.beside!r}, which does not exist.")
    if other.beside:
        raise ConfigError(
            f"graph: {name!r} is beside {group.beside!r}, which is beside {other.beside!r} itself. "
            "Name that group instead."
        )
    if group.capacity > other.capacity:
        raise ConfigError(
            f"graph: {name!r} expects at most as many workers as {group.beside!r} has, because "
            f"each is in the process of one of them, got {group.capacity} and {other.capacity}."
        )


def _check_order(graph: Graph) -> None:
    """Raises if fragments could go in circles, or if a number of fragments is declared twice."""
    try:
        graphlib.TopologicalSorter({name: graph.upstream(name) for name in graph.streams}).prepare()
    except graphlib.CycleError as error:
        circle = " -> ".join(reversed(error.args[1]))
        raise ConfigError(
            f"graph: expected streams that lead from actors to trainers, got a circle: {circle}. "
            "Let a worker on it write another stream."
        ) from None
    for stream, node in graph.streams.items():
        if graph.upstream(stream) and node.ratio is not None and node.fragments_per_batch:
            raise ConfigError(
                f"graph: stream {stream!r}: expected ratio=None, because fragments_per_batch is "
                f"{node.fragments_per_batch}, got ratio {node.ratio}. Declare one of the two."
            )


def _check_policies(graph: Graph) -> None:
    for verb, answer, problem in (
        ("requests", "serves", "requests its actions, but no worker group serves it"),
        ("trains", "trains", ""),
    ):
        for name, group in graph.workers.items():
            for policy in getattr(group, verb):
                others = [n for n, g in graph.workers.items() if policy in getattr(g, answer)]
                if not others:
                    raise ConfigError(f"graph: policy {policy!r}: {name!r} {problem}.")
                if verb == "trains" and len(others) > 1:
                    raise ConfigError(
                        f"graph: policy {policy!r}: expected one worker group that trains it, got "
                        f"{', '.join(others)}."
                    )
