"""What learners of bounded actions from a replay share: the loop of an update, and its state."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import ClassVar

import torch

from srl.algorithms.continuous_config import ContinuousConfig
from srl.algorithms.learning.adam import Adam
from srl.algorithms.learning.buffers import PolicyBuffers, track
from srl.algorithms.learning.step import Metrics, take_step
from srl.algorithms.learning.transitions import TransitionMinibatch, Transitions
from srl.algorithms.learning.twin_critic import TwinCritic, TwinCriticLearner
from srl.algorithms.protocol import Algorithm, seeded, seeded_weights
from srl.data.records import SampleBatch, TrainResult
from srl.data.tree import Tree
from srl.policies.bounded_actor_config import BoundedActorConfig
from srl.policies.nets.config import NetworkConfig
from srl.policies.protocol import ChoosesUnitActions, Policy, require_protocol


class ContinuousLearner(Algorithm):
    """Base class of algorithms that learn a policy over bounded actions, and its critics.

    Only the policy is published. Critics, target networks and optimizers are in `state`.
    """

    handles_stale_samples = True
    config: ContinuousConfig
    asks_for: ClassVar[type] = ChoosesUnitActions
    """The protocol that the policy must have."""
    advice: ClassVar[str] = ""
    """What to do where it does not."""

    def __init__(
        self,
        policy: Policy,
        config: ContinuousConfig,
        *,
        device: str | torch.device = "cpu",
        seed: int = 0,
    ) -> None:
        self.check(config, policy)
        assert isinstance(policy, ChoosesUnitActions)
        self.device = torch.device(device)
        self.policy = policy.to(self.device)
        self.unit_actions: ChoosesUnitActions = policy
        """The policy, as the learner uses it."""
        self.config = config
        use_kernels = policy.kernels != "reference"
        self.optimizer = Adam(policy.parameters(), lr=config.learning_rate, use_kernels=use_kernels)
        with seeded_weights(seed):
            critic = self.make_critic().to(self.device)
        self.critics = TwinCriticLearner(
            critic,
            learning_rate=config.rate_of_critics,
            tau=config.tau,
            target_every=self.steps_per_target,
            max_grad_norm=config.max_grad_norm,
        )
        # Actions are uniform until the first update is published.
        policy.uniform.fill_(1.0 if config.learning_starts else 0.0)
        self.num_updates = 0
        self.generator = seeded(seed, self.device)
        """Of the noise of actions in an update."""
        self._buffers = PolicyBuffers(policy)
        self._counters_backup = self.generator.get_state(), 0

    @classmethod
    def check(cls, config: ContinuousConfig, policy: Policy) -> None:
        """The policy must choose bounded actions, as `asks_for` says."""
        require_protocol(policy, ChoosesUnitActions, cls.__name__, cls.advice)
        require_protocol(policy, cls.asks_for, cls.__name__, cls.advice)

    @property
    def steps_per_target(self) -> int:
        """Gradient steps between two moves of the target networks."""
        return 1

    @abstractmethod
    def gradient_step(self, minibatch: TransitionMinibatch) -> Metrics:
        """One step of the critics, and of whatever else is due."""

    def make_critic(self) -> TwinCritic:
        """The critics, with layers as the policy has them; override it for networks of your
        own."""
        network = self.policy.config
        if not isinstance(network, NetworkConfig):
            network = BoundedActorConfig()
        num_actions = self.unit_actions.num_actions
        sizes = self.config.critic_hidden_sizes
        return TwinCritic(self.policy.agent, num_actions, sizes, network)

    def update(self, batch: SampleBatch, progress: float) -> Iterator[TrainResult | None]:
        """One learner step: a gradient step for each fragment of the batch, with None after it."""
        config = self.config
        transitions = Transitions(
            batch, self.policy, self.device, gamma=config.gamma, n=config.n_steps
        )
        records: dict[str, list[torch.Tensor]] = {}
        for minibatch in transitions.minibatches():
            for name, value in self.gradient_step(minibatch).items():
                records.setdefault(name, []).append(value)
            yield None
        track(self.unit_actions.track_obs, *transitions.frames(), update=self.num_updates)
        self.unit_actions.uniform.zero_()
        self.num_updates += 1
        yield TrainResult({name: float(torch.stack(x).mean()) for name, x in records.items()})

    def policy_step(self, loss: torch.Tensor) -> Metrics:
        """One optimizer step of the policy along the gradient of a loss."""
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        norm = take_step(self.optimizer, loss.detach(), self.config.max_grad_norm, self.num_updates)
        return {"policy_grad_norm": loss.new_tensor(norm)}

    def state(self) -> Tree:
        """All that is learned beside the policy's weights, and the random state."""
        return {
            "critics": self.critics.state(),
            "optimizer": self.optimizer.state(self.policy),
            "generator": self.generator.get_state().numpy().copy(),
            "num_updates": self.num_updates,
        }

    def restore(self, state: Tree) -> None:
        """Continues from `state`; bit for bit if the policy's weights are restored, too."""
        self.critics.restore(state["critics"])
        self.optimizer.restore(self.policy, state["optimizer"])
        self.generator.set_state(torch.from_numpy(state["generator"].copy()))
        self.num_updates = int(state["num_updates"])

    def backup(self) -> None:
        """Copies all that an update changes into kept memory."""
        self.critics.backup()
        self.optimizer.backup()
        self._buffers.backup()
        self._counters_backup = self.generator.get_state(), self.num_updates

    def rollback(self) -> None:
        """Restores what the last `backup` copied."""
        self.critics.rollback()
        self.optimizer.rollback()
        self._buffers.rollback()
        generator, self.num_updates = self._counters_backup
        self.generator.set_state(generator)
