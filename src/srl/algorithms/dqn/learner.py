"""Deep Q-learning (Mnih et al. 2015) and what was added to it: double, dueling, n-step,
distributional and recurrent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from srl.algorithms.dqn.config import DQNConfig
from srl.algorithms.dqn.windows import WindowBatch, WindowPart
from srl.algorithms.learning.adam import Adam
from srl.algorithms.learning.flat_optimizer import FlatOptimizer
from srl.algorithms.learning.gradient import GradientLearner
from srl.algorithms.learning.step import Metrics
from srl.algorithms.learning.target_network import TargetNetwork
from srl.algorithms.ops.masking import masked_mean
from srl.algorithms.ops.priorities import window_priority
from srl.algorithms.ops.quantile import quantile_huber
from srl.algorithms.ops.rescaling import rescale, unscale
from srl.data.records import SampleBatch, TrainResult
from srl.data.tree import Tree, leaves
from srl.errors import ConfigError, LearnError
from srl.policies.protocol import ActionValues, Policy, require_discrete


class WindowLoss(NamedTuple):
    """The loss of some windows."""

    total: torch.Tensor
    """The mean over actions."""
    error: torch.Tensor
    """float [T, b]: target minus prediction."""
    metrics: Metrics


class DQN(GradientLearner):
    """Learns the values of actions from transitions of any age.

    For an algorithm of your own, override what differs in a subclass: `loss` (windows to a scalar),
    `targets`, `make_windows` or `make_optimizer`.
    """

    Config = DQNConfig
    data_parallel = True
    handles_stale_samples = True
    config: DQNConfig
    asks_for = ActionValues
    advice = "Set network.name=q_network."

    def __init__(
        self,
        policy: Policy,
        config: DQNConfig,
        *,
        device: str | torch.device = "cpu",
        seed: int = 0,
    ) -> None:
        super().__init__(policy, config, device=device, seed=seed)
        self.target = TargetNetwork(self.trained, tau=config.tau, every=config.target_steps)
        """Of the policy, and of the learner's own modules."""
        copied = self.target.module
        target = copied["policy"] if isinstance(copied, nn.ModuleDict) else copied
        assert isinstance(policy, ActionValues)
        assert isinstance(target, ActionValues)
        self._online: ActionValues = policy
        self._target: ActionValues = target
        self._online.set_epsilon(config.epsilon_at(0))

    @classmethod
    def check(cls, config: DQNConfig, policy: Policy) -> None:  # type: ignore[override]
        """It needs a value for each action, and windows that fit the policy's memory."""
        require_discrete(policy.agent, f"algorithm: {cls.__name__}")
        super().check(config, policy)
        assert isinstance(policy, ActionValues)
        if policy.num_quantiles and config.huber_delta is None:
            raise ConfigError(
                "algorithm.huber_delta: expected a number for a network with quantiles "
                "(network.num_quantiles), got none. Set algorithm.huber_delta=1."
            )
        has_memory = bool(leaves(policy.state_spec))
        if has_memory and config.sequence_length == 1:
            raise ConfigError(
                "algorithm.sequence_length: expected at least 2 for a network with memory, which "
                "learns what to remember from several ticks at once, got 1. Set for example "
                "algorithm.sequence_length=16 and algorithm.burn_in=8."
            )
        if config.burn_in and not has_memory:
            raise ConfigError(
                "algorithm.burn_in: expected 0 for a network without memory, which has nothing to "
                f"warm up, got {config.burn_in}. Set network.recurrent=lstm, or "
                "algorithm.burn_in=0."
            )

    def make_optimizer(self) -> FlatOptimizer | torch.optim.Optimizer:
        """The optimizer of `self.policy`'s parameters: Adam, or one of `torch.optim`.

        An optimizer of torch must step by dense gradients alone (not LBFGS or SparseAdam).
        `learning_rate_schedule` scales its own learning rates.
        """
        config = self.config
        return Adam(
            self.trained.parameters(),
            lr=config.learning_rate,
            eps=config.adam_eps,
            use_kernels=self.policy.kernels != "reference",
        )

    def make_windows(self, batch: SampleBatch) -> WindowBatch:
        """The windows of a batch, on the device."""
        config = self.config
        return WindowBatch(
            batch,
            self.policy,
            self.device,
            gamma=config.gamma,
            n=config.n_steps,
            reward_clip=config.clip_reward,
        )

    def targets(self, windows: WindowPart, future: torch.Tensor) -> torch.Tensor:
        """The values that actions should have had: [T, b], or their quantiles [T, b, quantiles].

        `future` are the target network's values of the actions that follow, in the same shape.
        """
        rescaled = self.config.value_rescaling
        reward, discount = windows.reward, windows.discount
        if future.dim() > reward.dim():
            reward, discount = reward.unsqueeze(-1), discount.unsqueeze(-1)
        target = torch.addcmul(reward, discount, unscale(future) if rescaled else future)
        return rescale(target) if rescaled else target

    def loss(self, batch: WindowBatch, windows: WindowPart) -> WindowLoss:
        """How far the values of actions are from their targets, weighted by window."""
        outcome = batch.outcome(windows, self._online, self._target, double=self.config.double)
        target, predicted = self.targets(windows, outcome.future), outcome.predicted
        if self._online.num_quantiles:
            delta = self.config.huber_delta
            assert delta is not None
            each = quantile_huber(predicted, target, delta)
            with torch.no_grad():
                target, predicted = target.mean(-1), predicted.mean(-1)
        else:
            each = self._regression(predicted, target)
        error = (target - predicted).detach()
        weighted = each if windows.weight is None else each * windows.weight
        valid = windows.valid
        metrics = {
            "q": masked_mean(predicted.detach(), valid),
            "td_error": masked_mean(error.abs(), valid),
        }
        return WindowLoss(masked_mean(weighted, valid), error, metrics)

    def update(self, batch: SampleBatch, progress: float) -> Iterator[TrainResult | None]:
        """One learner step: `gradient_steps` gradient steps, with None after each."""
        config = self.config
        windows = self.make_windows(batch)
        self._start_update(progress, windows.sequences)
        windows.weigh(config.importance_exponent_at(progress), self.collective)
        parts = list(windows.split(config.gradient_steps))
        shares = self._shares(parts)
        records: list[Metrics] = []
        priorities: list[torch.Tensor] = []
        for part, share in zip(parts, shares, strict=True):
            self.target.step()
            self.optimizer.zero_grad()
            loss = self.loss(windows, part)
            loss.total.backward()  # type: ignore[no-untyped-call]
            records.append(self._apply(loss.total.detach(), loss.metrics, share))
            if windows.has_keys:
                priorities.append(windows.by_row(window_priority(loss.error, part.valid)))
            yield None
        epsilon = config.epsilon_at(self.target.num_steps)
        self._online.set_epsilon(epsilon)
        metrics = self._finish_update(windows.sequences, records, {})
        metrics |= {"epsilon": epsilon, "gradient_steps": float(self.target.num_steps)}
        yield TrainResult(metrics, _as_array(priorities))

    def state(self) -> Tree:
        """That of the base class, and the target network."""
        return {**super().state(), "target": self.target.state()}

    def restore(self, state: Tree) -> None:
        """Continues from `state`; bit for bit if the policy's weights are restored, too."""
        super().restore(state)
        self.target.restore(state["target"])

    def backup(self) -> None:
        """Copies all that an update changes into kept memory: no new pages for each update."""
        super().backup()
        self.target.backup()

    def rollback(self) -> None:
        """Restores what the last `backup` copied."""
        super().rollback()
        self.target.rollback()

    def _regression(self, predicted: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """The loss of each value [T, b]: Huber's, or half the squared error."""
        delta = self.config.huber_delta
        if delta is None:
            return 0.5 * (target - predicted).square()
        return F.huber_loss(predicted, target, reduction="none", delta=delta)

    def _shares(self, parts: list[WindowPart]) -> list[float]:
        """This rank's share of the actions of each gradient step."""
        own = torch.stack([part.valid.sum() for part in parts]).float()
        total = self.collective.sum(own.clone())
        if not bool(total.any()):
            raise LearnError(
                f"update {self.num_updates}: expected windows in which an action has "
                f"consequences, got none in a whole batch. Windows have {parts[0].valid.shape[0]} "
                "ticks to learn from; where agents take turns, raise algorithm.sequence_length "
                "until an agent acts twice."
            )
        shares: list[float] = (own / total.clamp(min=1.0)).tolist()
        return shares


def _as_array(priorities: list[torch.Tensor]) -> np.ndarray | None:
    return torch.cat(priorities).cpu().numpy() if priorities else None
