"""The interface of policies, as policy workers and algorithms use it.

Every policy is a `Policy`. What an algorithm asks for beyond that is a protocol here, and the
algorithm's `check` refuses a policy without it. PPO asks for `Unrolls` and `TracksStatistics`, DQN
for `ActionValues` and `TracksStatistics`, SAC for `SamplesUnitActions`, TD3 for `BestUnitActions`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import torch
from torch import nn

from srl.data.spec import AgentSpec, Box, Discrete, TeamSpec
from srl.data.tree import Tree
from srl.errors import ConfigError
from srl.kernels.switch import Kernels
from srl.policies.distributions import Distribution


class PolicyOutput(NamedTuple):
    """The answer of a policy, as tensors; the policy worker writes them into the reply's slot."""

    action: torch.Tensor
    policy_state: Tree
    extras: Tree


class Unroll(NamedTuple):
    """The outputs of a policy over a sequence, with gradients."""

    distribution: Distribution
    """The distribution over actions, [T, B]."""
    value: torch.Tensor
    """float32 [T, B], in units of reward."""
    policy_state: Tree
    """[B, ...] the policy state after the last tick, or None."""


class ValueUnroll(NamedTuple):
    """The action values of a policy over a sequence, with gradients."""

    value: torch.Tensor
    """float32 [T, B, actions], or [T, B, actions, quantiles]: what each action leads to."""
    policy_state: Tree
    """[B, ...] the policy state after the last tick, or None."""


class ForwardPass(NamedTuple):
    """The outputs of a policy for [N] observations without a graph, for `ManualGradients`."""

    distribution: Distribution
    value: torch.Tensor
    """float32 [N], in units of reward."""
    inputs: list[list[torch.Tensor]]
    """The input of each layer, by tower."""


class ManualGradients(Protocol):
    """Computes the gradients of all parameters of a policy without autograd."""

    def forward_pass(self, obs: Tree, action_mask: torch.Tensor | None) -> ForwardPass:
        """The distribution and the value of [N, ...], without a graph."""

    def backward_pass(
        self,
        forward: ForwardPass,
        action: torch.Tensor,
        of_log_prob: torch.Tensor,
        of_entropy: float,
        of_value: torch.Tensor,
    ) -> None:
        """Overwrites the gradients of all parameters.

        `of_log_prob`, `of_entropy` and `of_value` are the loss gradients of [N] log probabilities
        of actions, entropies and values.
        """


class Policy(nn.Module, ABC):
    """Maps observations to actions. Its parameters and buffers together are the weights of a
    snapshot.

    A policy is built as `PolicyClass(agent, config)` in every process that needs it, and found by
    import path.
    """

    Config: ClassVar[type]
    """The settings dataclass; its fields are `--set network.*`."""

    extras_spec: Tree
    """Tree of ArraySpec that each reply carries into the trajectory."""
    state_spec: Tree = None
    """Tree of ArraySpec of the policy state for one row, or None."""
    team: TeamSpec = TeamSpec()
    """The agents of one environment that it controls, for algorithms that learn from them together.
    It is set once the policy is built."""
    kernels: Kernels = "auto"
    """Whether an algorithm uses kernels for this policy, too."""
    manual_gradients: ManualGradients | None = None
    """Gradients that equal those of `unroll` under autograd, if the policy has some."""

    def __init__(self, agent: AgentSpec, config: Any) -> None:
        super().__init__()
        self.agent = agent
        self.config = config

    @abstractmethod
    def act(
        self,
        obs: Tree,
        policy_state: Tree,
        is_first: torch.Tensor,
        explore: torch.Tensor,
        action_mask: torch.Tensor | None,
        generator: torch.Generator,
    ) -> PolicyOutput:
        """Chooses actions for [rows, ...] without gradients.

        Zeroes `policy_state` where `is_first`. `explore` is float32 [rows]: 1 samples, 0 is greedy.
        All randomness comes from `generator`. The caller reads the result before the next call,
        which may overwrite it.
        """

    def pack(self) -> None:
        """Prepares the policy for `act` after its weights were replaced.

        Until the next call only `act` uses the weights, so a policy may keep them in a form that
        acts faster.
        """


@runtime_checkable
class Unrolls(Protocol):
    """A policy that shows its distribution and its value over sequences, with gradients."""

    def unroll(
        self,
        obs: Tree,
        policy_state: Tree,
        is_first: torch.Tensor,
        active: torch.Tensor,
        action_mask: torch.Tensor | None = None,
    ) -> Unroll:
        """The distribution and the value at every tick of [T, B, ...], with gradients.

        `policy_state` [B, ...] is the state that was fed in at the first tick. `active` [T, B]
        marks the ticks at which the policy was asked (acted or truncated). At other ticks the
        policy state does not change, and the outputs mean nothing.
        """


@runtime_checkable
class ActionValues(Protocol):
    """A policy that has a value for each discrete action, and explores with epsilon."""

    @property
    def num_quantiles(self) -> int:
        """Quantiles that give the value of an action; 0: a value is one number."""

    def unroll_values(
        self, obs: Tree, policy_state: Tree, is_first: torch.Tensor, active: torch.Tensor
    ) -> ValueUnroll:
        """The values of all actions, allowed or not, at every tick of [T, B, ...], with gradients.

        The arguments are those of `Unrolls.unroll`.
        """

    def set_epsilon(self, epsilon: float) -> None:
        """Sets the probability of random actions where `explore` is 1. It must be a buffer, so
        that it is published with the weights."""


@runtime_checkable
class TracksStatistics(Protocol):
    """A policy with running statistics, which the learner updates with what it consumes.

    A policy without statistics inherits this class: its methods do nothing.
    """

    @property
    def value_scale(self) -> torch.Tensor | float:
        """Units of reward per unit of the critic's output; a value loss divides by it."""
        return 1.0

    def track_obs(self, obs: Tree, mask: torch.Tensor) -> None:
        """Updates the observation statistics with the single frames [T, B, ...] where `mask` [T, B]
        is set.

        Called once for each update, after training.
        """
        return

    def track_returns(self, returns: torch.Tensor) -> None:
        """Updates the return statistics with [N] returns, in units of reward.

        Called once for each update, before training. It must not change any value.
        """
        return


@runtime_checkable
class ChoosesUnitActions(Protocol):
    """A policy over bounded real-valued actions, which are vectors of numbers from -1 to 1 for a
    learner (unit actions)."""

    num_actions: int
    """Numbers of an action."""
    uniform: torch.Tensor
    """Buffer []: the share of the exploring actions that are uniform. A learner sets it."""

    def seen(self, obs: Tree) -> dict[str, torch.Tensor]:
        """Observations [N, ...] by path, as the networks of policy and learner see them."""
        ...

    def unit(self, action: torch.Tensor) -> torch.Tensor:
        """Actions [N, ...] of the environment as unit actions [N, n]."""
        ...

    def track_obs(self, obs: Tree, mask: torch.Tensor) -> None:
        """As `TracksStatistics.track_obs`."""
        ...


@runtime_checkable
class SamplesUnitActions(ChoosesUnitActions, Protocol):
    """A policy whose samples are differentiable functions of noise."""

    def sample(
        self, seen: dict[str, torch.Tensor], noise: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Unit actions [N, n] and their log densities [N], with gradients.

        `seen` is what the method of that name returned, and `noise` [N, n] is standard normal.
        """
        ...


@runtime_checkable
class BestUnitActions(ChoosesUnitActions, Protocol):
    """A policy with one best action for each observation."""

    def best(self, seen: dict[str, torch.Tensor]) -> torch.Tensor:
        """Unit actions [N, n] for what `seen` returned, with gradients."""
        ...


def require_extras(policy: Policy, names: tuple[str, ...], asked_by: str) -> None:
    """Raises a ConfigError unless each reply of `policy` carries these extras."""
    offered = policy.extras_spec if isinstance(policy.extras_spec, dict) else {}
    missing = [name for name in names if name not in offered]
    if missing:
        raise ConfigError(
            f"algorithm: {asked_by} expects a policy with extras {' and '.join(names)}, got "
            f"{type(policy).__name__} with {sorted(offered) or 'none'}. Use policy=actor_critic, "
            f"or add {' and '.join(missing)}."
        )


def require_discrete(agent: AgentSpec, asked_by: str) -> None:
    """Raises a ConfigError unless the agent takes one discrete action."""
    action = agent.action
    if isinstance(action, Discrete):
        return
    if isinstance(action, Box):
        advice = "Use an algorithm for real-valued actions: sac, td3 or ppo."
    else:
        advice = "Use ppo, which takes several choices at once, or make them one Discrete action."
    raise ConfigError(
        f"{asked_by} expects one discrete action, because it has a value for each choice, got "
        f"{type(action).__name__}. {advice}"
    )


def require_protocol(policy: Policy, protocol: type, asked_by: str, advice: str) -> None:
    """Raises a ConfigError unless `policy` has all members of a protocol.

    `asked_by` is the algorithm's name, and `advice` says what to do.
    """
    members = [
        name
        for name, member in vars(protocol).items()
        if not name.startswith("_") and (callable(member) or isinstance(member, property))
    ]
    missing = [name for name in members if not hasattr(policy, name)]
    if missing:
        kind = type(policy)
        raise ConfigError(
            f"algorithm: {asked_by} expects a policy with {', '.join(members)} "
            f"({protocol.__module__}.{protocol.__name__}), got {kind.__module__}."
            f"{kind.__qualname__} without {' and '.join(missing)}. {advice}"
        )
