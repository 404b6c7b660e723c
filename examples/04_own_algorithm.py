"""Train with an algorithm of your own.

    python examples/04_own_algorithm.py [FOLDER]

An algorithm turns batches into newer weights. `PPO` has the parts that most policy gradients share,
and each can be replaced alone: `targets` (a batch to advantages and value targets), `loss` (a
minibatch to a scalar), `make_optimizer`. Below is PPO with another objective: where the clipped one
stops the gradient of an action whose probability has moved far, this one pulls it back, with a
penalty on the squared log-ratio (as in "simple policy optimization" and related work). It needs 20
lines, and runs in every layout, with recurrent policies, masks, and several agents.
"""

import sys
from dataclasses import dataclass

import torch

import srl
from srl.algorithms.ppo.config import PPOConfig
from srl.algorithms.ppo.learner import PPO
from srl.algorithms.ppo.rollout import Minibatch


@dataclass(frozen=True, kw_only=True)
class PenaltyConfig(PPOConfig):
    """Settings of PenaltyPPO: those of PPO, and one more."""

    penalty: float = 5.0
    """Weight of the squared log-ratio between the new policy and the one that acted."""


class PenaltyPPO(PPO):
    """PPO whose trust region is a penalty instead of a clip."""

    Config = PenaltyConfig
    config: PenaltyConfig

    def loss(self, minibatch: Minibatch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        now = self.evaluate(minibatch)
        log_ratio = now.log_prob - minibatch.log_prob
        gain = (log_ratio.exp() * minibatch.advantage).mean()
        far = log_ratio.square().mean()
        value_loss = self.value_loss(now.value, minibatch)
        entropy = now.entropy.mean()
        loss = (
            self.config.penalty * far
            - gain
            + self.config.value_coefficient * value_loss
            - self.config.entropy_coefficient_at(self.progress) * entropy
        )
        # What is returned here is in metrics.jsonl, in TensorBoard and in the summary.
        return loss, {"log_ratio_squared": far.detach(), "entropy": entropy.detach()}


if __name__ == "__main__":
    folder = sys.argv[1] if len(sys.argv) > 1 else "runs/example_04"
    run = srl.train(
        "CartPole-v1",
        algorithm=f"{__file__}:PenaltyPPO",
        steps=60_000,
        run_dir=folder,
        set={
            "algorithm.learning_rate": 1e-3,
            "algorithm.rollout_length": 64,
            "algorithm.epochs": 8,
        },
    )
    print(f"return: {run.evaluate(episodes=20).mean:.0f}, of at most 500; at random: about 22")
