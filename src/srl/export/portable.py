"""A policy as one pure function of tensors: observations, mask and state in, action and state out.

It does what `ActingPolicy.act` does around the policy, inside the graph: categories from 0 on,
frame stacks, and actions of the environment's own space.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import nn

from srl.acting import ActingPolicy
from srl.data.spec import ArraySpec, action_array
from srl.data.tree import Tree, flatten, unflatten
from srl.envs.spaces import JointDiscrete, obs_starts
from srl.errors import ConfigError
from srl.export.noise import GivenNoise, Noise, NoiseList, neutral
from srl.policies.actor_critic import ActorCritic
from srl.policies.bounded_actor import BoundedActor
from srl.policies.protocol import Policy
from srl.policies.q_network import QNetwork
from srl.policies.random import RandomPolicy


@dataclasses.dataclass(frozen=True)
class Port:
    """One input or output of the graph."""

    name: str
    shape: tuple[int, ...]
    """For one row."""
    dtype: str
    meaning: str


class PortablePolicy(nn.Module):
    """Maps the tensors of `inputs` to those of `outputs`, each [rows, ...]."""

    def __init__(self, acting: ActingPolicy, *, explore: bool) -> None:
        super().__init__()
        if isinstance(acting.module, RandomPolicy):
            raise ConfigError(
                f"export: expected a policy with a network, got {acting.name!r}, which acts at "
                "random."
            )
        agent = acting.agent
        if 0 in action_array(agent.action).shape:
            raise ConfigError(
                f"export: expected a policy that acts, got {acting.name!r}, whose environment has "
                f"no action ({agent.action})."
            )
        self.policy = _plain_copy(acting.module)
        self.explore = explore
        self._generator = torch.Generator()
        self._obs: dict[str, ArraySpec] = flatten(agent.obs)
        self._memory: dict[str, ArraySpec] = (
            {} if self.policy.state_spec is None else flatten(self.policy.state_spec)
        )
        self._stacked = {path: leaf for path, leaf in self._obs.items() if leaf.stack > 1}
        starts = flatten(obs_starts(acting.spaces.observation))
        self._starts = {path: start for path, start in starts.items() if np.any(start)}
        self._action = _ActionOut(acting.spaces.action)
        self.noise: list[Noise] = []
        self.inputs = self._inputs()
        found = self._results(self.example(2), NoiseList())
        if explore:
            drawn = NoiseList()
            self._results(self.example(2), drawn)
            self.noise = drawn.drawn
            self.inputs = self._inputs()
        self.outputs = [
            Port(name, tuple(x.shape[1:]), str(x.dtype).removeprefix("torch."), _meaning(name))
            for name, x in found.items()
        ]

    @property
    def state(self) -> list[Port]:
        """The inputs that an output of the call before replaces."""
        return [port for port in self.inputs if port.name.startswith("state.")]

    def example(self, rows: int) -> tuple[torch.Tensor, ...]:
        """Zeros for each input, at the beginning of an episode, with every action allowed."""
        found = []
        for port in self.inputs:
            value = torch.zeros(rows, *port.shape, dtype=getattr(torch, port.dtype))
            if port.name in ("action_mask", "is_first"):
                value.fill_(True)
            elif (path := _path(port.name, "obs")) is not None and path in self._starts:
                value += torch.as_tensor(self._starts[path])
            elif port.name.startswith("uniform"):
                value.fill_(0.5)
            found.append(value)
        return tuple(found)

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The outputs, in the order of `outputs`."""
        left = list(inputs[len(inputs) - len(self.noise) :]) if self.noise else []

        def given(kind: str, shape: torch.Size) -> torch.Tensor:
            return left.pop(0) if self.explore else neutral(kind, shape)

        return tuple(self._results(inputs, given).values())

    def _inputs(self) -> list[Port]:
        agent = self.policy.agent
        ports = [
            Port(_join("obs", path), leaf.shape, leaf.dtype, "what the agent observes")
            for path, leaf in self._obs.items()
        ]
        if agent.action_mask is not None:
            shape = agent.action_mask.shape
            ports.append(Port("action_mask", shape, "bool", "true where an action is allowed"))
        ports.append(Port("is_first", (), "bool", "true where an episode begins"))
        for path, leaf in self._stacked.items():
            name = _join("state.frames", path)
            ports.append(Port(name, leaf.seen_shape, leaf.dtype, "the last frames"))
        for path, leaf in self._memory.items():
            name = _join("state.memory", path)
            ports.append(Port(name, leaf.shape, leaf.dtype, "the memory of the network"))
        kinds: list[str] = []
        for noise in self.noise:
            kinds.append(noise.kind)
            number = kinds.count(noise.kind)
            name = noise.kind if number == 1 else f"{noise.kind}_{number}"
            meaning = (
                "random numbers from 0 to 1 (without 1)"
                if noise.kind == "uniform"
                else "standard normal random numbers"
            )
            ports.append(Port(name, noise.shape, "float32", meaning))
        return ports

    def _results(
        self, inputs: tuple[torch.Tensor, ...], source: Callable[[str, torch.Size], torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """All outputs by name."""
        given = dict(zip((port.name for port in self.inputs), inputs, strict=True))
        first = given["is_first"]
        seen, state = {}, {}
        for path, leaf in self._obs.items():
            frame = given[_join("obs", path)]
            if path in self._starts:
                frame = frame - torch.as_tensor(self._starts[path], dtype=frame.dtype)
            if leaf.stack > 1:
                name = _join("state.frames", path)
                frame = _pushed(given[name], frame, first)
                state[name] = frame
            seen[path] = frame
        memory: Tree = None
        if self._memory:
            memory = unflatten({p: given[_join("state.memory", p)] for p in self._memory})
        temperature = torch.full((first.shape[0],), float(self.explore))
        shown: dict[str, torch.Tensor] = {}
        with torch.no_grad(), GivenNoise(source), _watched(self.policy, shown):
            act = self.policy.act(
                unflatten(seen),
                memory,
                first,
                temperature,
                given.get("action_mask"),
                self._generator,
            )
        if self._memory:
            after = flatten(act.policy_state)
            state |= {_join("state.memory", path): after[path] for path in self._memory}
        extras = {} if not act.extras else flatten(act.extras)
        return (
            {"action": self._action(act.action)}
            | {f"next_{name}": value for name, value in state.items()}
            | shown
            | extras
        )


class _ActionOut:
    """Turns actions of a policy into actions of a space, as `ActionAdapter` does for arrays."""

    def __init__(self, space: spaces.Space[Any]) -> None:
        self._sizes: tuple[int, ...] = ()
        if isinstance(space, JointDiscrete):
            space = space.parts
            self._sizes = tuple(int(n) for n in space.nvec.reshape(-1))
        dtype = np.dtype(space.dtype)
        self._dtype = torch.from_numpy(np.zeros(0, dtype)).dtype
        self._shape = tuple(space.shape or ())
        self._start = np.asarray(getattr(space, "start", 0), dtype)
        self._bounds = (space.low, space.high) if isinstance(space, spaces.Box) else None
        self._rounds = self._bounds is not None and dtype.kind in "iu"

    def __call__(self, action: torch.Tensor) -> torch.Tensor:
        if self._sizes:
            parts = []
            for size in reversed(self._sizes):
                parts.append(action % size)
                action = action // size
            action = torch.stack(parts[::-1], -1)
        elif self._bounds is not None:
            # Bounds that float32 cannot hold need float64.
            exact = torch.float32 if self._dtype == torch.float32 else torch.float64
            low, high = (torch.as_tensor(bound).to(exact) for bound in self._bounds)
            action = torch.minimum(torch.maximum(action.to(exact), low), high)
            if self._rounds:
                action = action.round()
        action = action.to(self._dtype).reshape(-1, *self._shape)
        return action + torch.as_tensor(self._start) if self._start.any() else action


def _plain_copy(policy: Policy) -> Policy:
    """The same policy without kernels, which can be traced."""
    config = policy.config
    if dataclasses.is_dataclass(config) and hasattr(config, "kernels"):
        config = dataclasses.replace(config, kernels="reference")  # type: ignore[type-var]
    with torch.random.fork_rng(devices=[]):
        copy = type(policy)(policy.agent, config)
    copy.team = policy.team
    copy.load_state_dict(policy.state_dict())
    copy.requires_grad_(False).eval()
    if isinstance(copy, BoundedActor):
        # A trace cannot branch on what is in a tensor.
        share = float(copy.uniform)
        del copy.uniform
        setattr(copy, "uniform", share)  # noqa: B010
    return copy


@contextmanager
def _watched(policy: Policy, shown: dict[str, torch.Tensor]) -> Iterator[None]:
    """Puts into `shown` what a network of SRL says before an action is chosen from it."""
    owner: nn.Module
    if isinstance(policy, ActorCritic):
        owner, method, name = policy.action_head, "forward", "logits"
    elif isinstance(policy, QNetwork):
        owner, method, name = policy.head, "means", "values"
    elif isinstance(policy, BoundedActor):
        owner, method, name = policy, "outputs", "outputs"
    else:
        yield
        return
    usual = getattr(owner, method)

    def watching(*args: Any) -> torch.Tensor:
        shown[name] = usual(*args)
        return shown[name]

    owner.__dict__[method] = watching
    try:
        yield
    finally:
        del owner.__dict__[method]


def _pushed(stack: torch.Tensor, frame: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
    """As `push_frame`: the stack with the new frame, or with this frame alone in a new episode."""
    new = frame.unsqueeze(1)
    moved = torch.cat([stack[:, 1:], new], 1)
    return torch.where(first.view(-1, *[1] * (stack.dim() - 1)), new, moved)


def _join(prefix: str, path: str) -> str:
    return f"{prefix}.{path}" if path else prefix


def _path(name: str, prefix: str) -> str | None:
    """The path of an input below `prefix`, or None."""
    if name == prefix:
        return ""
    return name.removeprefix(f"{prefix}.") if name.startswith(f"{prefix}.") else None


def _meaning(name: str) -> str:
    known = {
        "action": "the action, for the environment as it is",
        "logits": "the parameters of the distribution over actions, before the mask",
        "values": "the value of each action, before the mask",
        "outputs": "the network's output, before tanh and scaling",
        "log_prob": "log probability of the policy's action",
        "value": "the critic's value, in units of reward",
    }
    if name.startswith("next_state."):
        return f"`{name.removeprefix('next_')}` of the next call"
    return known.get(name, "what the policy reports")
