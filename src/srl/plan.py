"""The plan's records: everything that the processes of a run need to know.

Plans are plain values, which travel as JSON. `launch/plan` makes them from an experiment.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from srl.data.spec import AgentSpec, EnvSpec, TeamSpec
from srl.data.table import TableSpec
from srl.services.parameters import ParameterSpec
from srl.streams.inference import InferenceSpec
from srl.streams.sample import SampleSpec

Carrier = Literal["inline", "shm", "tcp"]
"""`tcp`: some ends are on other hosts. Each host has the stream in its own shared memory, and
bridges carry the records between hosts."""


class PolicyPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One policy: its classes, settings and weights."""

    name: str
    mode: Literal["train", "frozen", "random"]
    agents: tuple[str, ...]
    agent: AgentSpec
    team: TeamSpec
    policy_class: str
    network: dict[str, Any]
    algorithm_class: str
    algorithm: dict[str, Any]
    handles_stale_samples: bool
    """Whether the algorithm may learn from samples of an older version."""
    parameters: ParameterSpec
    weights: str = ""
    """File of the weights that it starts with; empty starts with new ones."""


class InferencePlan(msgspec.Struct, frozen=True, kw_only=True):
    """One instance of an inference stream; an `inline` instance is private to a process."""

    policy: str
    carrier: Carrier
    clients: tuple[str, ...]
    """Workers, in the order of `spec.clients`."""
    servers: tuple[str, ...]
    spec: InferenceSpec


class SamplePlan(msgspec.Struct, frozen=True, kw_only=True):
    """One sample stream."""

    stream: str
    """Its name in the graph."""
    part: int = 0
    """Its number among the parts of that stream."""
    parts: int = 1
    """How many parts the stream is split into."""
    policy: str
    carrier: Carrier
    writers: tuple[str, ...]
    """Workers, in the order of `spec.writers`."""
    readers: tuple[str, ...]
    at_once: int
    """Fragments that its writers write at the same time."""
    spec: SampleSpec

    @property
    def has_tables(self) -> bool:
        """Whether it carries tables, and no fragments."""
        return isinstance(self.spec.record, TableSpec)


class WorkerPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One worker."""

    name: str
    group: str
    index: int
    kind: str
    process: str
    serves: tuple[str, ...] = ()
    requests: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    trains: tuple[str, ...] = ()
    follows: tuple[str, ...] = ()
    settings: dict[str, Any] = {}
    restarts: bool = True
    max_restarts: int = -1
    threads: int = 1
    in_every_checkpoint: bool = False
    """Copied from the worker class; the controller waits for this worker's part."""
    memory_bytes: int = 0
    """What it keeps, as its class says: for the estimate of the memory that a run needs."""


class ActorPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a group of actors plays."""

    agents: dict[str, tuple[str, ...]]
    """The agents of each policy that plays here."""
    env_args: dict[str, Any] = {}
    """Arguments of the environments that differ from the experiment's."""
    first_group: int = 0
    """Groups of environments in all actors before these."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the processes need to know."""

    experiment: dict[str, Any]
    """The experiment as plain values, with all counts and the layout decided."""
    env_spec: EnvSpec
    actors: dict[str, ActorPlan]
    """What actors play, by worker group."""
    envs_per_group: int
    num_groups: int
    """Groups in each actor."""
    explore: dict[str, list[float]]
    """How much each policy explores in each environment of all actors, from 0 to 1; one number
    where it explores alike in all."""
    device: str
    policies: dict[str, PolicyPlan]
    inference: dict[str, InferencePlan]
    samples: dict[str, SamplePlan]
    workers: tuple[WorkerPlan, ...]

    @property
    def policy_agents(self) -> dict[str, tuple[str, ...]]:
        """The agents of each policy in the experiment's own environment: in its first actors, and
        in evaluations."""
        return next(iter(self.actors.values())).agents

    @property
    def processes(self) -> dict[str, list[WorkerPlan]]:
        """Workers by process, in the order in which they are stepped."""
        found: dict[str, list[WorkerPlan]] = {}
        for worker in self.workers:
            found.setdefault(worker.process, []).append(worker)
        return found

    def kind_of(self, worker: WorkerPlan) -> str:
        """The kind of a worker, for reports: its group's name, unless several groups are of one
        kind."""
        if worker.trains:
            return "trainer"
        if worker.group in self.actors:
            return "actor"
        return "policy" if worker.serves and worker.group.startswith("policy-") else worker.group

    def part(self, process: str) -> Plan:
        """The part of the plan that one process needs: its workers, the trainers that learn with
        them, and its inference streams. A plan may have thousands of other workers."""
        own = {worker.name for worker in self.workers if worker.process == process}
        groups = {worker.group for worker in self.workers if worker.name in own and worker.trains}
        return msgspec.structs.replace(
            self,
            workers=tuple(w for w in self.workers if w.name in own or w.group in groups),
            inference={
                name: stream
                for name, stream in self.inference.items()
                if not (own.isdisjoint(stream.clients) and own.isdisjoint(stream.servers))
            },
        )
