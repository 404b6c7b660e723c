"""What algorithms with an actor and a critic share."""

from __future__ import annotations

import torch

from srl.algorithms.learning.buffers import track
from srl.algorithms.learning.gradient import GradientLearner
from srl.algorithms.learning.sequences import Sequences
from srl.algorithms.learning.step import Metrics
from srl.algorithms.ops.rewards import clip_reward
from srl.algorithms.policy_gradient_config import PolicyGradientConfig
from srl.policies.protocol import Policy, TracksStatistics, require_extras


class PolicyGradient(GradientLearner):
    """Base class of algorithms that train an actor and a critic by gradients of one loss."""

    Config = PolicyGradientConfig
    data_parallel = True
    config: PolicyGradientConfig

    @classmethod
    def check(cls, config: PolicyGradientConfig, policy: Policy) -> None:  # type: ignore[override]
        """It needs log_prob and value with every action, sequences, and running statistics."""
        require_extras(policy, ("log_prob", "value"), cls.__name__)
        super().check(config, policy)

    @property
    def critic_statistics(self) -> TracksStatistics:
        """Whose values are learned: the policy, unless the learner has a critic of its own."""
        return self._statistics

    def clipped_reward(self, reward: torch.Tensor) -> torch.Tensor:
        """The rewards that the loss sees."""
        return clip_reward(reward, self.config.clip_reward)

    def _track_returns(self, returns: torch.Tensor) -> None:
        """Updates the return statistics with the [N] value targets of the samples that count."""
        track(self.critic_statistics.track_returns, returns, update=self.num_updates)

    def _finish_update(
        self, sequences: Sequences, records: list[Metrics], summary: Metrics
    ) -> dict[str, float]:
        """As in the base class, with the weight of the entropy bonus."""
        entropy_coefficient = self.config.entropy_coefficient_at(self.progress)
        metrics = super()._finish_update(sequences, records, summary)
        return {**metrics, "entropy_coefficient": entropy_coefficient}
