"""The context in which a worker gets its streams, services and policies from the plan."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from srl.arena.arena import Arena
from srl.data.codec import load_state
from srl.data.spec import ArraySpec
from srl.data.tree import leaves
from srl.envs.protocol import EnvConfig, EnvGroup, OnCall, PolicyAgents
from srl.errors import CheckpointError, ConfigError, PolicyError
from srl.plan import Carrier, Plan, PolicyPlan, WorkerPlan
from srl.resolve import resolve
from srl.resources import machine_memory
from srl.services.metrics_client import MetricsClient
from srl.services.parameters import ParameterReader, ParameterWriter
from srl.services.segments import SegmentFolder
from srl.services.worker_stats import WorkerStats
from srl.settings import convert
from srl.streams.inference import InferenceClient, InferenceServer
from srl.streams.sample import SampleSink, SampleSource
from srl.tracebacks import user_code
from srl.workers.devices import require_device

if TYPE_CHECKING:
    from srl.algorithms.protocol import Algorithm
    from srl.policies.protocol import Policy


@dataclass
class Context:
    """What a worker is built from: its plan, and access to its streams and services."""

    plan: Plan
    worker: WorkerPlan
    stats: WorkerStats
    metrics: MetricsClient
    shared: Arena
    """The arena of everything that several processes use."""
    local: Arena
    """The arena of everything that only this process uses."""
    run_dir: Path
    address: str = ""
    """This host's address for trainers on other hosts; empty if all are on one host."""
    incarnation: int = 0
    """How often the worker's process was started before in this run."""

    @property
    def name(self) -> str:
        """The worker's name."""
        return self.worker.name

    @property
    def seed(self) -> int:
        """The worker's own seed, derived from the experiment's seed."""
        entropy = [int(self.plan.experiment["seed"]), zlib.crc32(self.name.encode())]
        return int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0] >> 1)

    def settings(self, part: str, kind: type) -> Any:
        """One part of the experiment's settings, as its dataclass."""
        return convert(self.plan.experiment[part], kind, part)

    def segment_folder(self) -> SegmentFolder:
        """The folder in which this worker saves what it keeps, for checkpoints."""
        return SegmentFolder(self.run_dir / "checkpoints", self.name, self.incarnation)

    # -- environments ----------------------------------------------------------------------------

    def env_group(
        self,
        num_envs: int,
        *,
        policy_agents: PolicyAgents | None = None,
        env_args: dict[str, Any] | None = None,
        render: bool = False,
    ) -> EnvGroup:
        """A group of the experiment's environments, with some other arguments; its calls show in
        the worker stats."""
        from srl.envs.registry import make_group

        stats = self.stats
        on_call: OnCall = lambda call, index: stats.enter(call, index)  # type: ignore[arg-type] # noqa: E731
        config: EnvConfig = self.settings("env", EnvConfig)
        return make_group(
            replace(config, args={**config.args, **(env_args or {})}),
            num_envs=num_envs,
            policy_agents=self.plan.policy_agents if policy_agents is None else policy_agents,
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
        """This worker's client end of a policy's inference stream."""
        plan = next(
            p for p in self.plan.inference.values() if p.policy == policy and self.name in p.clients
        )
        return InferenceClient(plan.spec, self._arena(plan.carrier), plan.clients.index(self.name))

    def inference_server(self, policy: str) -> InferenceServer:
        """This worker's server end of a policy's inference stream."""
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
        """A reader of a policy's weights."""
        return ParameterReader(self.plan.policies[policy].parameters, self.shared)

    def parameter_writer(self, policy: str) -> ParameterWriter:
        """A writer that publishes a policy's weights."""
        return ParameterWriter(self.plan.policies[policy].parameters, self.shared)

    def make_policy(self, policy: str) -> Policy:
        """A new policy with its first weights, which are the same in every process."""
        return build_policy(self.plan.policies[policy], int(self.plan.experiment["seed"]))

    def make_algorithm(self, policy: str, device: str) -> Algorithm:
        """The algorithm that trains a policy."""
        plan = self.plan.policies[policy]
        kind = resolve(plan.algorithm_class)
        config = convert(plan.algorithm, kind.Config, "algorithm")
        require_device(device, "trainer.device")
        module = self.make_policy(policy).to(device)
        return kind(module, config, device=device, seed=self.seed)  # type: ignore[no-any-return]


def build_policy(plan: PolicyPlan, seed: int) -> Policy:
    """Builds a policy of the plan with seeded weights."""
    import torch

    kind = resolve(plan.policy_class)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed * 1_000_003 + zlib.crc32(plan.name.encode()))
        config = convert(plan.network, kind.Config, "network")
        with user_code(f"policy {plan.policy_class!r}", PolicyError):
            policy: Policy = kind(plan.agent, config)
    policy.team = plan.team
    _check_specs(policy, plan.policy_class)
    if plan.weights:
        load_weights(policy, load_state(Path(plan.weights)), plan.name)
    return policy


def _check_specs(policy: Policy, name: str) -> None:
    """Raises if a policy does not declare its extras and its policy state as trees of specs."""
    for attribute, nothing in (("extras_spec", "{}"), ("state_spec", "None")):
        spec = getattr(policy, attribute, "none")
        wrong = [leaf for leaf in leaves(spec) if not isinstance(leaf, ArraySpec)]
        if wrong:
            raise PolicyError(
                f"policy {name!r}: expected {attribute} to be a tree (dicts) of "
                f"srl.data.spec.ArraySpec, or {nothing}, got {wrong[0]!r:.100}. Set it in the "
                "class or in __init__."
            )


def shapes_of(policy: Policy) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and dtype of each of a policy's parameters and buffers, by name."""
    return {
        key: (tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
        for key, tensor in policy.state_dict().items()
    }


def needed_shapes(plan: PolicyPlan, seed: int) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shapes of a policy's weights; raises if the weights do not fit into this machine's memory.

    A policy of SRL is built without memory for its weights. Other policies may need real numbers.
    """
    import torch

    is_srl_policy = plan.policy_class.startswith("srl.")
    with torch.device("meta" if is_srl_policy else "cpu"):
        policy = build_policy(msgspec.structs.replace(plan, weights=""), seed)
    needed = sum(t.numel() * t.element_size() for t in policy.state_dict().values())
    if needed > (memory := machine_memory()):
        raise ConfigError(
            f"network of policy {plan.name!r}: expected one that fits into this machine's memory "
            f"({memory:,} bytes), got {needed:,} bytes of weights. Make it smaller."
        )
    return shapes_of(policy)


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
