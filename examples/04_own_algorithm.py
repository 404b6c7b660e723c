"""Train with an algorithm of your own.

    python examples/04_own_algorithm.py [FOLDER]

An algorithm turns batches into newer weights. `PPO` has the parts that most policy gradients share,
and each can be replaced alone: `targets` (a batch to advantages and value targets), `loss` (a
minibatch to a scalar), `make_optimizer`. Below is PPO with another objective: where the clipped one
stops the gradient of an action whose probability has moved far, this one pulls it back, with a
penalty on the squared log-ratio (as in "simple policy optimization" and related work). It needs 25
lines, and runs in every layout, with recurrent policies, masks, and several agents.

Actors go on while the trainer learns, so some samples were taken by an older version of the policy.
A loss says how it treats them. This one does what PPO does; a loss that does not say anything is
refused, unless the run is synchronous (`algorithm.max_policy_age=0`).
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
    handles_stale_samples = True

    def loss(self, minibatch: Minibatch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        now = self.evaluate(minibatch)
        # A stale sample moves from where the policy of its first use was, and its advantage is
        # weighted by how much likelier that policy takes the action than the one that took it.
        minibatch.set_proximal(now.log_prob.detach(), now.value.detach())
        log_ratio = now.log_prob - minibatch.log_prob
        gain = (log_ratio.exp() * minibatch.weighted_advantage()).mean()
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
        # On the command line: --algorithm examples/04_own_algorithm.py:PenaltyPPO
        algorithm=PenaltyConfig(learning_rate=1e-3, rollout_length=64, epochs=8),
        steps=60_000,
        run_dir=folder,
    )
    print(f"return: {run.evaluate(episodes=20).mean:.0f}, of at most 500; at random: about 22")
