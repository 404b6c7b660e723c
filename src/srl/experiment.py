"""What to run: settings, and the graph of worker groups and streams that they describe."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from srl.envs.protocol import EnvConfig
from srl.errors import ConfigError
from srl.resolve import resolve
from srl.resources import RayConfig, ResourcesConfig, SlurmConfig
from srl.services.checkpoints import CheckpointConfig
from srl.services.metrics import LoggingConfig
from srl.workers.actor import ActorConfig
from srl.workers.configs import EvaluatorConfig, InferenceConfig, TrainerConfig

Layout = Literal["auto", "serial", "inline", "shared", "remote"]
Launcher = Literal["processes", "ray", "slurm", "manual"]


@dataclass(frozen=True, kw_only=True)
class SampleConfig:
    """The sample streams."""

    slots: int = 0
    """Fragments that a sample stream holds, all trainers' together; 0 is twice what the groups
    write at once."""
    patience_seconds: float = 1.0
    """A fragment that takes four times as long as its writer's usually do, and longer than this, is
    not waited for where policy age is bounded; 0 waits until its writer's death is certain."""

    def __post_init__(self) -> None:
        for name in ("slots", "patience_seconds"):
            if getattr(self, name) < 0:
                raise ConfigError(f"sample.{name}: expected at least 0, got {getattr(self, name)}.")


@dataclass(frozen=True, kw_only=True)
class PolicyConfig:
    """One policy of an experiment: which agents it controls, and where its weights come from."""

    agents: tuple[str, ...] = ("*",)
    """Name patterns of the agents it controls; an agent goes to the first policy that matches."""
    mode: Literal["train", "frozen", "random"] = "train"
    """`train` has a trainer of its own, `frozen` plays fixed weights, `random` plays at random."""
    source: str = ""
    """RUN or RUN@CHECKPOINT whose weights it starts with (needed for `frozen`)."""
    source_policy: str = ""
    """The policy's name in that run; empty takes its own name, or the only one there."""
    network: dict[str, Any] = field(default_factory=dict)
    """Settings that differ from the experiment's `network`."""
    algorithm: dict[str, Any] = field(default_factory=dict)
    """Settings that differ from the experiment's `algorithm`."""

    def __post_init__(self) -> None:
        if self.mode == "frozen" and not self.source:
            raise ConfigError(
                "policies: a frozen policy expects a source (RUN or RUN@best), got none."
            )


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Everything that decides what a run does. `config.yaml` is this, resolved."""

    env: EnvConfig
    name: str = ""
    """What the run is called; empty is the environment's name."""
    algorithm: dict[str, Any] = field(default_factory=lambda: {"name": "ppo"})
    """`name` (or import path) of the algorithm, and its settings."""
    network: dict[str, Any] = field(default_factory=lambda: {"name": "actor_critic"})
    """`name` (or import path) of the policy class, and its settings."""
    policies: dict[str, PolicyConfig] = field(default_factory=lambda: {"default": PolicyConfig()})
    """The policies, by name."""
    actor: ActorConfig = field(default_factory=ActorConfig)
    inference: InferenceConfig = field(default_factory=InferenceConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    evaluator: EvaluatorConfig = field(default_factory=EvaluatorConfig)
    sample: SampleConfig = field(default_factory=SampleConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    logging: LoggingConfig = field(default_factory=LoggingConfig)
    resources: ResourcesConfig = field(default_factory=ResourcesConfig)
    ray: RayConfig = field(default_factory=RayConfig)
    slurm: SlurmConfig = field(default_factory=SlurmConfig)
    layout: Layout = "auto"
    """`serial` (one thread), `inline` (a policy in each actor), `shared` (policy workers), `remote`
    (policy workers, spread over `hosts`), `auto`."""
    hosts: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Other hosts by name, each with the groups of workers that it may hold, like
    `{a: [actor], b: [actor, policy]}`. What no host names runs at home. Empty with layout `remote`:
    actors on one host and policy workers on another."""
    launcher: Launcher = "processes"
    """Who starts the agents of other hosts: `processes` (on this machine), `ray`, `slurm`, or
    `manual` (a person, by `srl worker`)."""
    listen: str = ""
    """This machine's address for other hosts, with or without a port (10.0.0.1:5555). Empty is what
    the launcher needs: loopback for `processes`."""
    gate_port: int = 0
    """Port of this machine's gate, through which everything goes between it and other hosts; 0 is
    any that is free. Other hosts have theirs from `srl worker --bind`."""
    pack_pixels: bool = False
    """Packs pixels (lz4) on their way between hosts: for networks slower than a core packs."""
    host_silence_seconds: float = 20.0
    """A host that was not heard of for so long is given up; its workers are started elsewhere."""
    steps: int = 0
    """Environment steps to train on; schedules run over them. 0 trains until another limit."""
    seconds: float = 0.0
    """Seconds to train for; 0 has no limit."""
    until: str = ""
    """A condition that ends the run, like `return>=475`."""
    seed: int = 1
    """What all randomness starts from."""
    max_restarts: int = 3
    """How often a worker that was killed is started again within `restart_window_seconds`. Kinds
    of workers may have limits of their own (`actor.max_restarts`, ...)."""
    restart_window_seconds: float = 600.0
    """Restarts before this do not count any more."""
    silence_seconds: float = 60.0
    """A worker process whose loop stands still for so long is killed and started again."""
    dataflow: str = ""
    """Import path of a function that changes the graph of workers and streams."""

    def __post_init__(self) -> None:
        for name in ("steps", "seconds", "max_restarts", "seed"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name}: expected at least 0, got {getattr(self, name)}.")
        for name in ("silence_seconds", "host_silence_seconds", "restart_window_seconds"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name}: expected more than 0, got {getattr(self, name)}.")
        if not 0 <= self.gate_port < 65536:
            raise ConfigError(f"gate_port: expected a port, or 0, got {self.gate_port}.")
        if not self.policies:
            raise ConfigError("policies: expected at least one, got none.")
        for part in ("algorithm", "network"):
            if "name" not in getattr(self, part):
                raise ConfigError(f"{part}.name: expected a name or an import path, got none.")


ALGORITHM_FREE = frozenset(
    {
        *("name", "steps", "seconds", "until", "layout", "inference", "evaluator"),
        *("checkpoint", "logging", "sample", "max_restarts", "silence_seconds"),
        *("hosts", "launcher", "listen", "host_silence_seconds", "restart_window_seconds"),
        *("actor.max_count", "actor.max_restarts", "env.max_failures", "env.failure_steps"),
        *("trainer", "actor.count", "actor.groups", "actor.keep_core", "env.threads"),
        *("env.step_timeout_seconds", "env.reset_timeout_seconds", "resources", "ray", "slurm"),
        *("pack_pixels", "gate_port"),
    }
)
"""Settings that may change when a run is resumed, because they do not alter what is learned."""


# -- the graph ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class WorkerGroup:
    """Workers of one kind that share their wiring."""

    kind: str
    """Import path of the worker class; its `build(context)` makes one."""
    count: int = 1
    max_count: int = 0
    """Workers that the plan has room for; 0 is `count`."""
    serves: tuple[str, ...] = ()
    """Policies whose inference it answers."""
    asks: tuple[str, ...] = ()
    """Policies whose inference it asks."""
    reads: tuple[str, ...] = ()
    """Sample streams it reads."""
    writes: tuple[str, ...] = ()
    """Sample streams it writes."""
    trains: tuple[str, ...] = ()
    """Policies whose weights it publishes."""
    follows: tuple[str, ...] = ()
    """Policies whose weights it reads."""
    beside: str = ""
    """Group whose workers share their process with this one's, index by index."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Plain values for the worker's own use."""
    restarts: bool = True
    """Whether a killed worker is started again."""
    max_restarts: int = -1
    """How often, within the window; -1 is as the experiment has it."""
    threads: int = 1
    """Threads for numeric libraries in its process."""

    @property
    def capacity(self) -> int:
        """Workers that there may be while a run goes on."""
        return max(self.count, self.max_count)


@dataclass(frozen=True, kw_only=True)
class StreamNode:
    """A sample stream of one policy's fragments."""

    policy: str
    delivery: Literal["any", "all", "key"] = "any"
    bounds_age: bool = True
    """Whether writers wait for newer weights; only where data begins."""


@dataclass(frozen=True, kw_only=True)
class Graph:
    """The topology on one page: worker groups and sample streams, by name.

    Where a policy has several trainers, each has streams of its own: every stream of the policy is
    as many in the plan, and workers on the way are divided among them.
    """

    workers: dict[str, WorkerGroup]
    streams: dict[str, StreamNode]

    def insert(self, name: str, group: WorkerGroup, *, into: str) -> Graph:
        """Puts workers in the middle of a stream: its old readers read what they write."""
        if into not in self.streams:
            raise ConfigError(f"graph: no stream {into!r}; there are {', '.join(self.streams)}.")
        after = f"{into}/{name}"
        workers = {
            key: dataclasses.replace(
                value, reads=tuple(after if stream == into else stream for stream in value.reads)
            )
            for key, value in self.workers.items()
        }
        workers[name] = dataclasses.replace(
            group, reads=(*group.reads, into), writes=(*group.writes, after)
        )
        node = dataclasses.replace(self.streams[into], bounds_age=False)
        return Graph(workers=workers, streams={**self.streams, after: node})

    def parts(self, stream: str) -> int:
        """How many streams a stream is in the plan: one for each trainer of its policy."""
        policy = self.streams[stream].policy
        return next((g.count for g in self.workers.values() if policy in g.trains), 1)


def assign_agents(
    policies: Mapping[str, PolicyConfig], agents: list[str], *, idle: bool = False
) -> dict[str, tuple[str, ...]]:
    """Each policy's agents, by the first pattern that matches; `idle` leaves policies without any
    out, which is an error otherwise."""
    assigned: dict[str, list[str]] = {name: [] for name in policies}
    for agent in agents:
        for name, policy in policies.items():
            if any(fnmatch.fnmatchcase(agent, pattern) for pattern in policy.agents):
                assigned[name].append(agent)
                break
        else:
            patterns = ", ".join(p for policy in policies.values() for p in policy.agents)
            raise ConfigError(
                f"policies: expected a policy for every agent, got none for {agent!r} "
                f"(patterns: {patterns}). Add a pattern that matches it."
            )
    for name, found in assigned.items():
        if not found and not idle:
            raise ConfigError(
                f"policies.{name}: expected at least one agent, got none; the agents are "
                f"{', '.join(agents)}. Change its patterns or remove it."
            )
    return {name: tuple(found) for name, found in assigned.items() if found}


def build_graph(experiment: Experiment) -> Graph:
    """The graph of an experiment whose layout and counts are settled."""
    trained = tuple(n for n, p in experiment.policies.items() if p.mode == "train")
    everyone = tuple(experiment.policies)
    inline = experiment.layout == "inline"
    # Where they may be on several hosts each of these has to know the newest version.
    apart = experiment.trainer.count > 1 and experiment.trainer.trust_network
    workers = {
        f"trainer-{name}" if len(trained) > 1 else "trainer": WorkerGroup(
            kind="srl.workers.trainer:TrainerWorker",
            count=experiment.trainer.count,
            reads=(name,),
            trains=(name,),
            follows=(name,) if apart else (),
            max_restarts=experiment.trainer.max_restarts,
            threads=experiment.trainer.threads,
        )
        for name in trained
    }
    workers["policy"] = WorkerGroup(
        kind="srl.workers.policy:PolicyWorker",
        count=experiment.actor.count if inline else experiment.inference.count,
        max_count=experiment.actor.max_count if inline else experiment.inference.max_count,
        serves=everyone,
        follows=everyone,
        beside="actor" if inline else "",
        max_restarts=experiment.inference.max_restarts,
        threads=experiment.inference.threads,
    )
    workers["actor"] = WorkerGroup(
        kind="srl.workers.actor:ActorWorker",
        count=experiment.actor.count,
        max_count=experiment.actor.max_count,
        asks=everyone,
        writes=trained,
        follows=trained,
        max_restarts=experiment.actor.max_restarts,
    )
    if experiment.evaluator.count:
        workers["evaluator"] = WorkerGroup(
            kind="srl.workers.evaluator:EvaluatorWorker",
            count=experiment.evaluator.count,
            follows=everyone,
            max_restarts=experiment.evaluator.max_restarts,
        )
    graph = Graph(workers=workers, streams={name: StreamNode(policy=name) for name in trained})
    if experiment.dataflow:
        change: Callable[[Graph], Graph] = resolve(experiment.dataflow)
        graph = change(graph)
        if not isinstance(graph, Graph):
            raise ConfigError(
                f"dataflow {experiment.dataflow!r}: expected it to return a Graph, got "
                f"{type(graph).__name__}."
            )
    return graph


def check_graph(graph: Graph) -> None:
    """Raises if the graph cannot work, before anything starts."""
    for name, group in graph.workers.items():
        for stream in (*group.reads, *group.writes):
            if stream not in graph.streams:
                raise ConfigError(f"graph: {name!r} uses stream {stream!r}, which is not declared.")
        if group.beside and group.beside not in graph.workers:
            raise ConfigError(f"graph: {name!r} is beside {group.beside!r}, which is not there.")
        if group.count < 1:
            raise ConfigError(f"graph: {name!r} expects at least 1 worker, got {group.count}.")
    for stream in graph.streams:
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
    _check_policies(graph)


def _check_policies(graph: Graph) -> None:
    for verb, answer, what in (
        ("asks", "serves", "its inference is asked for but no worker serves it"),
        ("trains", "trains", ""),
    ):
        for name, group in graph.workers.items():
            for policy in getattr(group, verb):
                others = [n for n, g in graph.workers.items() if policy in getattr(g, answer)]
                if not others:
                    raise ConfigError(f"graph: policy {policy!r}: {what} ({name!r}).")
                if verb == "trains" and len(others) > 1:
                    raise ConfigError(
                        f"graph: policy {policy!r} has one writer of weights, got {others}."
                    )
