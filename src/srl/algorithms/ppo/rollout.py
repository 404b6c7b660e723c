"""A batch with the numbers of PPO, and the minibatches gathered from it.

For a policy without memory a minibatch is a flat index of shape [1, N], for one with memory
[burn-in + chunk, n]. Each leaf is gathered with it in one call.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from srl.algorithms.learning.sequences import Sequences, at, zero_outside
from srl.algorithms.ops.masking import normalized
from srl.algorithms.ppo.surrogate import MAX_WEIGHT
from srl.data.records import SampleBatch
from srl.data.tree import Tree
from srl.policies.nets.norm import RunningNorm
from srl.policies.protocol import Policy


@dataclass(slots=True)
class Minibatch:
    """The data of one optimizer step: inputs over [ticks, n], and the N samples in them that
    count."""

    obs: Tree
    """[ticks, n, ...] as the policy sees them; zeros where the policy was not asked."""
    policy_state: Tree
    """[n, ...] policy state as fed in at the first tick, or None."""
    is_first: torch.Tensor
    """bool [ticks, n]."""
    active: torch.Tensor
    """bool [ticks, n]: the policy was asked."""
    action_mask: torch.Tensor | None
    """bool [ticks, n, choices] or None."""
    burn_in: int
    """Leading ticks that only warm up the policy state."""
    all_action: torch.Tensor
    """[ticks - burn_in, n, ...]: the actions; zeros where none was taken."""
    valid: torch.Tensor | None
    """bool [ticks - burn_in, n]: where the N samples are, in order; None if they are all."""
    log_prob: torch.Tensor
    """float32 [N]: the proximal log-prob. It is the behaviour log-prob until `set_proximal`; that
    replaces it at the first use of samples of an older policy."""
    value: torch.Tensor
    """float32 [N]: the critic's estimate when the action was taken. If that was before the running
    statistics began, `set_proximal` replaces it by the current estimate."""
    advantage: torch.Tensor
    """float32 [N], normalised if the settings say so."""
    target: torch.Tensor
    """float32 [N]: what the critic should predict, in units of reward."""
    samples: torch.Tensor
    """int64 [N]: the flat index of each sample in the rollout."""
    index: torch.Tensor
    """int64 [ticks, n]: the flat index of each tick in the rollout."""
    behaviour_log_prob: torch.Tensor | None = None
    """float32 [N]: the behaviour log-prob; None if it is `log_prob` for all samples."""
    first_use: torch.Tensor | None = None
    """float32 [N]: 1 where an older policy took the sample and this is its first use, else 0. None:
    0 for all."""
    before_statistics: torch.Tensor | None = None
    """bool [N]: the action was taken before the policy's running statistics began. None: no action
    was."""
    share: float = 1.0
    """Share of the global minibatch that these samples are; 0 marks a sample that does not
    count."""

    def select(self, x: torch.Tensor) -> torch.Tensor:
        """Selects the [N, ...] samples that count from [ticks - burn_in, n, ...]."""
        return x.flatten(0, 1) if self.valid is None else x[self.valid]

    def set_proximal(self, log_prob: torch.Tensor, value: torch.Tensor) -> None:
        """Replaces log-probs and values by current ones, at the first use of samples of an older
        policy.

        `log_prob` becomes that of the current policy. A value from before the running statistics
        becomes the current estimate: clipping must not act on a change that no gradient made.
        """
        if self.first_use is not None:
            self.log_prob = torch.lerp(self.log_prob, log_prob, self.first_use)
        if self.before_statistics is not None:
            self.value = torch.where(self.before_statistics, value, self.value)

    def weighted_advantage(self) -> torch.Tensor:
        """The [N] advantages, with weights where an older policy took the sample: how much likelier
        its action is under the proximal policy. Call `set_proximal` first."""
        if self.behaviour_log_prob is None:
            return self.advantage
        weight = (self.log_prob - self.behaviour_log_prob).exp().clamp(max=MAX_WEIGHT)
        return weight * self.advantage


class Rollout(Sequences):
    """A SampleBatch on the device; `set_targets` adds advantages and value targets."""

    def __init__(self, batch: SampleBatch, policy: Policy, device: torch.device) -> None:
        super().__init__(batch, policy, device)
        data = batch.data
        self.log_prob, self.value = self.extras["log_prob"], self.extras["value"]
        self.advantage = torch.zeros(0)
        self.target = torch.zeros(0)
        self._numbers = torch.zeros(0)
        older = data.acted & (data.policy_version < batch.learner_version)
        self._has_older = bool(older[self.burn_in : -1].any())
        self._older = torch.from_numpy(older[:-1]).to(device, torch.float32)
        self.first_use = self._has_older
        """Whether older policies took some samples, and not all of them have been used yet."""
        self._before_statistics: torch.Tensor | None = None
        untrained = data.acted & (data.policy_version == 0)
        if untrained.any() and any(isinstance(m, RunningNorm) for m in policy.modules()):
            self._before_statistics = torch.from_numpy(untrained.reshape(-1)).to(device)

    def bound_by_behaviour(self) -> None:
        """Keeps the behaviour log-prob as the proximal one, also for samples of an older policy.

        The policy at their first use may be many versions newer. Bounded only by that policy, steps
        could lead anywhere.
        """
        self._has_older = self.first_use = False

    def set_targets(self, advantage_t: torch.Tensor, target_t: torch.Tensor) -> None:
        """Keeps [T, B] advantages and value targets for the minibatches."""
        self.advantage, self.target = advantage_t, target_t
        # Stacked, so that a minibatch gathers them all in one call.
        log_prob = self.log_prob[:-1]
        known = (log_prob, log_prob, self._older, self.value[:-1], advantage_t, target_t)
        self._numbers = torch.stack(known).flatten(1)

    def keep(self, minibatch: Minibatch) -> None:
        """Keeps the log-probs that `set_proximal` has set, for later uses of the samples."""
        if minibatch.share:
            self._numbers[0].index_copy_(0, minibatch.samples, minibatch.log_prob)

    def select(self, x: torch.Tensor) -> torch.Tensor:
        """Selects the [N] samples that count from [T, B] or [T + 1, B]."""
        return x[self.counts[: x.shape[0]]]

    def gather(
        self,
        index: torch.Tensor,
        burn_in: int,
        normalize: bool,
        global_minibatch: torch.Tensor | None = None,
    ) -> Minibatch:
        """The minibatch at a flat index [ticks, n].

        `global_minibatch` has the advantages to normalise by, if this is only a part of it.
        """
        chunked = self.policy_state is not None
        loss_index = index[burn_in:]
        action = at(self.action.flatten(0, 1), loss_index)
        is_first = at(self.is_first.flatten(), index)
        active = torch.ones_like(is_first)
        valid: torch.Tensor | None = None
        samples = loss_index.flatten()
        if chunked and not self.all_count:
            active = at(self.active.flatten(), index)
            counted = at(self.counts.flatten(), loss_index)
            if not bool(counted.all()):
                valid, samples = counted, loss_index[counted]
                action = zero_outside(counted, action)
        numbers = self._numbers.index_select(1, samples)
        log_prob, behaviour_log_prob, older, value, advantage, target = numbers.unbind()
        mask, before = self.action_mask, self._before_statistics
        return Minibatch(
            obs=self.obs_at(index, active if chunked and not self.all_active else None),
            policy_state=self.state_at(index[0]) if chunked else None,
            is_first=is_first,
            active=active,
            action_mask=None if mask is None else at(mask.flatten(0, 1), index),
            burn_in=burn_in,
            all_action=action,
            valid=valid,
            log_prob=log_prob,
            value=value,
            advantage=normalized(advantage, global_minibatch) if normalize else advantage,
            target=target,
            samples=samples,
            index=index,
            behaviour_log_prob=behaviour_log_prob if self._has_older else None,
            first_use=older if self.first_use else None,
            before_statistics=None if before is None else at(before, samples),
        )
