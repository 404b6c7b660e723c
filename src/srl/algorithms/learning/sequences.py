"""A consumed batch as tensors on the learner's device, with frames stacked where they are read.

One flat index, tick * B + row, addresses everything.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch

from srl.algorithms.learning.transfer import to_device
from srl.data.records import SampleBatch
from srl.data.spec import ArraySpec
from srl.data.stacking import stack_index
from srl.data.tree import Tree, tree_map
from srl.policies.protocol import Policy

_USED = (
    *("obs", "is_first", "terminated", "truncated", "acted", "action", "reward"),
    *("extras", "policy_state", "action_mask", "row"),
)


class Sequences:
    """A SampleBatch on the device: [T, B] ticks, of which some count for a loss."""

    def __init__(self, batch: SampleBatch, policy: Policy, device: torch.device) -> None:
        data = batch.data
        self.device = device
        self.burn_in, self.bootstrap = batch.burn_in, batch.bootstrap
        self.state_every = batch.state_every
        self.num_agents = batch.num_agents
        self._env_state = data.env_state
        self.ticks, self.rows = data.acted.shape
        self.specs = policy.agent.obs
        moved = to_device({name: getattr(data, name) for name in _USED}, device)
        self.stored_obs, self.policy_state = moved["obs"], moved["policy_state"]
        self.is_first, self.acted = moved["is_first"], moved["acted"]
        self.terminated, self.truncated = moved["terminated"], moved["truncated"]
        self.reward, self.action = moved["reward"], moved["action"]
        self.extras, self.row = moved["extras"], moved["row"]
        self.action_mask: torch.Tensor | None = moved["action_mask"]
        self.active = (self.acted | self.truncated) & ~self.terminated
        """bool [T, B]: the policy was asked."""
        self.all_active = bool(self.active.all())
        counts = self.acted & ~(self.terminated | self.truncated)
        counts[: self.burn_in] = False
        counts[-self.bootstrap :] = False
        self.counts = counts
        """bool [T, B]: an action was taken, and a loss may see it."""
        used = counts[self.burn_in : -self.bootstrap]
        self.all_count = self.all_active and bool(used.all())
        self._frame_index = tree_map(lambda spec: self._frames(spec, data.is_first), self.specs)

    @cached_property
    def env_state(self) -> Tree:
        """[T, envs, ...] the environments' global states, or None. Few algorithms need them, so
        they are moved when they are first read."""
        return to_device(self._env_state, self.device)

    def frames(self) -> tuple[Tree, torch.Tensor]:
        """Single frames [T, B, ...] of the ticks that are in no other fragment, and where the
        policy was asked."""
        own = slice(self.burn_in, self.ticks - self.bootstrap)

        def cut(leaf: torch.Tensor, spec: ArraySpec) -> torch.Tensor:
            return leaf[spec.stack - 1 :][own]

        return tree_map(cut, self.stored_obs, self.specs), self.active[own]

    def obs_at(self, index: torch.Tensor, active: torch.Tensor | None) -> Tree:
        """Observations at a flat index [ticks, n], with frames stacked; zeros where not `active`
        (None: all are active)."""

        def gather(leaf: torch.Tensor, frame_index: torch.Tensor | None) -> torch.Tensor:
            where = index if frame_index is None else at(frame_index, index)
            found = at(leaf.flatten(0, 1), where)
            if active is not None:
                # Unwritten memory may hold NaN, and NaN passes through a gradient of zero.
                found = zero_outside(active, found)
            return found

        return tree_map(gather, self.stored_obs, self._frame_index)

    def state_at(self, index: torch.Tensor, states: Tree = None) -> Tree:
        """Policy state [n, ...] at a flat index [n] of ticks at which it is stored, or other
        `states` that are stored in the same way."""
        states = self.policy_state if states is None else states
        rows = self.rows
        chunk = (index // rows) // self.state_every * rows + index % rows
        return tree_map(lambda leaf: at(leaf.flatten(0, 1), chunk), states)

    def _frames(self, spec: ArraySpec, is_first: np.ndarray) -> torch.Tensor | None:
        if spec.stack == 1:
            return None
        index = stack_index(is_first, spec.stack) * self.rows + np.arange(self.rows)[:, None]
        return torch.from_numpy(index.reshape(-1, spec.stack)).to(self.device)


def at(x: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
    """`x[where]` for an index of any shape; for pixels it is many times faster than that."""
    return x.index_select(0, where.flatten()).view(*where.shape, *x.shape[1:])


def zero_outside(mask: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """`x` [ticks, n, ...] with zeros where `mask` [ticks, n] is not set."""
    return x.masked_fill(~mask.reshape(mask.shape + (1,) * (x.dim() - mask.dim())), 0)
