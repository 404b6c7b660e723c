"""Learns to act as somebody else did: supervised learning of the actions in a batch."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from srl.algorithms.imitation_config import ImitationConfig
from srl.algorithms.learning.adam import Adam
from srl.algorithms.learning.flat_optimizer import FlatOptimizer
from srl.algorithms.learning.gradient import GradientLearner
from srl.algorithms.learning.outputs import unroll_after
from srl.algorithms.learning.sequences import Sequences, at, zero_outside
from srl.algorithms.learning.step import Metrics
from srl.data.records import SampleBatch, TrainResult
from srl.data.spec import Box
from srl.errors import ConfigError
from srl.policies.distributions import Distribution
from srl.policies.protocol import Policy


class ImitationLearner(GradientLearner):
    """Raises the probability of the actions in a batch, whoever chose them.

    For an algorithm of your own, override `loss` or `make_optimizer`.
    """

    Config = ImitationConfig
    data_parallel = True
    handles_stale_samples = True
    config: ImitationConfig

    @classmethod
    def check(cls, config: ImitationConfig, policy: Policy) -> None:  # type: ignore[override]
        """It needs sequences and running statistics; `mse` needs real-valued actions."""
        super().check(config, policy)
        if config.loss == "mse" and not isinstance(policy.agent.action, Box):
            raise ConfigError(
                "algorithm.loss: for mse expected real-valued actions (Box), got "
                f"{policy.agent.action}. Set algorithm.loss=log_prob."
            )

    def make_optimizer(self) -> FlatOptimizer | torch.optim.Optimizer:
        """The optimizer: Adam, unless a subclass has another."""
        return Adam(
            self.trained.parameters(),
            lr=self.config.learning_rate,
            eps=self.config.adam_eps,
            use_kernels=self.policy.kernels != "reference",
        )

    def loss(
        self, distribution: Distribution, action: torch.Tensor, valid: torch.Tensor
    ) -> tuple[torch.Tensor, Metrics]:
        """The loss over [ticks, n]: a mean over the samples that are `valid`."""
        log_prob, entropy = distribution.log_prob(action)[valid], distribution.entropy()[valid]
        wrong = (distribution.mode - action)[valid].unsqueeze(-1).flatten(1)
        metrics = {"log_prob": log_prob.detach(), "entropy": entropy.detach()}
        loss = -log_prob.mean() - self.config.entropy_coefficient * entropy.mean()
        if isinstance(self.policy.agent.action, Box):
            error = wrong.square().mean(-1)
            metrics["mse"] = error.detach()
            loss = error.mean() if self.config.loss == "mse" else loss
        else:
            metrics["accuracy"] = (wrong == 0).all(-1).float()
        return loss, {name: value.mean() for name, value in metrics.items()}

    def update(self, batch: SampleBatch, progress: float) -> Iterator[TrainResult | None]:
        """One learner step: one pass over the batch; yields None after each minibatch."""
        sequences = Sequences(batch, self.policy, self.device)
        self._start_update(progress, sequences)
        parts = self._parts(sequences)
        own = torch.tensor([float(sequences.counts.flatten()[p].sum()) for p in parts])
        total = self.collective.gather(own).sum(0)
        records: list[Metrics] = []
        for index, share, samples in zip(parts, own / total, total, strict=True):
            if not samples:
                continue
            self.optimizer.zero_grad()
            loss, metrics = self.loss(*self._outputs(sequences, index))
            loss.backward()  # type: ignore[no-untyped-call]
            records.append(self._apply(loss.detach(), metrics, float(share)))
            yield None
        yield TrainResult(self._finish_update(sequences, records, {"num_samples": total.sum()}))

    def _parts(self, sequences: Sequences) -> list[torch.Tensor]:
        """Flat indices [ticks, n] of the minibatches. With memory each has whole windows. Without,
        each has a few ticks of all windows, so that it is of as many episodes as possible."""
        ticks, rows, burn_in = sequences.ticks, sequences.rows, sequences.burn_in
        count, device = self.config.gradient_steps, sequences.device
        if sequences.policy_state is not None:
            each = torch.arange(rows, device=device).tensor_split(count)
            steps = torch.arange(ticks - sequences.bootstrap, device=device).unsqueeze(1) * rows
            # All ranks join in every step: one without a window computes with one that is empty.
            return [steps + part if len(part) else steps[:, :1] * 0 for part in each]
        first, last = burn_in * rows, (ticks - sequences.bootstrap) * rows
        found = torch.arange(first, last, device=device).tensor_split(count)
        counts = sequences.counts.flatten()
        return [part[counts[part]].unsqueeze(0) for part in found]

    def _outputs(
        self, sequences: Sequences, index: torch.Tensor
    ) -> tuple[Distribution, torch.Tensor, torch.Tensor]:
        """The distribution of the policy over a minibatch, the actions, and which of them count."""
        with_memory = sequences.policy_state is not None
        if not index.numel():
            index = index.new_zeros(1, 1)
        active = at(sequences.active.flatten(), index)
        mask = sequences.action_mask
        unroll = unroll_after(
            self._unrolls,
            sequences.burn_in if with_memory else 0,
            sequences.obs_at(index, active),
            sequences.state_at(index[0]) if with_memory else None,
            at(sequences.is_first.flatten(), index),
            active,
            None if mask is None else at(mask.flatten(0, 1), index),
        )
        index = index[sequences.burn_in :] if with_memory else index
        valid = at(sequences.counts.flatten(), index)
        action = zero_outside(valid, at(sequences.action.flatten(0, 1), index))
        return unroll.distribution, action, valid
