"""What a worker is told: its part of the plan, as plain values that travel as JSON, and the ends it
gets from it."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np

from srl.arena.arena import Arena
from srl.data.codec import load_state
from srl.data.spec import AgentSpec, EnvSpec
from srl.envs.protocol import EnvConfig, EnvGroup, Lanes, OnCall
from srl.errors import CheckpointError
from srl.resolve import resolve
from srl.services.board import BoardRow
from srl.services.metrics_client import MetricsClient
from srl.services.parameters import ParameterReader, ParameterSpec, ParameterWriter
from srl.settings import convert
from srl.streams.inference import InferenceClient, InferenceServer, InferenceSpec
from srl.streams.sample import SampleSink, SampleSource, SampleSpec

if TYPE_CHECKING:
    from srl.algorithms.protocol import Algorithm
    from srl.policies.protocol import Policy

Carrier = Literal["inline", "shm", "tcp"]
"""`tcp`: some ends are on other hosts. Each host has the stream in its own shared memory, and gates
carry it between them."""


class PolicyPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One policy, wherever it is needed."""

    name: str
    mode: Literal["train", "frozen", "random"]
    agents: tuple[str, ...]
    agent: AgentSpec
    policy_class: str
    network: dict[str, Any]
    algorithm_class: str
    algorithm: dict[str, Any]
    parameters: ParameterSpec
    weights: str = ""
    """File of weights that it starts with; empty starts with fresh ones."""


class InferencePlan(msgspec.Struct, frozen=True, kw_only=True):
    """One instance of an inference stream; `inline` ones are private to a process."""

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
    """Of several trainers' streams, the number of the trainer that it leads to, ..."""
    parts: int = 1
    """... and how many there are."""
    policy: str
    carrier: Carrier
    writers: tuple[str, ...]
    """Workers, in the order of `spec.writers`."""
    readers: tuple[str, ...]
    spec: SampleSpec


class WorkerPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One worker."""

    name: str
    group: str
    index: int
    kind: str
    process: str
    serves: tuple[str, ...] = ()
    asks: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    trains: tuple[str, ...] = ()
    follows: tuple[str, ...] = ()
    settings: dict[str, Any] = {}
    restarts: bool = True
    max_restarts: int = -1
    threads: int = 1
    in_every_checkpoint: bool = False
    """As its class says; the controller waits for its part of a checkpoint."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the processes need to know."""

    experiment: dict[str, Any]
    """The settled experiment as plain values."""
    env_spec: EnvSpec
    lanes: dict[str, tuple[str, ...]]
    envs_per_group: int
    num_groups: int
    """Groups in each actor."""
    device: str
    policies: dict[str, PolicyPlan]
    inference: dict[str, InferencePlan]
    samples: dict[str, SamplePlan]
    workers: tuple[WorkerPlan, ...]

    def parts(self, policy: str) -> int:
        """How many trainers a policy has, each with streams of its own."""
        return max((s.parts for s in self.samples.values() if s.policy == policy), default=1)

    @property
    def processes(self) -> dict[str, list[WorkerPlan]]:
        """Workers by process, in the order in which they are stepped."""
        found: dict[str, list[WorkerPlan]] = {}
        for worker in self.workers:
            found.setdefault(worker.process, []).append(worker)
        return found

    def part(self, process: str) -> Plan:
        """What one process needs: its own workers and those that train with them, and its own
        inference streams. Thousands of others are none of its business."""
        own = {worker.name for worker in self.workers if worker.process == process}
        teams = {worker.group for worker in self.workers if worker.name in own and worker.trains}
        return msgspec.structs.replace(
            self,
            workers=tuple(w for w in self.workers if w.name in own or w.group in teams),
            inference={
                name: stream
                for name, stream in self.inference.items()
                if not (own.isdisjoint(stream.clients) and own.isdisjoint(stream.servers))
            },
        )


@dataclass
class Context:
    """What a worker is built from: its plan, and ways to get the ends of its
    streams and services."""

    plan: Plan
    worker: WorkerPlan
    row: BoardRow
    metrics: MetricsClient
    shared: Arena
    """Where everything lies that crosses processes."""
    local: Arena
    """Where everything lies that does not."""
    run_dir: Path
    address: str = ""
    """Where trainers on other hosts reach this one's; empty if they are all on one host."""

    @property
    def name(self) -> str:
        """The worker's name."""
        return self.worker.name

    @property
    def seed(self) -> int:
        """A seed of its own for each worker, from the experiment's."""
        entropy = [int(self.plan.experiment["seed"]), zlib.crc32(self.name.encode())]
        return int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0] >> 1)

    def settings(self, part: str, kind: type) -> Any:
        """One part of the experiment's settings, typed."""
        return convert(self.plan.experiment[part], kind, part)

    # -- environments ----------------------------------------------------------------------------

    def env_group(
        self, num_envs: int, *, lanes: Lanes | None = None, render: bool = False
    ) -> EnvGroup:
        """A group of the experiment's environments; its calls show on the board."""
        from srl.envs.registry import make_group

        row = self.row
        on_call: OnCall = lambda call, index: row.enter(call, index)  # type: ignore[arg-type] # noqa: E731
        return make_group(
            self.settings("env", EnvConfig),
            num_envs=num_envs,
            lanes=self.plan.lanes if lanes is None else lanes,
            on_call=on_call,
            render=render,
        )

    # -- streams -----------------------------------------------------------------------------------

    def _arena(self, carrier: Carrier) -> Arena:
        match carrier:
            case "inline":
                return self.local
            case "shm" | "tcp":
                return self.shared

    def inference_client(self, policy: str) -> InferenceClient:
        """This worker's asking end of a policy's inference stream."""
        plan = next(
            p for p in self.plan.inference.values() if p.policy == policy and self.name in p.clients
        )
        return InferenceClient(plan.spec, self._arena(plan.carrier), plan.clients.index(self.name))

    def inference_server(self, policy: str) -> InferenceServer:
        """This worker's answering end of a policy's inference stream."""
        plan = next(
            p for p in self.plan.inference.values() if p.policy == policy and self.name in p.servers
        )
        return InferenceServer(plan.spec, self._arena(plan.carrier), plan.servers.index(self.name))

    def sample_sink(self, stream: str) -> SampleSink:
        """This worker's writing end of a sample stream."""
        plan = self.plan.samples[stream]
        return SampleSink(plan.spec, self._arena(plan.carrier), plan.writers.index(self.name))

    def sample_source(self, stream: str) -> SampleSource:
        """This worker's reading end of a sample stream."""
        plan = self.plan.samples[stream]
        return SampleSource(plan.spec, self._arena(plan.carrier), plan.readers.index(self.name))

    # -- policies ----------------------------------------------------------------------------------

    def parameter_reader(self, policy: str) -> ParameterReader:
        """The weights of a policy, to follow."""
        return ParameterReader(self.plan.policies[policy].parameters, self.shared)

    def parameter_writer(self, policy: str) -> ParameterWriter:
        """The weights of a policy, to publish."""
        return ParameterWriter(self.plan.policies[policy].parameters, self.shared)

    def make_policy(self, policy: str) -> Policy:
        """A policy with its first weights, the same in every process."""
        return build_policy(self.plan.policies[policy], int(self.plan.experiment["seed"]))

    def make_algorithm(self, policy: str, device: str) -> Algorithm:
        """The algorithm that trains a policy."""
        plan = self.plan.policies[policy]
        kind = resolve(plan.algorithm_class)
        config = convert(plan.algorithm, kind.Config, "algorithm")
        module = self.make_policy(policy).to(device)
        return kind(module, config, device=device, seed=self.seed)  # type: ignore[no-any-return]


def build_policy(plan: PolicyPlan, seed: int) -> Policy:
    """A policy as the plan says, seeded."""
    import torch

    kind = resolve(plan.policy_class)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed * 1_000_003 + zlib.crc32(plan.name.encode()))
        policy: Policy = kind(plan.agent, convert(plan.network, kind.Config, "network"))
    if plan.weights:
        load_weights(policy, load_state(Path(plan.weights)), plan.name)
    return policy


def load_weights(policy: Policy, weights: dict[str, np.ndarray], name: str) -> None:
    """Replaces a policy's parameters and buffers; both sides must have the same ones."""
    import torch

    tensors = policy.state_dict()
    for key in sorted(set(tensors) | set(weights)):
        expected = tuple(tensors[key].shape) if key in tensors else None
        got = weights[key].shape if key in weights else None
        if expected != got:
            raise CheckpointError(
                f"weights of policy {name!r}: {key}: expected shape {expected}, got {got}. "
                "They belong to another network or environment."
            )
    with torch.no_grad():
        for key, tensor in tensors.items():
            tensor.copy_(torch.from_numpy(np.asarray(weights[key], order="C")))
