"""The windows of a batch: what followed each action, and the values that targets need."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch

from srl.algorithms.collective import Collective
from srl.algorithms.config import RewardClip
from srl.algorithms.learning.sequences import Sequences, at
from srl.algorithms.ops.action_values import greedy_action, value_of
from srl.algorithms.ops.n_step import n_steps
from srl.algorithms.ops.priorities import importance_weight
from srl.algorithms.ops.rewards import clip_reward
from srl.data.records import SampleBatch
from srl.data.tree import tree_map
from srl.policies.protocol import ActionValues, Policy


class ActionOutcome(NamedTuple):
    """What a loss compares, for [T, b] ticks, with one more axis for quantiles."""

    predicted: torch.Tensor
    """The values of the actions that were taken, with gradients."""
    future: torch.Tensor
    """The target network's values of the best next actions, without gradients."""


@dataclass
class WindowPart:
    """Some windows of a batch, side by side: [T, b] ticks that a loss sees."""

    columns: torch.Tensor
    """int64 [b]: the numbers of the windows in the batch, which are rows of it."""
    valid: torch.Tensor
    """bool [T, b]: an action was taken, and it is known what it led to."""
    reward: torch.Tensor
    """float [T, b]: the discounted sum of up to n rewards."""
    discount: torch.Tensor
    """float [T, b]: the discount of the value that follows."""
    bootstrap: torch.Tensor
    """int64 [T, b]: the tick of the batch whose value follows."""
    weight: torch.Tensor | None
    """float [b]: the importance of each window, or None: 1."""


class WindowBatch:
    """A batch of windows on the learner's device, and how networks see them."""

    width = 1
    """Rows of a window."""

    def __init__(
        self,
        batch: SampleBatch,
        policy: Policy,
        device: torch.device,
        *,
        gamma: float,
        n: int,
        reward_clip: RewardClip = None,
    ) -> None:
        self.sequences = seen = Sequences(batch, policy, device)
        first, self.ticks = seen.burn_in, seen.ticks - seen.burn_in - seen.bootstrap
        self.reward = clip_reward(seen.reward, reward_clip)
        """float [ticks, rows]: the rewards that a loss sees."""
        steps = n_steps(**self.game(first), gamma=gamma, n=n)
        row = seen.row if isinstance(seen.row, dict) else {}
        self.has_keys = "key" in row
        """Whether priorities can be returned."""
        weight = row.get("weight")
        self.all = WindowPart(
            columns=torch.arange(seen.rows // self.width, device=device),
            valid=steps.valid_t[: self.ticks],
            reward=steps.reward_t[: self.ticks],
            discount=steps.discount_t[: self.ticks],
            bootstrap=steps.bootstrap_t[: self.ticks] + first,
            weight=None if weight is None else weight[:: self.width],
        )
        self._active = None if seen.all_active else seen.active.flatten()

    def game(self, first: int) -> dict[str, torch.Tensor]:
        """What was done and earned in windows from a tick on, as `n_steps` takes it."""
        seen = self.sequences
        return {
            "reward": self.reward[first:],
            "acted": seen.acted[first:],
            "terminated": seen.terminated[first:],
            "truncated": seen.truncated[first:],
        }

    def by_row(self, x: torch.Tensor) -> torch.Tensor:
        """Numbers [b] of windows as numbers of their rows."""
        return x.repeat_interleave(self.width)

    def weigh(self, exponent: float, collective: Collective) -> None:
        """Makes importance weights of what the replay says of its draws, if it does so.

        They are divided by the largest one in the batches of all ranks.
        """
        given = self.all.weight
        if given is not None:
            largest = collective.gather(given.amax()).amax()
            self.all.weight = importance_weight(given, exponent, largest)

    def split(self, parts: int) -> Iterator[WindowPart]:
        """All windows in so many parts, in order."""
        whole, weight = self.all, self.all.weight
        for columns in whole.columns.tensor_split(parts):
            start = int(columns[0]) if len(columns) else 0
            part = slice(start, start + len(columns))
            yield WindowPart(
                columns=columns,
                valid=whole.valid[:, part],
                reward=whole.reward[:, part],
                discount=whole.discount[:, part],
                bootstrap=whole.bootstrap[:, part],
                weight=None if weight is None else weight[part],
            )

    def outcome(
        self, windows: WindowPart, online: ActionValues, target: ActionValues, *, double: bool
    ) -> ActionOutcome:
        """Values of the actions that were taken, and of those that follow; with `double` the online
        network chooses the latter."""
        if self.sequences.policy_state is None:
            return self._without_memory(windows, online, target, double)
        return self._with_memory(windows, online, target, double)

    def _without_memory(
        self, windows: WindowPart, online: ActionValues, target: ActionValues, double: bool
    ) -> ActionOutcome:
        """Looks only at the ticks of actions, and at those that follow."""
        seen, rows = self.sequences, self.sequences.rows
        ticks = torch.arange(self.ticks, device=seen.device).unsqueeze(1) + seen.burn_in
        now, later = ticks * rows + windows.columns, windows.bootstrap * rows + windows.columns
        predicted = value_of(self._values(online, now), at(seen.action.flatten(), now))
        with torch.no_grad():
            future = self._values(target, later)
            chooser = self._values(online, later) if double else future
            best = greedy_action(_means(chooser, online), self._mask(later))
            return ActionOutcome(predicted, value_of(future, best))

    def _values(self, network: ActionValues, index: torch.Tensor) -> torch.Tensor:
        """The action values at a flat index [ticks, n] without policy state."""
        seen = self.sequences
        active = None if self._active is None else self._active[index]
        obs, is_first = seen.obs_at(index, active), at(seen.is_first.flatten(), index)
        asked = torch.ones_like(is_first) if active is None else active
        return network.unroll_values(obs, None, is_first, asked).value

    def _with_memory(
        self, windows: WindowPart, online: ActionValues, target: ActionValues, double: bool
    ) -> ActionOutcome:
        """Runs both networks over all ticks of windows, from the policy state that is stored."""
        seen, columns, first = self.sequences, windows.columns, self.sequences.burn_in
        ticks = torch.arange(seen.ticks, device=seen.device).unsqueeze(1)
        index = ticks * seen.rows + columns
        active = None if self._active is None else self._active[index]
        obs, is_first = seen.obs_at(index, active), at(seen.is_first.flatten(), index)
        asked = torch.ones_like(is_first) if active is None else active
        start = seen.state_at(columns)
        with torch.no_grad():
            future = target.unroll_values(obs, start, is_first, asked).value[first:]
            if first:
                warm = (tree_map(lambda x: x[:first], obs), start, is_first[:first], asked[:first])
                start = online.unroll_values(*warm).policy_state
        own = tree_map(lambda x: x[first:], obs)
        value = online.unroll_values(own, start, is_first[first:], asked[first:]).value
        action = at(seen.action.flatten(), index[first : first + self.ticks])
        predicted = value_of(value[: self.ticks], action)
        chooser = value.detach() if double else future
        best = greedy_action(_means(chooser, online), self._mask(index[first:]))
        return ActionOutcome(predicted, at_ticks(value_of(future, best), windows.bootstrap - first))

    def _mask(self, index: torch.Tensor) -> torch.Tensor | None:
        mask = self.sequences.action_mask
        return None if mask is None else at(mask.flatten(0, 1), index)


def _means(value: torch.Tensor, network: ActionValues) -> torch.Tensor:
    """The value of each action, [..., actions]: the mean of its quantiles, if it has some."""
    return value.mean(-1) if network.num_quantiles else value


def at_ticks(x: torch.Tensor, tick: torch.Tensor) -> torch.Tensor:
    """`x` [ticks, b, ...] at a tick of each of [T, b]."""
    index = tick.reshape(*tick.shape, *(1,) * (x.dim() - 2)).expand(*tick.shape, *x.shape[2:])
    return x.gather(0, index)
