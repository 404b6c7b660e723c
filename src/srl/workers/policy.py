"""The policy worker: answers whatever requests have arrived, in one batch, with the newest weights.

*Consumes* requests of one or more inference streams. *Waits for* requests, and at first for
weights. *Unblocked by* actors and trainers. *Produces* replies, stamped with the policy version
that made them.
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
from srl.policies.protocol import Act, Policy
from srl.services.parameters import ParameterReader
from srl.streams.inference import InferenceServer
from srl.workers.configs import InferenceConfig
from srl.workers.wiring import Context
from srl.workers.worker import DONE, MADE, Progress, Wait, Worker


class Inputs(NamedTuple):
    """A request as tensors; on a CPU they share its memory."""

    obs: Tree
    state: Tree
    is_first: torch.Tensor
    explore: torch.Tensor
    action_mask: torch.Tensor | None


@dataclass
class Served:
    """One policy that a worker serves."""

    name: str
    policy: Policy
    server: InferenceServer
    parameters: ParameterReader
    generator: torch.Generator
    device: torch.device
    version: int = -1
    host_weights: dict[str, np.ndarray] = field(default_factory=dict)
    """The policy's tensors as arrays that share their memory (on a CPU), or a copy on the host."""
    _on_cpu: bool = field(init=False)
    _inputs: dict[int, tuple[InferenceRequest, Inputs]] = field(default_factory=dict)
    _last: tuple[Act, list[np.ndarray]] | None = None
    """On a CPU: the last answer, and its arrays."""

    def __post_init__(self) -> None:
        self._on_cpu = self.device.type == "cpu"

    @cached_property
    def _declared(self) -> dict[str, list[ArraySpec]]:
        """What a reply holds, in the order of `outputs`."""
        return {
            "action": [action_array(self.policy.agent.action)],
            "state": leaves(self.policy.state_spec),
            "extras": leaves(self.policy.extras_spec),
        }

    @cached_property
    def _extras_keys(self) -> list[str] | None:
        spec = self.policy.extras_spec
        flat = isinstance(spec, dict) and all(isinstance(x, ArraySpec) for x in spec.values())
        return sorted(spec) if flat else None

    @cached_property
    def _tensors(self) -> dict[str, torch.Tensor]:
        """The policy's parameters and buffers, which stay where they are."""
        return self.policy.state_dict()

    @cached_property
    def _shapes(self) -> list[tuple[int, ...]]:
        return [spec.shape for specs in self._declared.values() for spec in specs]

    def inputs(self, request: InferenceRequest) -> Inputs:
        """A gathered request as tensors. On a CPU they are made once for each request, because the
        server gathers into the same memory again and again."""
        if not self._on_cpu:
            return to_tensors(request, self.device)
        found = self._inputs.get(id(request))
        if found is None:
            found = self._inputs[id(request)] = (request, to_tensors(request, self.device))
        return found[1]

    def outputs(self, act: Act, rows: int, worker: str) -> list[np.ndarray]:
        """What the policy chose as arrays of the shapes that it declared: action, leaves of the
        state, leaves of the extras."""
        if self._last is not None and self._last[0] is act:
            # A policy that writes its answers into the same memory again.
            return self._last[1]
        tensors = [act.action, *leaves(act.state), *self._extras(act.extras)]
        if self._on_cpu:
            arrays = [tensor.numpy() for tensor in tensors]
        else:
            arrays = [tensor.cpu().numpy() for tensor in tensors]
        if [array.shape for array in arrays] != [(rows, *shape) for shape in self._shapes]:
            self._complain(act, rows, worker)
        if self._on_cpu:
            self._last = act, arrays
        return arrays

    def _extras(self, extras: Tree) -> list[torch.Tensor]:
        """The leaves of the extras; most are one flat dict, which needs no walk."""
        keys = self._extras_keys
        if keys is not None and len(extras) == len(keys):
            with suppress(KeyError):
                return [extras[key] for key in keys]
        return leaves(extras)

    def _complain(self, act: Act, rows: int, worker: str) -> None:
        where = f"from policy {self.name!r} in {worker}"
        for name, specs in self._declared.items():
            got = leaves(getattr(act, name))
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
        """Takes newer weights, if there are any."""
        if self.parameters.version == self.version:
            return
        tensors = self._tensors
        if not self.host_weights:
            self.host_weights = {name: t.cpu().numpy() for name, t in tensors.items()}
        self.version = self.parameters.read(self.host_weights)
        if not self._on_cpu:
            with torch.no_grad():
                for name, tensor in tensors.items():
                    tensor.copy_(torch.from_numpy(self.host_weights[name]), non_blocking=True)
        with torch.inference_mode():
            self.policy.pack()


class PolicyWorker(Worker):
    """Serves one or more policies."""

    def __init__(self, name: str, served: list[Served], config: InferenceConfig) -> None:
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
        device = torch.device(config.device or context.plan.device)
        served = [
            Served(
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

    def step(self) -> Progress | Wait:
        """Answers each policy's requests once."""
        wait = self._wait_requests
        made = False
        for served in self._served:
            if served.parameters.version < 0:
                wait = self._wait_weights
                continue
            if self._config.min_rows > 1 and not self._enough(served):
                wait = self._wait_more
                continue
            lanes = served.server.poll(self._config.max_rows)
            if lanes:
                for other in self._served:
                    if other is not served:
                        other.server.keep_away()
                served.refresh()
                self._answer(served, lanes)
                made = True
        if made:
            return MADE
        if all(served.server.closed for served in self._served):
            return DONE
        return wait

    def _enough(self, served: Served) -> bool:
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

    def _answer(self, served: Served, lanes: list[int]) -> None:
        server = served.server
        request, counts = server.gather(lanes)
        rows = sum(counts)
        act = _act(served.policy, served.inputs(request), served.generator)
        arrays = served.outputs(act, rows, self.name)
        server.answer_with(lanes, counts, arrays, served.version)
        self.row.add("count_requests", len(lanes))
        self.row.add("count_rows", rows)

    def state(self, exact: bool) -> Tree:
        """The random states; weights come from the parameter service."""
        return {served.name: served.generator.get_state().numpy() for served in self._served}

    def restore(self, state: Tree, exact: bool) -> None:
        """Goes on from `state`."""
        for served in self._served:
            served.generator.set_state(torch.from_numpy(state[served.name].copy()))

    def close(self) -> None:
        """Leaves the streams."""
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
        state=tree_map(tensor, request.state),
        is_first=tensor(request.is_first),
        explore=tensor(request.explore),
        action_mask=None if mask is None else tensor(mask),
    )


def infer(
    policy: Policy, request: InferenceRequest, generator: torch.Generator, device: torch.device
) -> Act:
    """One forward pass over a request's rows, without gradients."""
    return _act(policy, to_tensors(request, device), generator)


def _act(policy: Policy, inputs: Inputs, generator: torch.Generator) -> Act:
    with torch.inference_mode():
        return policy.act(*inputs, generator)
