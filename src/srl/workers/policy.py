"""The policy worker: answers all requests that have arrived in one batch, with the newest weights.

*Consumes* requests of one or more inference streams. *Waits for* requests, and for the first
weights. *Unblocked by* actors and trainers. *Produces* replies, with the policy version that made
them.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch

from srl.data.records import InferenceRequest
from srl.data.spec import ArraySpec, action_array
from srl.data.tree import Tree, leaves, tree_map
from srl.errors import PolicyError
from srl.policies.protocol import Policy, PolicyOutput
from srl.services.parameters import ParameterReader
from srl.streams.inference import InferenceServer
from srl.workers.configs import InferenceConfig
from srl.workers.devices import require_device
from srl.workers.wiring import Context
from srl.workers.worker import DONE, PROGRESS, StepResult, Wait, Worker


class Inputs(NamedTuple):
    """A request as tensors; on a CPU the tensors share the request's memory."""

    obs: Tree
    policy_state: Tree
    is_first: torch.Tensor
    explore: torch.Tensor
    action_mask: torch.Tensor | None


@dataclass
class ServedPolicy:
    """One policy that a worker serves."""

    name: str
    policy: Policy
    server: InferenceServer
    parameters: ParameterReader
    generator: torch.Generator
    device: torch.device
    version: int = -1
    weight_arrays: dict[str, np.ndarray] = field(default_factory=dict)
    """The policy's tensors as arrays: on a CPU they share memory, otherwise they are copies."""
    _on_cpu: bool = field(init=False)
    _inputs: dict[int, tuple[InferenceRequest, Inputs]] = field(default_factory=dict)
    _last_output: tuple[PolicyOutput, list[np.ndarray]] | None = None
    """The last output of the policy and its arrays, on a CPU only."""

    def __post_init__(self) -> None:
        self._on_cpu = self.device.type == "cpu"

    @cached_property
    def _specs(self) -> dict[str, list[ArraySpec]]:
        """The specs of a reply's arrays, in the order of `outputs`."""
        return {
            "action": [action_array(self.policy.agent.action)],
            "policy_state": leaves(self.policy.state_spec),
            "extras": leaves(self.policy.extras_spec),
        }

    @cached_property
    def _extras_keys(self) -> list[str] | None:
        spec = self.policy.extras_spec
        flat = isinstance(spec, dict) and all(isinstance(x, ArraySpec) for x in spec.values())
        return sorted(spec) if flat else None

    @cached_property
    def _tensors(self) -> dict[str, torch.Tensor]:
        """The policy's parameters and buffers; their memory never moves."""
        return self.policy.state_dict()

    @cached_property
    def _shapes(self) -> list[tuple[int, ...]]:
        return [spec.shape for specs in self._specs.values() for spec in specs]

    def inputs(self, request: InferenceRequest) -> Inputs:
        """A gathered request as tensors. On a CPU each request is converted only once, because the
        server gathers into the same memory every time."""
        if not self._on_cpu:
            return to_tensors(request, self.device)
        found = self._inputs.get(id(request))
        if found is None:
            found = self._inputs[id(request)] = (request, to_tensors(request, self.device))
        return found[1]

    def output_arrays(self, output: PolicyOutput, rows: int, worker: str) -> list[np.ndarray]:
        """The policy's output as arrays of the declared shapes: action, leaves of the policy state,
        leaves of the extras."""
        if self._last_output is not None and self._last_output[0] is output:
            # The policy wrote its output into the same memory as last time.
            return self._last_output[1]
        tensors = [output.action, *leaves(output.policy_state), *self._extras(output.extras)]
        if self._on_cpu:
            arrays = [tensor.numpy() for tensor in tensors]
        else:
            arrays = [tensor.cpu().numpy() for tensor in tensors]
        if [array.shape for array in arrays] != [(rows, *shape) for shape in self._shapes]:
            self._raise_wrong_shapes(output, rows, worker)
        if self._on_cpu:
            self._last_output = output, arrays
        return arrays

    def _extras(self, extras: Tree) -> list[torch.Tensor]:
        """The leaves of the extras; most extras are one flat dict, which needs no tree walk."""
        keys = self._extras_keys
        if keys is not None and len(extras) == len(keys):
            with suppress(KeyError):
                return [extras[key] for key in keys]
        return leaves(extras)

    def _raise_wrong_shapes(self, output: PolicyOutput, rows: int, worker: str) -> None:
        where = f"from policy {self.name!r} in {worker}"
        for name, specs in self._specs.items():
            got = leaves(getattr(output, name))
            if len(specs) != len(got):
                raise PolicyError(
                    f"{name}: expected {len(specs)} arrays, got {len(got)}, {where}. "
                    f"Return what the policy's {name}_spec declares."
                )
            for spec, tensor in zip(specs, got, strict=True):
                if tensor.shape != (rows, *spec.shape):
                    dtype = str(tensor.dtype).removeprefix("torch.")
                    raise PolicyError(
                        f"{name}: expected {spec.dtype}{[rows, *spec.shape]}, got "
                        f"{dtype}{list(tensor.shape)}, {where}. "
                        "Return what the policy's spec declares, one row for each observation."
                    )

    def refresh(self) -> None:
        """Reads newer weights, if there are any."""
        if self.parameters.version == self.version:
            return
        tensors = self._tensors
        if not self.weight_arrays:
            self.weight_arrays = {name: t.cpu().numpy() for name, t in tensors.items()}
        self.version = self.parameters.read(self.weight_arrays)
        if not self._on_cpu:
            with torch.no_grad():
                for name, tensor in tensors.items():
                    tensor.copy_(torch.from_numpy(self.weight_arrays[name]), non_blocking=True)
        with torch.inference_mode():
            self.policy.pack()


class PolicyWorker(Worker):
    """Serves one or more policies."""

    def __init__(self, name: str, served: list[ServedPolicy], config: InferenceConfig) -> None:
        self.name = name
        self._served = served
        self._config = config
        self._arrived_ns: dict[str, int] = {}
        self._wait_requests = Wait("requests")
        self._wait_weights = Wait("weights")
        self._wait_more = Wait("requests", config.max_wait_microseconds / 1e6)

    @classmethod
    def build(cls, context: Context) -> PolicyWorker:
        """A policy worker from its part of the plan."""
        config: InferenceConfig = context.settings("inference", InferenceConfig)
        name = config.device or context.plan.device
        require_device(name, "inference.device" if config.device else "trainer.device")
        device = torch.device(name)
        served = [
            ServedPolicy(
                name=policy,
                policy=context.make_policy(policy).to(device),
                server=context.inference_server(policy),
                parameters=context.parameter_reader(policy),
                generator=torch.Generator(device).manual_seed(context.seed + number),
                device=device,
            )
            for number, policy in enumerate(context.worker.serves)
        ]
        return cls(context.name, served, config)

    def step(self) -> StepResult | Wait:
        """Answers the requests of each policy once."""
        wait = self._wait_requests
        made = False
        for served in self._served:
            if served.parameters.version < 0:
                wait = self._wait_weights
                continue
            if self._config.min_rows > 1 and not self._has_enough_rows(served):
                wait = self._wait_more
                continue
            slots = served.server.poll(self._config.max_rows)
            if slots:
                for other in self._served:
                    if other is not served:
                        other.server.mark_busy()
                served.refresh()
                self._answer(served, slots)
                made = True
        if made:
            return PROGRESS
        if all(served.server.closed for served in self._served):
            return DONE
        return wait

    def _has_enough_rows(self, served: ServedPolicy) -> bool:
        rows = served.server.num_submitted_rows()
        if rows == 0:
            self._arrived_ns.pop(served.name, None)
            return False
        if rows < self._config.min_rows:
            now = time.monotonic_ns()
            since = self._arrived_ns.setdefault(served.name, now)
            if now - since < self._config.max_wait_microseconds * 1000:
                return False
        self._arrived_ns.pop(served.name, None)
        return True

    def _answer(self, served: ServedPolicy, slots: list[int]) -> None:
        server = served.server
        request, counts = server.gather(slots)
        rows = sum(counts)
        output = _act(served.policy, served.inputs(request), served.generator)
        arrays = served.output_arrays(output, rows, self.name)
        server.answer_with(slots, counts, arrays, served.version)
        self.stats.add("count_requests", len(slots))
        self.stats.add("count_rows", rows)

    def state(self, exact: bool) -> Tree:
        """The states of the random generators; weights come from the parameter service."""
        return {served.name: served.generator.get_state().numpy() for served in self._served}

    def restore(self, state: Tree, exact: bool) -> None:
        """Continues from `state`."""
        for served in self._served:
            served.generator.set_state(torch.from_numpy(state[served.name].copy()))

    def close(self) -> None:
        """Closes its ends of the streams."""
        for served in self._served:
            served.server.close()


def to_tensors(request: InferenceRequest, device: torch.device) -> Inputs:
    """A request as tensors on a device."""
    on_cpu = device.type == "cpu"

    def tensor(array: np.ndarray) -> torch.Tensor:
        made = torch.from_numpy(array)
        return made if on_cpu else made.to(device, non_blocking=True)

    mask = request.action_mask
    return Inputs(
        obs=tree_map(tensor, request.obs),
        policy_state=tree_map(tensor, request.policy_state),
        is_first=tensor(request.is_first),
        explore=tensor(request.explore),
        action_mask=None if mask is None else tensor(mask),
    )


def infer(
    policy: Policy, request: InferenceRequest, generator: torch.Generator, device: torch.device
) -> PolicyOutput:
    """One forward pass over a request's rows, without gradients."""
    return _act(policy, to_tensors(request, device), generator)


def _act(policy: Policy, inputs: Inputs, generator: torch.Generator) -> PolicyOutput:
    with torch.inference_mode():
        return policy.act(*inputs, generator)
