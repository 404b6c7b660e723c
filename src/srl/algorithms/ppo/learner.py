"""Proximal policy optimisation (Schulman et al. 2017), over fragments that hold parts of several
episodes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from srl.algorithms.adam import Adam
from srl.algorithms.ops.gae import gae
from srl.algorithms.ops.masking import explained_variance
from srl.algorithms.ops.vtrace import vtrace
from srl.algorithms.ppo.config import PPOConfig
from srl.algorithms.ppo.minibatches import minibatches
from srl.algorithms.ppo.optimizer_state import optimizer_state, restore_optimizer
from srl.algorithms.ppo.rollout import Minibatch, Rollout, evaluate_all
from srl.algorithms.ppo.surrogate import Samples, Terms, Weights, surrogate, surrogate_by_hand
from srl.algorithms.ppo.whole import Whole
from srl.algorithms.protocol import Algorithm, Sampling, seeded
from srl.algorithms.ranks import Ranks
from srl.data.records import SampleBatch, TrainResult
from srl.data.tree import Tree, tree_map
from srl.errors import ConfigError, LearnError
from srl.policies.actor_critic import ActorCritic
from srl.policies.nets.norm import RunningNorm
from srl.policies.protocol import Policy

Metrics = dict[str, torch.Tensor]


class Evaluation(NamedTuple):
    """What the policy thinks now of the N samples of a minibatch, with gradients."""

    log_prob: torch.Tensor
    entropy: torch.Tensor
    value: torch.Tensor


class PPO(Algorithm):
    """Clipped policy gradients with a learned value baseline.

    For an algorithm of your own, subclass it and override what differs: `loss` (one minibatch to a
    scalar), `targets` (a batch to advantages and value targets), or `make_optimizer`.
    """

    Config = PPOConfig
    data_parallel = True
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
        self.optimizer = self.make_optimizer()
        self.num_updates = 0
        self.progress = 0.0
        """Share of the experiment that is over, for schedules."""
        self._generator = seeded(seed)
        own = type(self)
        self._by_hand = (
            isinstance(policy, ActorCritic)
            and policy.pulls
            # Whoever has an objective of their own leaves its gradient to torch.
            and own.loss is PPO.loss
            and own.evaluate is PPO.evaluate
            and type(policy).unroll is ActorCritic.unroll
        )
        self._loose_buffers: list[torch.Tensor] = []
        """Buffers that each trainer would change in its own way."""
        self._aside: list[torch.Tensor] = []
        self._counts_aside = self._generator.get_state(), 0

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
        """PPO needs log_prob and value with every action, and a policy that can be unrolled."""
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

    def make_optimizer(self) -> Adam:
        """Adam over all parameters; one of your own has the same methods and attributes."""
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
        minibatch.meet(now.log_prob.detach())
        loss, terms = surrogate(*now, *self._objective(minibatch))
        return loss, Terms(*terms.unbind())._asdict()

    def value_loss(self, value: torch.Tensor, minibatch: Minibatch) -> torch.Tensor:
        """For a loss of your own: half the squared error of the critic, in the units that its last
        layer predicts in."""
        scale = getattr(self.policy, "value_scale", 1.0)
        return 0.5 * ((value - minibatch.target) / scale).square().mean()

    def evaluate(self, minibatch: Minibatch) -> Evaluation:
        """Runs the policy over a minibatch with gradients; the burn-in runs without."""
        obs, state, skip = minibatch.obs, minibatch.state, minibatch.burn_in
        is_first, active, mask = minibatch.is_first, minibatch.active, minibatch.action_mask
        if skip:
            with torch.no_grad():
                before = _ticks(obs, slice(0, skip))
                masks = None if mask is None else mask[:skip]
                state = self._unroll(before, state, is_first[:skip], active[:skip], masks).state
            obs, is_first, active = _ticks(obs, slice(skip, None)), is_first[skip:], active[skip:]
            mask = None if mask is None else mask[skip:]
        distribution, value, _ = self._unroll(obs, state, is_first, active, mask)
        return Evaluation(
            minibatch.select(distribution.log_prob(minibatch.all_action)),
            minibatch.select(distribution.entropy()),
            minibatch.select(value),
        )

    def clipped_reward(self, reward: torch.Tensor) -> torch.Tensor:
        """Rewards as the loss sees them."""
        match self.config.clip_reward:
            case None:
                return reward
            case "sign":
                return reward.sign()
            case bound:
                return reward.clamp(-float(bound), float(bound))

    def update(self, batch: SampleBatch, progress: float) -> Iterator[TrainResult | None]:
        """One learner step: targets once, then epochs of minibatches; None after each of them."""
        config = self.config
        self.progress = progress
        learning_rate = config.learning_rate_at(progress)
        self.optimizer.lr = learning_rate
        rollout = Rollout(batch, self.policy, self.device)
        first = self.num_updates == 0
        if first:
            # Fresh networks choose almost uniformly whatever they see, so this first time the
            # statistics can be taken before training; later that would move the policy away from
            # the log_probs of the rollout.
            self._track_obs(rollout)
        if config.use_vtrace:
            rollout.bound_by_taken()
        rollout.set_targets(*self.targets(rollout))
        whole = Whole(rollout, len(batch.item_ids), self.ranks)
        summary = self._summary(whole)
        self._track_returns(rollout)
        records: list[Metrics] = []
        epochs_done = 0
        for _ in range(config.epochs):
            start = len(records)
            for minibatch in minibatches(
                rollout,
                whole,
                config.minibatches,
                config.chunk_ticks,
                self._generator,
                config.normalize_advantages,
            ):
                records.append(self._step(minibatch))
                if rollout.unmet and config.epochs > 1:
                    rollout.keep(minibatch)
                yield None
            rollout.unmet = False
            epochs_done += len(records) > start
            if config.target_kl is not None and len(records) > start:
                divergence = torch.stack([m["approx_kl"] for m in records[start:]]).mean()
                if float(divergence) > config.target_kl:
                    break
        if not first:
            self._track_obs(rollout)
        for buffer in self._loose_buffers:
            buffer.copy_(self.ranks.gather(buffer)[0])
        self.num_updates += 1
        metrics = _means(records) | {name: float(value) for name, value in summary.items()}
        metrics["learning_rate"] = learning_rate
        metrics["entropy_coefficient"] = config.entropy_coefficient_at(progress)
        metrics["epochs_done"] = float(epochs_done)
        yield TrainResult(metrics)

    def state(self) -> Tree:
        """Adam's moments by parameter name, the random state and the number of updates."""
        return {
            "optimizer": optimizer_state(self.optimizer, self.policy),
            "generator": self._generator.get_state().numpy().copy(),
            "num_updates": self.num_updates,
        }

    def restore(self, state: Tree) -> None:
        """Continues from `state`, to the bit if the policy's weights are restored too."""
        restore_optimizer(self.optimizer, self.policy, state["optimizer"])
        self._generator.set_state(torch.from_numpy(state["generator"].copy()))
        self.num_updates = int(state["num_updates"])

    def join(self, ranks: Ranks) -> None:
        """Running statistics are of what all trainers see; other buffers are the first one's."""
        super().join(ranks)
        together = ranks.count > 1
        self._loose_buffers = []
        for module in self.policy.modules():
            if isinstance(module, RunningNorm):
                module.gather = ranks.gather if together else None
            elif together:
                self._loose_buffers += module.buffers(recurse=False)

    def remember(self) -> None:
        """Copies into memory that is kept for them: no new pages for each update."""
        changing = self._changing()
        if not self._aside:
            self._aside = [torch.empty_like(tensor) for tensor in changing]
        for kept, tensor in zip(self._aside, changing, strict=True):
            kept.copy_(tensor)
        self._counts_aside = self._generator.get_state(), self.num_updates

    def undo(self) -> None:
        """Back to when `remember` was called."""
        for kept, tensor in zip(self._aside, self._changing(), strict=True):
            tensor.copy_(kept)
        generator, self.num_updates = self._counts_aside
        self._generator.set_state(generator)

    def _changing(self) -> list[torch.Tensor]:
        """The tensors that an update changes."""
        return [*self.optimizer.changing, *self.policy.buffers()]

    def _objective(self, minibatch: Minibatch) -> tuple[Samples, Weights]:
        """What the objective needs beside what the policy thinks now."""
        config = self.config
        samples = Samples(
            log_prob=minibatch.log_prob,
            taken=minibatch.taken,
            value=minibatch.value,
            advantage=minibatch.advantage,
            target=minibatch.target,
            value_scale=getattr(self.policy, "value_scale", 1.0),
        )
        weights = Weights(
            clip=config.clip,
            value_clip=config.value_clip,
            value_coefficient=config.value_coefficient,
            entropy_coefficient=config.entropy_coefficient_at(self.progress),
        )
        return samples, weights

    def _find_gradients(self, minibatch: Minibatch) -> tuple[torch.Tensor, Metrics]:
        """The loss, with the gradients of all parameters where they are kept."""
        self.optimizer.zero_grad()
        loss, metrics = self.loss(minibatch)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach(), metrics

    @torch.no_grad()
    def _find_gradients_by_hand(self, minibatch: Minibatch) -> tuple[torch.Tensor, Metrics]:
        """The same for a policy that finds its gradients itself: a graph of so many small nodes
        takes longer than their arithmetic."""
        policy = self.policy
        assert isinstance(policy, ActorCritic)
        obs = tree_map(lambda leaf: leaf[0], minibatch.obs)
        mask = None if minibatch.action_mask is None else minibatch.action_mask[0]
        action = minibatch.all_action[0]
        now = policy.push(obs, mask)
        log_prob = now.distribution.log_prob(action)
        minibatch.meet(log_prob)
        pulled = surrogate_by_hand(
            log_prob,
            now.distribution.entropy(),
            now.value,
            *self._objective(minibatch),
        )
        policy.pull(now, action, pulled.of_log_prob, pulled.of_entropy, pulled.of_value)
        return pulled.loss, Terms(*pulled.terms.unbind())._asdict()

    def _step(self, minibatch: Minibatch) -> Metrics:
        """One optimizer step."""
        find = self._find_gradients_by_hand if self._by_hand else self._find_gradients
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
        """The gradient, the loss and the metrics of all ranks' samples, in one sum."""
        numbers = torch.stack([loss, *metrics.values()]).to(self.optimizer.grad)
        own = torch.cat([self.optimizer.grad, numbers])
        total = self.ranks.sum(own.mul_(share) if share else torch.zeros_like(own))
        size = self.optimizer.grad.numel()
        self.optimizer.grad.copy_(total[:size])
        numbers = total[size:]
        return numbers[0], dict(zip(metrics, numbers[1:].unbind(), strict=True))

    def _summary(self, whole: Whole) -> Metrics:
        """What the batch as a whole is like."""
        advantage = whole.select(whole.advantage)
        target = whole.select(whole.target)
        if not len(target):
            return {"num_samples": target.new_zeros(())}
        return {
            "num_samples": target.new_tensor(len(target)),
            "explained_variance": explained_variance(whole.select(whole.value), target),
            "advantage_mean": advantage.mean(),
            "advantage_std": advantage.std(correction=0),
            "return_mean": target.mean(),
        }

    def _track_obs(self, rollout: Rollout) -> None:
        self._track("track_obs", *rollout.frames())

    def _track_returns(self, rollout: Rollout) -> None:
        self._track("track_returns", rollout.select(rollout.target))

    def _track(self, method: str, *values: Any) -> None:
        """Feeds the policy's statistics, if it keeps any."""
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
