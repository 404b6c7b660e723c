"""The policy worker: answers whatever requests have arrived, in one batch, with the newest weights.

*Consumes* requests of one or more inference streams. *Waits for* requests, and at first for
weights. *Unblocked by* actors and trainers. *Produces* replies, stamped with the policy version
that made them.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np
import torch

from srl.data.records import InferenceReply, InferenceRequest
from srl.data.spec import ArraySpec, action_array
from srl.data.tree import Tree, leaves, tree_map
from srl.errors import PolicyError
from srl.policies.protocol import Act, Policy
from srl.services.parameters import ParameterReader
from srl.streams.inference import InferenceServer
from srl.workers.configs import InferenceConfig
from srl.workers.wiring import Context
from srl.workers.worker import DONE, MADE, Progress, Wait, Worker


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

    def refresh(self) -> None:
        """Takes newer weights, if there are any."""
        if self.parameters.version == self.version:
            return
        tensors = self.policy.state_dict()
        if not self.host_weights:
            self.host_weights = {name: t.detach().cpu().numpy() for name, t in tensors.items()}
        self.version = self.parameters.read(self.host_weights)
        if self.device.type != "cpu":
            with torch.no_grad():
                for name, tensor in tensors.items():
                    tensor.copy_(torch.from_numpy(self.host_weights[name]), non_blocking=True)


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
        request, counts = served.server.gather(lanes)
        act = infer(served.policy, request, served.generator, served.device)
        rows = len(request.is_first)
        reply = InferenceReply(
            action=self._array(served, "action", act.action, rows),
            state=None if act.state is None else tree_map(_host, act.state),
            extras=tree_map(_host, act.extras),
            policy_version=served.version,
        )
        self._check(served, "extras", reply.extras, served.policy.extras_spec, rows)
        self._check(served, "state", reply.state, served.policy.state_spec, rows)
        served.server.answer(lanes, counts, reply)
        self.row.add("count_requests", len(lanes))
        self.row.add("count_rows", rows)

    def _array(self, served: Served, name: str, tensor: torch.Tensor, rows: int) -> np.ndarray:
        array = _host(tensor)
        self._check_leaf(served, name, array, action_array(served.policy.agent.action), rows)
        return array

    def _check(self, served: Served, name: str, tree: Tree, spec: Tree, rows: int) -> None:
        expected, got = leaves(spec), leaves(tree)
        if len(expected) != len(got):
            raise PolicyError(
                f"{name}: expected {len(expected)} arrays, got {len(got)}, from policy "
                f"{served.name!r} in {self.name}. Return what the policy's {name}_spec declares."
            )
        for leaf, array in zip(expected, got, strict=True):
            self._check_leaf(served, name, array, leaf, rows)

    def _check_leaf(
        self, served: Served, name: str, array: np.ndarray, spec: ArraySpec, rows: int
    ) -> None:
        if array.shape != (rows, *spec.shape):
            raise PolicyError(
                f"{name}: expected {spec.dtype}{[rows, *spec.shape]}, got "
                f"{array.dtype}{list(array.shape)}, from policy {served.name!r} in {self.name}. "
                "Return what the policy's spec declares, one row for each observation."
            )

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


def infer(
    policy: Policy, request: InferenceRequest, generator: torch.Generator, device: torch.device
) -> Act:
    """One forward pass over a request's rows, without gradients."""

    on_cpu = device.type == "cpu"

    def tensor(array: np.ndarray) -> torch.Tensor:
        made = torch.from_numpy(array)
        return made if on_cpu else made.to(device, non_blocking=True)

    with torch.inference_mode():
        return policy.act(
            tensor(request.obs)
            if isinstance(request.obs, np.ndarray)
            else tree_map(tensor, request.obs),
            None if request.state is None else tree_map(tensor, request.state),
            tensor(request.is_first),
            tensor(request.explore),
            None if request.action_mask is None else tensor(request.action_mask),
            generator,
        )


def _host(tensor: torch.Tensor) -> np.ndarray:
    return tensor.cpu().numpy()
