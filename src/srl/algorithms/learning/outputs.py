"""What a policy makes of whole rows of a batch now: log probabilities, entropies and values."""

from __future__ import annotations

from typing import NamedTuple

import torch

from srl.algorithms.learning.sequences import Sequences, at
from srl.data.tree import Tree, tree_map
from srl.policies.protocol import Unroll, Unrolls

TICKS_AT_ONCE = 8192
"""Ticks of rows that are computed at once, to bound the memory that this takes."""


def unroll_after(
    policy: Unrolls,
    burn_in: int,
    obs: Tree,
    policy_state: Tree,
    is_first: torch.Tensor,
    active: torch.Tensor,
    action_mask: torch.Tensor | None,
) -> Unroll:
    """Runs a policy over [ticks, n], with gradients only behind the burn-in."""
    if burn_in:
        with torch.no_grad():
            before = tree_map(lambda leaf: leaf[:burn_in], obs)
            mask = None if action_mask is None else action_mask[:burn_in]
            warm = policy.unroll(before, policy_state, is_first[:burn_in], active[:burn_in], mask)
        policy_state = warm.policy_state
        obs = tree_map(lambda leaf: leaf[burn_in:], obs)
        is_first, active = is_first[burn_in:], active[burn_in:]
        action_mask = None if action_mask is None else action_mask[burn_in:]
    return policy.unroll(obs, policy_state, is_first, active, action_mask)


class Outputs(NamedTuple):
    """The outputs of a policy at the N ticks of some rows at which it was asked, in the order of
    the mask `asked`."""

    log_prob: torch.Tensor
    """float32 [N]: of the action that was taken; means nothing where none was."""
    entropy: torch.Tensor
    value: torch.Tensor
    """float32 [N], in units of reward."""
    asked: torch.Tensor
    """bool [ticks, rows]: where the N ticks are."""

    def spread(self, x: torch.Tensor) -> torch.Tensor:
        """[N] numbers at their places in [ticks, rows], with zeros between them."""
        if x.numel() == self.asked.numel():
            return x.view(self.asked.shape)
        return x.new_zeros(self.asked.shape).masked_scatter(self.asked, x)


def outputs_of(policy: Unrolls, sequences: Sequences, rows: torch.Tensor) -> Outputs:
    """Runs a policy over all ticks of the rows with these indices, with gradients.

    A policy without memory computes only ticks at which it was asked. There is always at least one
    tick, so that a rank without data can join in.
    """
    ticks = torch.arange(sequences.ticks, device=sequences.device).unsqueeze(1)
    index = ticks * sequences.rows + rows
    asked = sequences.active[:, rows]
    if not sequences.all_active and not bool(asked.any()):
        asked = asked.clone()
        asked[0, 0] = True
    with_memory = sequences.policy_state is not None
    if not with_memory:
        index = index[asked].unsqueeze(0)
    is_first = at(sequences.is_first.flatten(), index)
    active = asked if with_memory else torch.ones_like(is_first)
    mask = sequences.action_mask
    masked = with_memory and not sequences.all_active
    distribution, value, _ = policy.unroll(
        sequences.obs_at(index, asked if masked else None),
        sequences.state_at(index[0]) if with_memory else None,
        is_first,
        active,
        None if mask is None else at(mask.flatten(0, 1), index),
    )
    acted = at(sequences.acted.flatten(), index)
    action = at(sequences.action.flatten(0, 1), index)
    action = action.masked_fill(~acted.reshape(acted.shape + (1,) * (action.dim() - 2)), 0)
    found = (distribution.log_prob(action), distribution.entropy(), value)
    log_prob, entropy, value = (x[active] for x in found)
    return Outputs(log_prob, entropy, value, asked)


@torch.no_grad()
def outputs_everywhere(policy: Unrolls, sequences: Sequences) -> tuple[torch.Tensor, torch.Tensor]:
    """Log probabilities and values of a policy at all ticks, [T + 1, B]; zeros where it was not
    asked. A few rows are computed at a time."""
    rows_at_once = max(1, TICKS_AT_ONCE // sequences.ticks)
    found = []
    for rows in torch.split(torch.arange(sequences.rows, device=sequences.device), rows_at_once):
        out = outputs_of(policy, sequences, rows)
        found.append((out.spread(out.log_prob), out.spread(out.value)))
    return torch.cat([f[0] for f in found], 1), torch.cat([f[1] for f in found], 1)
