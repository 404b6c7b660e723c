"""Soft actor-critic (Haarnoja et al. 2018), over transitions of any age."""

from __future__ import annotations

import torch

from srl.algorithms.learning.continuous_learner import ContinuousLearner
from srl.algorithms.learning.step import Metrics
from srl.algorithms.learning.transitions import TransitionMinibatch
from srl.algorithms.sac.config import SACConfig
from srl.algorithms.sac.temperature import Temperature
from srl.data.tree import Tree
from srl.policies.protocol import Policy, SamplesUnitActions


class SAC(ContinuousLearner):
    """Learns values of reward plus entropy, and a policy that samples in proportion to them."""

    Config = SACConfig
    config: SACConfig
    asks_for = SamplesUnitActions
    advice = "Use network.name=squashed_gaussian, or write these."

    def __init__(
        self,
        policy: Policy,
        config: SACConfig,
        *,
        device: str | torch.device = "cpu",
        seed: int = 0,
    ) -> None:
        super().__init__(policy, config, device=device, seed=seed)
        assert isinstance(policy, SamplesUnitActions)
        self._samples: SamplesUnitActions = policy
        self.temperature = Temperature(config, policy.num_actions, self.device)

    def gradient_step(self, minibatch: TransitionMinibatch) -> Metrics:
        """One step of the critics, of the policy, and of a learned temperature."""
        policy, weight = self._samples, minibatch.weight
        self.critics.follow()
        seen, next_seen = policy.seen(minibatch.obs), policy.seen(minibatch.next_obs)
        shape = (2, len(weight), policy.num_actions)
        noise = torch.randn(shape, generator=self.generator, device=self.device)
        action, log_prob = policy.sample(seen, noise[0])
        temperature = self.temperature.value
        with torch.no_grad():
            next_action, next_log_prob = policy.sample(next_seen, noise[1])
            next_value = self.critics.target_value(next_seen, next_action)
            soft_value = next_value - temperature * next_log_prob
            target = minibatch.reward + minibatch.discount * soft_value
        metrics = self.critics.step(
            seen, policy.unit(minibatch.action), target, weight, self.num_updates
        )
        value, gradient = self.critics.action_gradient(seen, action, num_critics=2)
        # Its gradient is that of temperature * log_prob - value of the critics.
        loss = ((temperature * log_prob - (gradient * action).sum(1)) * weight).sum()
        metrics |= self.policy_step(loss)
        mean_log_prob = (log_prob.detach() * weight).sum()
        metrics["policy_loss"] = temperature * mean_log_prob - (value * weight).sum()
        metrics["entropy"] = -mean_log_prob
        metrics["temperature"] = temperature.clone()
        self.temperature.step(mean_log_prob)
        return metrics

    def state(self) -> Tree:
        """All that is learned beside the policy's weights, and the random state."""
        return {**super().state(), "temperature": self.temperature.state()}

    def restore(self, state: Tree) -> None:
        """Continues from `state`; bit for bit if the policy's weights are restored, too."""
        super().restore(state)
        self.temperature.restore(state["temperature"])

    def backup(self) -> None:
        """Copies all that an update changes into kept memory."""
        super().backup()
        self.temperature.backup()

    def rollback(self) -> None:
        """Restores what the last `backup` copied."""
        super().rollback()
        self.temperature.rollback()
