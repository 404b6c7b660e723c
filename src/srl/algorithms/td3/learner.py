"""Twin delayed deep deterministic policy gradient (Fujimoto et al. 2018), over transitions of any
age."""

from __future__ import annotations

import torch

from srl.algorithms.learning.continuous_learner import ContinuousLearner
from srl.algorithms.learning.step import Metrics
from srl.algorithms.learning.target_network import TargetNetwork
from srl.algorithms.learning.transitions import TransitionMinibatch
from srl.algorithms.td3.config import TD3Config
from srl.data.tree import Tree
from srl.policies.protocol import BestUnitActions, Policy


class TD3(ContinuousLearner):
    """Learns values of actions, and a policy that chooses the best one."""

    Config = TD3Config
    config: TD3Config
    asks_for = BestUnitActions
    advice = "Use network.name=deterministic, or write these."

    def __init__(
        self,
        policy: Policy,
        config: TD3Config,
        *,
        device: str | torch.device = "cpu",
        seed: int = 0,
    ) -> None:
        super().__init__(policy, config, device=device, seed=seed)
        assert isinstance(policy, BestUnitActions)
        self._best: BestUnitActions = policy
        self._target = TargetNetwork(self.policy, tau=config.tau, every=config.policy_delay)

    @property
    def steps_per_target(self) -> int:
        """The target networks move with the policy."""
        return self.config.policy_delay

    def gradient_step(self, minibatch: TransitionMinibatch) -> Metrics:
        """One step of the critics, and of the policy if it is due."""
        policy, weight = self._best, minibatch.weight
        self.critics.follow()
        self._target.step()
        seen, next_seen = policy.seen(minibatch.obs), policy.seen(minibatch.next_obs)
        with torch.no_grad():
            next_value = self.critics.target_value(next_seen, self.target_action(next_seen))
            target = minibatch.reward + minibatch.discount * next_value
        metrics = self.critics.step(
            seen, policy.unit(minibatch.action), target, weight, self.num_updates
        )
        if self._target.num_steps % self.config.policy_delay == 0:
            action = policy.best(seen)
            value, gradient = self.critics.action_gradient(seen, action, num_critics=1)
            # Its gradient is that of minus the value of the first critic.
            metrics |= self.policy_step(-((gradient * action).sum(1) * weight).sum())
            metrics["policy_loss"] = -(value * weight).sum()
        return metrics

    @torch.no_grad()
    def target_action(self, seen: dict[str, torch.Tensor]) -> torch.Tensor:
        """The target policy's unit actions [N, n] with clipped noise: so a value holds around an
        action, and not only for it."""
        config, target = self.config, self._target.module
        assert isinstance(target, BestUnitActions)
        action = target.best(seen)
        noise = torch.empty_like(action).normal_(generator=self.generator)
        bound = config.target_noise_clip
        return action.add_(noise.mul_(config.target_noise).clamp_(-bound, bound)).clamp_(-1.0, 1.0)

    def state(self) -> Tree:
        """All that is learned beside the policy's weights, and the random state."""
        return {**super().state(), "target": self._target.state()}

    def restore(self, state: Tree) -> None:
        """Continues from `state`; bit for bit if the policy's weights are restored, too."""
        super().restore(state)
        self._target.restore(state["target"])

    def backup(self) -> None:
        """Copies all that an update changes into kept memory."""
        super().backup()
        self._target.backup()

    def rollback(self) -> None:
        """Restores what the last `backup` copied."""
        super().rollback()
        self._target.rollback()
