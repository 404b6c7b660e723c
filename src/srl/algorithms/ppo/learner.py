"""Proximal policy optimisation (Schulman et al. 2017), over fragments with parts of several
episodes."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from srl.algorithms.learning.adam import Adam
from srl.algorithms.learning.flat_optimizer import FlatOptimizer
from srl.algorithms.learning.policy_gradient import PolicyGradient
from srl.algorithms.learning.step import Metrics
from srl.algorithms.ops.gae import gae
from srl.algorithms.ppo.config import PPOConfig
from srl.algorithms.ppo.evaluate import PolicyOutputs, evaluate
from srl.algorithms.ppo.fast import fast_surrogate, gradients_by_hand
from srl.algorithms.ppo.global_batch import GlobalBatch
from srl.algorithms.ppo.minibatches import minibatches
from srl.algorithms.ppo.rollout import Minibatch, Rollout
from srl.algorithms.ppo.surrogate import LossWeights, SurrogateSamples, surrogate
from srl.algorithms.protocol import seeded
from srl.data.records import SampleBatch, TrainResult
from srl.data.tree import Tree
from srl.policies.protocol import Policy


class PPO(PolicyGradient):
    """Clipped policy gradients with a learned value baseline.

    For an algorithm of your own, override what differs in a subclass: `loss` (one minibatch to a
    scalar), `targets` (a batch to advantages and value targets), or `make_optimizer`.
    """

    Config = PPOConfig
    handles_stale_samples = True
    config: PPOConfig

    def __init__(
        self,
        policy: Policy,
        config: PPOConfig,
        *,
        device: str | torch.device = "cpu",
        seed: int = 0,
    ) -> None:
        super().__init__(policy, config, device=device, seed=seed)
        self._generator = seeded(seed)
        own = type(self)
        # A subclass with another objective needs autograd.
        own_loss = own.loss is not PPO.loss or own.evaluate is not PPO.evaluate
        self._manual = None if own_loss else policy.manual_gradients
        self._surrogate = surrogate if policy.kernels == "reference" else fast_surrogate
        self._generator_backup = self._generator.get_state()

    def make_optimizer(self) -> FlatOptimizer | torch.optim.Optimizer:
        """The optimizer: Adam, unless a subclass has another."""
        config = self.config
        return Adam(
            self.trained.parameters(),
            lr=config.learning_rate,
            eps=config.adam_eps,
            use_kernels=self.policy.kernels != "reference",
        )

    def make_rollout(self, batch: SampleBatch) -> Rollout:
        """The batch on the device."""
        return Rollout(batch, self.policy, self.device)

    def targets(self, rollout: Rollout) -> tuple[torch.Tensor, torch.Tensor]:
        """Advantages and value targets, [T, B] each."""
        result = gae(
            value=rollout.value,
            reward=self.clipped_reward(rollout.reward),
            acted=rollout.acted,
            terminated=rollout.terminated,
            truncated=rollout.truncated,
            gamma=self.config.gamma,
            lam=self.config.gae_lambda,
        )
        return result.advantage_t, result.return_t

    def loss(self, minibatch: Minibatch) -> tuple[torch.Tensor, Metrics]:
        """The clipped surrogate, the value loss and the entropy bonus, each a mean over the samples
        that count."""
        now = self.evaluate(minibatch)
        minibatch.set_proximal(now.log_prob.detach(), now.value.detach())
        loss, terms = self._surrogate(*now, *self._objective(minibatch))
        return loss, terms._asdict()

    def value_loss(self, value: torch.Tensor, minibatch: Minibatch) -> torch.Tensor:
        """Half the squared critic error in the units of its last layer, for a loss of your own."""
        error = (value - minibatch.target) / self.critic_statistics.value_scale
        return 0.5 * error.square().mean()

    def evaluate(self, minibatch: Minibatch) -> PolicyOutputs:
        """The current outputs of the policy for the samples of a minibatch, with gradients."""
        return evaluate(self._unrolls, minibatch)

    def update(self, batch: SampleBatch, progress: float) -> Iterator[TrainResult | None]:
        """One learner step: targets once, then epochs; yields None after each minibatch."""
        config = self.config
        rollout = self.make_rollout(batch)
        self._start_update(progress, rollout)
        rollout.set_targets(*self.targets(rollout))
        global_batch = GlobalBatch(rollout, batch.num_fragments, self.collective)
        summary = global_batch.metrics()
        self._track_returns(rollout.select(rollout.target))
        records: list[Metrics] = []
        epochs_done = 0
        for _ in range(config.epochs):
            start = len(records)
            for minibatch in minibatches(
                rollout,
                global_batch,
                config.minibatches,
                config.chunk_ticks,
                self._generator,
                config.normalize_advantages,
            ):
                records.append(self._step(minibatch))
                if rollout.first_use and config.epochs > 1:
                    rollout.keep(minibatch)
                yield None
            rollout.first_use = False
            epochs_done += len(records) > start
            if config.target_kl is not None and len(records) > start:
                divergence = torch.stack([m["approx_kl"] for m in records[start:]]).mean()
                if float(divergence) > config.target_kl:
                    break
        metrics = self._finish_update(rollout, records, summary)
        yield TrainResult({**metrics, "epochs_done": float(epochs_done)})

    def state(self) -> Tree:
        """Also the random state."""
        return {**super().state(), "generator": self._generator.get_state().numpy().copy()}

    def restore(self, state: Tree) -> None:
        """Continues from `state`; bit for bit if the policy's weights are restored, too."""
        super().restore(state)
        self._generator.set_state(torch.from_numpy(state["generator"].copy()))

    def backup(self) -> None:
        """Also keeps the random state."""
        super().backup()
        self._generator_backup = self._generator.get_state()

    def rollback(self) -> None:
        """Restores what the last `backup` copied."""
        super().rollback()
        self._generator.set_state(self._generator_backup)

    def _objective(self, minibatch: Minibatch) -> tuple[SurrogateSamples, LossWeights]:
        """The data and the weights of the objective."""
        config = self.config
        samples = SurrogateSamples(
            log_prob=minibatch.log_prob,
            behaviour_log_prob=minibatch.behaviour_log_prob,
            value=minibatch.value,
            advantage=minibatch.advantage,
            target=minibatch.target,
            value_scale=self.critic_statistics.value_scale,
        )
        weights = LossWeights(
            clip=config.clip,
            value_clip=config.value_clip,
            value_coefficient=config.value_coefficient,
            entropy_coefficient=config.entropy_coefficient_at(self.progress),
        )
        return samples, weights

    def _find_gradients(self, minibatch: Minibatch) -> tuple[torch.Tensor, Metrics]:
        """Computes the loss, and writes the gradients of all parameters."""
        if self._manual is not None:
            loss, terms = gradients_by_hand(self._manual, minibatch, self._objective)
            return loss, terms._asdict()
        self.optimizer.zero_grad()
        loss, metrics = self.loss(minibatch)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach(), metrics

    def _step(self, minibatch: Minibatch) -> Metrics:
        """One optimizer step."""
        loss, metrics = self._find_gradients(minibatch)
        return self._apply(loss, metrics, minibatch.share)
