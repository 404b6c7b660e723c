"""What learners of one loss share: the optimizer, running statistics, and their state."""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property
from typing import ClassVar

import torch
from torch import nn

from srl.algorithms.collective import Collective
from srl.algorithms.gradient_config import GradientConfig
from srl.algorithms.learning.buffers import PolicyBuffers, track
from srl.algorithms.learning.flat_optimizer import FlatOptimizer
from srl.algorithms.learning.module_state import module_state, restore_module
from srl.algorithms.learning.sequences import Sequences
from srl.algorithms.learning.step import Metrics, means, sum_over_ranks, take_step
from srl.algorithms.learning.torch_optimizer import as_flat
from srl.algorithms.protocol import Algorithm, seeded_weights
from srl.data.tree import Tree
from srl.policies.protocol import (
    Policy,
    TracksStatistics,
    Unrolls,
    require_protocol,
)


class GradientLearner(Algorithm):
    """Base class of algorithms that train a policy by the gradients of one loss."""

    Config = GradientConfig
    config: GradientConfig
    asks_for: ClassVar[type] = Unrolls
    """The protocol that the policy must have."""
    advice: ClassVar[str] = "Write it, as ActorCritic does."
    """What to do where it has not."""

    def __init__(
        self,
        policy: Policy,
        config: GradientConfig,
        *,
        device: str | torch.device = "cpu",
        seed: int = 0,
    ) -> None:
        self.check(config, policy)
        assert isinstance(policy, TracksStatistics)
        self.device = torch.device(device)
        self.policy = policy.to(self.device)
        self._statistics: TracksStatistics = policy
        self.config = config
        with seeded_weights(seed):
            self.own_modules = nn.ModuleDict(self.make_modules()).to(self.device)
        """What `make_modules` made."""
        self.trained: nn.Module = policy
        """The policy, with the learner's own modules beside it if it has some: what the optimizer
        moves."""
        if len(self.own_modules):
            self.trained = nn.ModuleDict({"policy": policy, "own": self.own_modules})
        self.optimizer = as_flat(self.make_optimizer(), self.trained, config.learning_rate)
        self.num_updates = 0
        self.progress = 0.0
        """Share of the experiment that is over, for schedules."""
        self._buffers = PolicyBuffers(self.trained)
        self._num_updates_backup = 0

    @cached_property
    def _unrolls(self) -> Unrolls:
        """The policy, for algorithms that ask for sequences."""
        assert isinstance(self.policy, Unrolls)
        return self.policy

    @classmethod
    def check(cls, config: GradientConfig, policy: Policy) -> None:
        """It needs what `asks_for` says, and running statistics."""
        require_protocol(policy, cls.asks_for, cls.__name__, cls.advice)
        require_protocol(
            policy,
            TracksStatistics,
            cls.__name__,
            "If it has no running statistics, inherit TracksStatistics, which does nothing.",
        )

    def make_modules(self) -> dict[str, nn.Module]:
        """Modules that are trained beside the policy, by name, such as a critic that sees more than
        an agent does. They are saved in checkpoints, and not published."""
        return {}

    @abstractmethod
    def make_optimizer(self) -> FlatOptimizer | torch.optim.Optimizer:
        """The optimizer of `self.trained`'s parameters: one of SRL, or one of `torch.optim`.

        An optimizer of torch must step by dense gradients alone (not LBFGS or SparseAdam). It may
        have several groups of parameters, and may leave parameters out. `learning_rate_schedule`
        scales its own learning rates; `algorithm.learning_rate` counts only where you pass it on.
        """

    def state(self) -> Tree:
        """The optimizer's state by parameter name, the number of updates, and the weights of the
        learner's own modules."""
        state: dict[str, Tree] = {
            "optimizer": self.optimizer.state(self.trained),
            "num_updates": self.num_updates,
        }
        return {**state, "modules": module_state(self.own_modules)} if self.own_modules else state

    def restore(self, state: Tree) -> None:
        """Continues from `state`; bit for bit if the policy's weights are restored, too."""
        if self.own_modules:
            restore_module(self.own_modules, state["modules"], "learner")
        self.optimizer.restore(self.trained, state["optimizer"])
        self.num_updates = int(state["num_updates"])

    def join(self, collective: Collective) -> None:
        """Learns with other trainers: statistics are of all data, other buffers the first one's."""
        super().join(collective)
        self._buffers.join(collective)

    def backup(self) -> None:
        """Copies all that an update changes into kept memory: no new pages for each update."""
        self.optimizer.backup()
        self._buffers.backup()
        self._num_updates_backup = self.num_updates

    def rollback(self) -> None:
        """Restores what the last `backup` copied."""
        self.optimizer.rollback()
        self._buffers.rollback()
        self.num_updates = self._num_updates_backup

    # -- the parts of an update --------------------------------------------------------------------

    def _start_update(self, progress: float, sequences: Sequences) -> None:
        """Sets the schedules, and takes in the observations of the very first batch.

        Fresh networks choose almost uniformly for any input, so the statistics may change before
        the first training. Later that would move the policy away from the log-probs in the batch.
        """
        self.progress = progress
        self.optimizer.lr = self.config.learning_rate_at(progress)
        if self.num_updates == 0:
            self._track_obs(sequences)

    def _track_obs(self, sequences: Sequences) -> None:
        """Updates the observation statistics with a batch."""
        track(self._statistics.track_obs, *sequences.frames(), update=self.num_updates)

    def _apply(self, loss: torch.Tensor, metrics: Metrics, share: float) -> Metrics:
        """One optimizer step by the gradients that the parameters have.

        `share` is this rank's share of the global minibatch.
        """
        loss, metrics = sum_over_ranks(self.collective, self.optimizer, loss, metrics, share)
        norm = take_step(self.optimizer, loss, self.config.max_grad_norm, self.num_updates)
        metrics["loss"] = loss
        metrics["grad_norm"] = loss.new_tensor(norm)
        return metrics

    def _finish_update(
        self, sequences: Sequences, records: list[Metrics], summary: Metrics
    ) -> dict[str, float]:
        """Takes in the observations of a batch after the training; returns the update's metrics.

        `records` has those of each optimizer step, and `summary` those of the whole batch.
        """
        if self.num_updates > 0:
            self._track_obs(sequences)
        self._buffers.synchronize()
        self.num_updates += 1
        return {
            **means(records),
            **{name: float(value) for name, value in summary.items()},
            "learning_rate": self.optimizer.lr,
        }
