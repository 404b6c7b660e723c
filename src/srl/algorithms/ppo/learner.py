"""Proximal policy optimisation (Schulman et al. 2017), over fragments with parts of several
episodes."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from srl.algorithms.collective import Collective
from srl.algorithms.learning.adam import Adam
from srl.algorithms.learning.buffers import PolicyBuffers, track
from srl.algorithms.learning.flat_optimizer import FlatOptimizer
from srl.algorithms.learning.step import Metrics, means, sum_over_ranks, take_step
from srl.algorithms.learning.torch_optimizer import as_flat
from srl.algorithms.ops.gae import gae
from srl.algorithms.ops.vtrace import vtrace
from srl.algorithms.ppo.config import PPOConfig
from srl.algorithms.ppo.evaluate import PolicyOutputs, evaluate, evaluate_all
from srl.algorithms.ppo.fast import fast_surrogate, gradients_by_hand
from srl.algorithms.ppo.global_batch import GlobalBatch
from srl.algorithms.ppo.minibatches import minibatches
from srl.algorithms.ppo.rollout import Minibatch, Rollout
from srl.algorithms.ppo.surrogate import LossWeights, SurrogateSamples, surrogate
from srl.algorithms.protocol import Algorithm, seeded
from srl.data.records import SampleBatch, TrainResult
from srl.data.tree import Tree
from srl.policies.protocol import (
    Policy,
    TracksStatistics,
    Unrolls,
    require_extras,
    require_protocol,
)


class PPO(Algorithm):
    """Clipped policy gradients with a learned value baseline.

    For an algorithm of your own, override what differs in a subclass: `loss` (one minibatch to a
    scalar), `targets` (a batch to advantages and value targets), or `make_optimizer`.
    """

    Config = PPOConfig
    data_parallel = True
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
        self.check(config, policy)
        assert isinstance(policy, Unrolls)
        assert isinstance(policy, TracksStatistics)
        self.device = torch.device(device)
        self.policy = policy.to(self.device)
        self._sequences: Unrolls = policy
        self._statistics: TracksStatistics = policy
        self.config = config
        self.optimizer = as_flat(self.make_optimizer(), self.policy, config.learning_rate)
        self.num_updates = 0
        self.progress = 0.0
        """Share of the experiment that is over, for schedules."""
        self._generator = seeded(seed)
        own = type(self)
        # A subclass with another objective needs autograd.
        own_loss = own.loss is not PPO.loss or own.evaluate is not PPO.evaluate
        self._manual = None if own_loss else policy.manual_gradients
        self._surrogate = surrogate if policy.kernels == "reference" else fast_surrogate
        self._buffers = PolicyBuffers(policy)
        self._counters_backup = self._generator.get_state(), 0

    @classmethod
    def check(cls, config: PPOConfig, policy: Policy) -> None:
        """PPO needs log_prob and value with every action, sequences, and running statistics."""
        require_extras(policy, ("log_prob", "value"), cls.__name__)
        require_protocol(policy, Unrolls, cls.__name__, "Write it, as ActorCritic does.")
        require_protocol(
            policy,
            TracksStatistics,
            cls.__name__,
            "If it has no running statistics, inherit TracksStatistics, which does nothing.",
        )

    def make_optimizer(self) -> FlatOptimizer | torch.optim.Optimizer:
        """The optimizer of `self.policy`'s parameters: Adam, or one of `torch.optim`.

        An optimizer of torch must step by dense gradients alone (not LBFGS or SparseAdam). It may
        have several groups of parameters, and may leave parameters out. `learning_rate_schedule`
        scales its own learning rates; `algorithm.learning_rate` counts only where you pass it on.
        """
        config = self.config
        return Adam(
            self.policy.parameters(),
            lr=config.learning_rate,
            eps=config.adam_eps,
            use_kernels=self.policy.kernels != "reference",
        )

    def targets(self, rollout: Rollout) -> tuple[torch.Tensor, torch.Tensor]:
        """Advantages and value targets, [T, B] each."""
        config = self.config
        given = {
            "reward": self.clipped_reward(rollout.reward),
            "acted": rollout.acted,
            "terminated": rollout.terminated,
            "truncated": rollout.truncated,
        }
        if config.use_vtrace:
            log_prob, value = evaluate_all(self._sequences, rollout)
            traced = vtrace(
                log_ratio=log_prob - rollout.log_prob,
                value=value,
                gamma=config.gamma,
                lam=config.gae_lambda,
                rho_clip=config.vtrace_rho_clip,
                c_clip=config.vtrace_c_clip,
                **given,
            )
            return traced.advantage_t, traced.target_t
        result = gae(value=rollout.value, gamma=config.gamma, lam=config.gae_lambda, **given)
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
        error = (value - minibatch.target) / self._statistics.value_scale
        return 0.5 * error.square().mean()

    def evaluate(self, minibatch: Minibatch) -> PolicyOutputs:
        """The current outputs of the policy for the samples of a minibatch, with gradients."""
        return evaluate(self._sequences, minibatch)

    def clipped_reward(self, reward: torch.Tensor) -> torch.Tensor:
        """The rewards that the loss sees."""
        match self.config.clip_reward:
            case None:
                return reward
            case "sign":
                return reward.sign()
            case bound:
                return reward.clamp(-float(bound), float(bound))

    def update(self, batch: SampleBatch, progress: float) -> Iterator[TrainResult | None]:
        """One learner step: targets once, then epochs; yields None after each minibatch."""
        config = self.config
        self.progress = progress
        self.optimizer.lr = config.learning_rate_at(progress)
        rollout = Rollout(batch, self.policy, self.device)
        first = self.num_updates == 0
        if first:
            # Fresh networks choose almost uniformly for any input, so the statistics may change
            # before the first training. Later that would move the policy away from the rollout's
            # log_probs.
            track(self._statistics.track_obs, *rollout.frames(), update=self.num_updates)
        if config.use_vtrace:
            rollout.bound_by_behaviour()
        rollout.set_targets(*self.targets(rollout))
        global_batch = GlobalBatch(rollout, batch.num_fragments, self.collective)
        summary = global_batch.metrics()
        returns = rollout.select(rollout.target)
        track(self._statistics.track_returns, returns, update=self.num_updates)
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
        if not first:
            track(self._statistics.track_obs, *rollout.frames(), update=self.num_updates)
        self._buffers.synchronize()
        self.num_updates += 1
        metrics = means(records) | {name: float(value) for name, value in summary.items()}
        metrics["learning_rate"] = self.optimizer.lr
        metrics["entropy_coefficient"] = config.entropy_coefficient_at(progress)
        metrics["epochs_done"] = float(epochs_done)
        yield TrainResult(metrics)

    def state(self) -> Tree:
        """The optimizer's state by parameter name, the random state and the number of updates."""
        return {
            "optimizer": self.optimizer.state(self.policy),
            "generator": self._generator.get_state().numpy().copy(),
            "num_updates": self.num_updates,
        }

    def restore(self, state: Tree) -> None:
        """Continues from `state`; bit for bit if the policy's weights are restored, too."""
        self.optimizer.restore(self.policy, state["optimizer"])
        self._generator.set_state(torch.from_numpy(state["generator"].copy()))
        self.num_updates = int(state["num_updates"])

    def join(self, collective: Collective) -> None:
        """Learns with other trainers: statistics are of all data, other buffers the first one's."""
        super().join(collective)
        self._buffers.join(collective)

    def backup(self) -> None:
        """Copies all that an update changes into kept memory: no new pages for each update."""
        self.optimizer.backup()
        self._buffers.backup()
        self._counters_backup = self._generator.get_state(), self.num_updates

    def rollback(self) -> None:
        """Restores what the last `backup` copied."""
        self.optimizer.rollback()
        self._buffers.rollback()
        generator, self.num_updates = self._counters_backup
        self._generator.set_state(generator)

    def _objective(self, minibatch: Minibatch) -> tuple[SurrogateSamples, LossWeights]:
        """The data and the weights of the objective."""
        config = self.config
        samples = SurrogateSamples(
            log_prob=minibatch.log_prob,
            behaviour_log_prob=minibatch.behaviour_log_prob,
            value=minibatch.value,
            advantage=minibatch.advantage,
            target=minibatch.target,
            value_scale=self._statistics.value_scale,
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
        loss, metrics = sum_over_ranks(
            self.collective, self.optimizer, loss, metrics, minibatch.share
        )
        norm = take_step(self.optimizer, loss, self.config.max_grad_norm, self.num_updates)
        metrics["loss"] = loss
        metrics["grad_norm"] = loss.new_tensor(norm)
        return metrics
