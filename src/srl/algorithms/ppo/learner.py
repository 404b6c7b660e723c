"""Proximal policy optimisation (Schulman et al. 2017), over fragments with parts of several
episodes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from srl.algorithms.adam import Adam
from srl.algorithms.collective import Collective
from srl.algorithms.flat_optimizer import FlatOptimizer
from srl.algorithms.ops.gae import gae
from srl.algorithms.ops.masking import explained_variance
from srl.algorithms.ops.vtrace import vtrace
from srl.algorithms.ppo.config import PPOConfig
from srl.algorithms.ppo.global_batch import GlobalBatch
from srl.algorithms.ppo.minibatches import minibatches
from srl.algorithms.ppo.rollout import Minibatch, Rollout, evaluate_all
from srl.algorithms.ppo.surrogate import (
    LossTerms,
    LossWeights,
    SurrogateSamples,
    surrogate,
    surrogate_with_gradients,
)
from srl.algorithms.protocol import Algorithm, Sampling, seeded
from srl.algorithms.torch_optimizer import as_flat
from srl.data.records import SampleBatch, TrainResult
from srl.data.tree import Tree, tree_map
from srl.errors import ConfigError, LearnError
from srl.policies.actor_critic import ActorCritic
from srl.policies.nets.norm import RunningNorm
from srl.policies.protocol import Policy

Metrics = dict[str, torch.Tensor]


class PolicyOutputs(NamedTuple):
    """The current outputs of the policy for the N samples of a minibatch, with gradients."""

    log_prob: torch.Tensor
    entropy: torch.Tensor
    value: torch.Tensor


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
        self.device = torch.device(device)
        self.policy = policy.to(self.device)
        self.config = config
        self.optimizer = as_flat(self.make_optimizer(), self.policy, config.learning_rate)
        self.num_updates = 0
        self.progress = 0.0
        """Share of the experiment that is over, for schedules."""
        self._generator = seeded(seed)
        own = type(self)
        self._fast = (
            isinstance(policy, ActorCritic)
            and policy.has_manual_gradients
            # A subclass with another objective needs autograd.
            and own.loss is PPO.loss
            and own.evaluate is PPO.evaluate
            and type(policy).unroll is ActorCritic.unroll
        )
        self._unsynced_buffers: list[torch.Tensor] = []
        """Buffers that each trainer would change in a different way."""
        self._buffer_backup: list[torch.Tensor] = []
        self._counters_backup = self._generator.get_state(), 0

    @classmethod
    def sampling(cls, config: PPOConfig) -> Sampling:
        """Fragments of the rollout length, with policy state where chunks start."""
        return Sampling(
            length=config.rollout_length,
            burn_in=config.burn_in,
            state_every=config.state_every,
            max_policy_age=config.max_policy_age,
        )

    @classmethod
    def check(cls, config: PPOConfig, policy: Policy) -> None:
        """PPO needs log_prob and value with every action, and a policy with `unroll`."""
        offered = policy.extras_spec if isinstance(policy.extras_spec, dict) else {}
        missing = [name for name in ("log_prob", "value") if name not in offered]
        name = type(policy).__name__
        if missing:
            raise ConfigError(
                f"algorithm: {cls.__name__} expects a policy with extras log_prob and value, "
                f"got {name} with {sorted(offered) or 'none'}. Use policy=actor_critic, or add "
                f"{' and '.join(missing)}."
            )
        if not callable(getattr(policy, "unroll", None)):
            raise ConfigError(
                f"algorithm: {cls.__name__} expects a policy with a method `unroll`, "
                f"got {name} without. See ActorCritic.unroll."
            )

    def make_optimizer(self) -> FlatOptimizer | torch.optim.Optimizer:
        """The optimizer of `self.policy`'s parameters: Adam, or one of `torch.optim`.

        An optimizer of torch must step by dense gradients alone (not LBFGS or SparseAdam). It may
        have several groups of parameters, and may leave parameters out. `learning_rate_schedule`
        scales its own learning rates; `algorithm.learning_rate` counts only where you pass it on.
        """
        config = self.config
        return Adam(self.policy.parameters(), lr=config.learning_rate, eps=config.adam_eps)

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
            log_prob, value = evaluate_all(self.policy, rollout)
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
        loss, terms = surrogate(*now, *self._objective(minibatch))
        return loss, LossTerms(*terms.unbind())._asdict()

    def value_loss(self, value: torch.Tensor, minibatch: Minibatch) -> torch.Tensor:
        """Half the squared critic error in the units of its last layer, for a loss of your own."""
        scale = getattr(self.policy, "value_scale", 1.0)
        return 0.5 * ((value - minibatch.target) / scale).square().mean()

    def evaluate(self, minibatch: Minibatch) -> PolicyOutputs:
        """Runs the policy over a minibatch with gradients; the burn-in runs without."""
        obs, state, skip = minibatch.obs, minibatch.policy_state, minibatch.burn_in
        is_first, active, mask = minibatch.is_first, minibatch.active, minibatch.action_mask
        if skip:
            with torch.no_grad():
                before = _ticks(obs, slice(0, skip))
                masks = None if mask is None else mask[:skip]
                state = self._unroll(
                    before, state, is_first[:skip], active[:skip], masks
                ).policy_state
            obs, is_first, active = _ticks(obs, slice(skip, None)), is_first[skip:], active[skip:]
            mask = None if mask is None else mask[skip:]
        distribution, value, _ = self._unroll(obs, state, is_first, active, mask)
        return PolicyOutputs(
            minibatch.select(distribution.log_prob(minibatch.all_action)),
            minibatch.select(distribution.entropy()),
            minibatch.select(value),
        )

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
            self._track_obs(rollout)
        if config.use_vtrace:
            rollout.bound_by_behaviour()
        rollout.set_targets(*self.targets(rollout))
        global_batch = GlobalBatch(rollout, batch.num_fragments, self.ranks)
        summary = self._summary(global_batch)
        self._track_returns(rollout)
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
            self._track_obs(rollout)
        for buffer in self._unsynced_buffers:
            buffer.copy_(self.ranks.gather(buffer)[0])
        self.num_updates += 1
        metrics = _means(records) | {name: float(value) for name, value in summary.items()}
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

    def join(self, ranks: Collective) -> None:
        """Learns with other trainers: statistics are of all data, other buffers the first one's."""
        super().join(ranks)
        together = ranks.count > 1
        self._unsynced_buffers = []
        for module in self.policy.modules():
            if isinstance(module, RunningNorm):
                module.gather = ranks.gather if together else None
            elif together:
                self._unsynced_buffers += module.buffers(recurse=False)

    def backup(self) -> None:
        """Copies all that an update changes into kept memory: no new pages for each update."""
        self.optimizer.backup()
        buffers = list(self.policy.buffers())
        if not self._buffer_backup:
            self._buffer_backup = [torch.empty_like(buffer) for buffer in buffers]
        for kept, buffer in zip(self._buffer_backup, buffers, strict=True):
            kept.copy_(buffer)
        self._counters_backup = self._generator.get_state(), self.num_updates

    def rollback(self) -> None:
        """Restores what the last `backup` copied."""
        self.optimizer.rollback()
        for kept, buffer in zip(self._buffer_backup, self.policy.buffers(), strict=True):
            buffer.copy_(kept)
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
            value_scale=getattr(self.policy, "value_scale", 1.0),
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
        self.optimizer.zero_grad()
        loss, metrics = self.loss(minibatch)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach(), metrics

    @torch.no_grad()
    def _find_gradients_fast(self, minibatch: Minibatch) -> tuple[torch.Tensor, Metrics]:
        """As `_find_gradients`, without a graph: so many small nodes take longer than their
        arithmetic."""
        policy = self.policy
        assert isinstance(policy, ActorCritic)
        obs = tree_map(lambda leaf: leaf[0], minibatch.obs)
        mask = None if minibatch.action_mask is None else minibatch.action_mask[0]
        action = minibatch.all_action[0]
        now = policy.forward_pass(obs, mask)
        log_prob = now.distribution.log_prob(action)
        minibatch.set_proximal(log_prob, now.value)
        result = surrogate_with_gradients(
            log_prob,
            now.distribution.entropy(),
            now.value,
            *self._objective(minibatch),
        )
        policy.backward_pass(now, action, result.of_log_prob, result.of_entropy, result.of_value)
        return result.loss, LossTerms(*result.terms.unbind())._asdict()

    def _step(self, minibatch: Minibatch) -> Metrics:
        """One optimizer step."""
        find = self._find_gradients_fast if self._fast else self._find_gradients
        loss, metrics = find(minibatch)
        if self.ranks.count > 1:
            loss, metrics = self._together(loss, metrics, minibatch.share)
        norm = self.optimizer.clip(self.config.max_grad_norm)
        if not math.isfinite(float(loss) + norm):
            raise LearnError(
                f"update {self.num_updates}: expected a finite loss and gradient, got loss "
                f"{float(loss):.4g} and gradient norm {norm:.4g}. The weights are as before this "
                "step. Look for NaN or huge numbers in observations and rewards "
                "(network.normalize_obs, algorithm.clip_reward), or lower algorithm.learning_rate."
            )
        self.optimizer.step()
        metrics["loss"] = loss
        metrics["grad_norm"] = loss.new_tensor(norm)
        return metrics

    def _together(
        self, loss: torch.Tensor, metrics: Metrics, share: float
    ) -> tuple[torch.Tensor, Metrics]:
        """Sums the gradient (in place), the loss and the metrics over all ranks."""
        numbers = torch.stack([loss, *metrics.values()]).to(self.optimizer.grad)
        own = torch.cat([self.optimizer.grad, numbers])
        total = self.ranks.sum(own.mul_(share) if share else torch.zeros_like(own))
        size = self.optimizer.grad.numel()
        self.optimizer.grad.copy_(total[:size])
        numbers = total[size:]
        return numbers[0], dict(zip(metrics, numbers[1:].unbind(), strict=True))

    def _summary(self, global_batch: GlobalBatch) -> Metrics:
        """Metrics of the global batch."""
        advantage = global_batch.select(global_batch.advantage)
        target = global_batch.select(global_batch.target)
        if not len(target):
            return {"num_samples": target.new_zeros(())}
        return {
            "num_samples": target.new_tensor(len(target)),
            "explained_variance": explained_variance(
                global_batch.select(global_batch.value), target
            ),
            "advantage_mean": advantage.mean(),
            "advantage_std": advantage.std(correction=0),
            "return_mean": target.mean(),
        }

    def _track_obs(self, rollout: Rollout) -> None:
        self._track("track_obs", *rollout.frames())

    def _track_returns(self, rollout: Rollout) -> None:
        self._track("track_returns", rollout.select(rollout.target))

    def _track(self, method: str, *values: Any) -> None:
        """Updates the policy's running statistics, if it has any."""
        track = getattr(self.policy, method, None)
        if track is None:
            return
        try:
            track(*values)
        except LearnError as error:
            raise LearnError(
                f"update {self.num_updates}: {error} Look at what the environment returns."
            ) from None

    def _unroll(self, *args: Any) -> Any:
        return self.policy.unroll(*args)  # type: ignore[operator]


def _ticks(tree: Tree, ticks: slice) -> Tree:
    return tree_map(lambda leaf: leaf[ticks], tree)


def _means(records: list[Metrics]) -> dict[str, float]:
    """The mean of each metric over minibatches, with one transfer from the device."""
    if not records:
        return {}
    names = list(records[0])
    table = torch.stack([torch.stack([m[name].float() for name in names]) for m in records])
    return dict(zip(names, table.mean(0).tolist(), strict=True))
