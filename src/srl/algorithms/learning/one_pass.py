"""What algorithms share that use each fragment once: one gradient of whole fragments."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import NamedTuple

import torch

from srl.algorithms.learning.adam import Adam
from srl.algorithms.learning.flat_optimizer import FlatOptimizer
from srl.algorithms.learning.outputs import Outputs, outputs_of
from srl.algorithms.learning.policy_gradient import PolicyGradient
from srl.algorithms.learning.rmsprop import RMSProp
from srl.algorithms.learning.sequences import Sequences
from srl.algorithms.learning.step import Metrics, target_metrics
from srl.algorithms.policy_gradient_config import OnePassConfig
from srl.data.records import SampleBatch, TrainResult

MAX_LOG_RATIO = 20.0
"""Bound of log-ratios in metrics, so that they stay finite."""


class TargetInputs(NamedTuple):
    """What targets are computed from: [T + 1, n] ticks of some rows, without gradients."""

    log_prob: torch.Tensor
    """float32: of the action that was taken, by the policy now."""
    behaviour_log_prob: torch.Tensor
    """float32: the same, by the policy that acted."""
    value: torch.Tensor
    """float32: by the critic now, in units of reward."""
    reward: torch.Tensor
    acted: torch.Tensor
    terminated: torch.Tensor
    truncated: torch.Tensor


class Targets(NamedTuple):
    """What the actor and the critic learn, [T, n] each; 0 where no action was taken."""

    advantage_t: torch.Tensor
    """float32: what the gradient of each action's log-prob is multiplied by."""
    target_t: torch.Tensor
    """float32: what the critic should predict, in units of reward."""
    metrics: Metrics
    """Further metrics: means over the samples that count."""


class OnePass(PolicyGradient):
    """Base class of algorithms that take one optimizer step from whole fragments, and drop them.

    One forward pass gives the values for the targets, and the gradients. A subclass says what the
    targets are.
    """

    Config = OnePassConfig
    config: OnePassConfig

    @abstractmethod
    def targets(self, ticks: TargetInputs, counts: torch.Tensor) -> Targets:
        """Advantages and value targets. `counts` [T, n] marks the samples that a loss may see."""

    def make_optimizer(self) -> FlatOptimizer | torch.optim.Optimizer:
        """The optimizer that the settings name."""
        config, parameters = self.config, self.trained.parameters()
        if config.optimizer == "rmsprop":
            return RMSProp(
                parameters,
                lr=config.learning_rate,
                eps=config.optimizer_eps,
                decay=config.rmsprop_decay,
            )
        return Adam(
            parameters,
            lr=config.learning_rate,
            eps=config.optimizer_eps,
            use_kernels=self.policy.kernels != "reference",
        )

    def update(self, batch: SampleBatch, progress: float) -> Iterator[TrainResult | None]:
        """One learner step: an optimizer step for each part of the rows."""
        sequences = Sequences(batch, self.policy, self.device)
        self._start_update(progress, sequences)
        parts = torch.arange(sequences.rows, device=self.device).tensor_split(
            self.config.minibatches
        )
        own = torch.stack([sequences.counts[:, rows].sum() for rows in parts]).float()
        samples = self.collective.sum(own.clone()).tolist()
        learned = torch.zeros(3, *sequences.counts[:-1].shape, device=self.device)
        """Values, advantages and targets of all ticks, for metrics and statistics."""
        records: list[Metrics] = []
        for rows, count, total in zip(parts, own.tolist(), samples, strict=True):
            if not total:
                continue
            self.optimizer.zero_grad()
            loss, metrics = self.loss(sequences, rows, learned)
            loss.backward()  # type: ignore[no-untyped-call]
            records.append(self._apply(loss.detach(), metrics, count / total))
            yield None
        self._track_returns(learned[2][sequences.counts[:-1]])
        summary = self._summary(sequences.counts[:-1], learned)
        yield TrainResult(self._finish_update(sequences, records, summary))

    def loss(
        self, sequences: Sequences, rows: torch.Tensor, learned: torch.Tensor
    ) -> tuple[torch.Tensor, Metrics]:
        """The loss of some rows: a mean over the samples that count, and its terms.

        Policy gradient + value_coefficient * half the squared error of the critic -
        entropy_coefficient * entropy. Advantages and errors are in the units of the critic's last
        layer (van Hasselt et al. 2016), so the loss does not depend on the size of rewards.
        """
        out = outputs_of(self._unrolls, sequences, rows)
        ticks = self._ticks(out, sequences, rows)
        counts = sequences.counts[:-1, rows]
        targets = self.targets(ticks, counts)
        learned[:, :, rows] = torch.stack((ticks.value[:-1], targets.advantage_t, targets.target_t))
        counted = sequences.counts[:, rows][out.asked]
        scale = self.critic_statistics.value_scale
        log_prob, entropy = out.log_prob[counted], out.entropy[counted].mean()
        policy_loss = -(log_prob * targets.advantage_t[counts] / scale).mean()
        error = (out.value[counted] - targets.target_t[counts]) / scale
        value_loss = 0.5 * error.square().mean()
        config = self.config
        loss = (
            policy_loss
            + config.value_coefficient * value_loss
            - config.entropy_coefficient_at(self.progress) * entropy
        )
        log_ratio = log_prob.detach() - ticks.behaviour_log_prob[:-1][counts]
        log_ratio = log_ratio.clamp(max=MAX_LOG_RATIO)
        return loss, {
            "policy_loss": policy_loss.detach(),
            "value_loss": value_loss.detach(),
            "entropy": entropy.detach(),
            "approx_kl": (log_ratio.expm1() - log_ratio).mean(),
            **targets.metrics,
        }

    def _ticks(self, out: Outputs, sequences: Sequences, rows: torch.Tensor) -> TargetInputs:
        return TargetInputs(
            log_prob=out.spread(out.log_prob.detach()),
            behaviour_log_prob=sequences.extras["log_prob"][:, rows],
            value=out.spread(out.value.detach()),
            reward=self.clipped_reward(sequences.reward[:, rows]),
            acted=sequences.acted[:, rows],
            terminated=sequences.terminated[:, rows],
            truncated=sequences.truncated[:, rows],
        )

    def _summary(self, counts: torch.Tensor, learned: torch.Tensor) -> Metrics:
        """How many samples the batches of all ranks have, and how well the critic knew them."""
        known = torch.cat((counts.to(learned).unsqueeze(0), learned))
        counted, value, advantage, target = self.collective.gather(known).unbind(1)
        used = counted > 0
        return target_metrics(value[used], advantage[used], target[used])
