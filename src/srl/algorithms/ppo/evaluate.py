"""What a policy makes of stored observations now: log probabilities, entropies and values."""

from __future__ import annotations

from typing import NamedTuple

import torch

from srl.algorithms.learning.sequences import zero_outside
from srl.algorithms.ppo.rollout import Minibatch, Rollout
from srl.data.tree import Tree, tree_map
from srl.policies.protocol import Unrolls


class PolicyOutputs(NamedTuple):
    """The current outputs of the policy for the N samples of a minibatch, with gradients."""

    log_prob: torch.Tensor
    entropy: torch.Tensor
    value: torch.Tensor


def evaluate(policy: Unrolls, minibatch: Minibatch) -> PolicyOutputs:
    """Runs the policy over a minibatch with gradients; the burn-in runs without."""
    obs, state, skip = minibatch.obs, minibatch.policy_state, minibatch.burn_in
    is_first, active, mask = minibatch.is_first, minibatch.active, minibatch.action_mask
    if skip:
        with torch.no_grad():
            before = _ticks(obs, slice(0, skip))
            masks = None if mask is None else mask[:skip]
            state = policy.unroll(before, state, is_first[:skip], active[:skip], masks).policy_state
        obs, is_first, active = _ticks(obs, slice(skip, None)), is_first[skip:], active[skip:]
        mask = None if mask is None else mask[skip:]
    distribution, value, _ = policy.unroll(obs, state, is_first, active, mask)
    return PolicyOutputs(
        minibatch.select(distribution.log_prob(minibatch.all_action)),
        minibatch.select(distribution.entropy()),
        minibatch.select(value),
    )


@torch.no_grad()
def evaluate_all(policy: Unrolls, rollout: Rollout) -> tuple[torch.Tensor, torch.Tensor]:
    """Log probabilities and values of a policy at all ticks, [T + 1, B]; computed a few rows at a
    time."""
    rows_at_once = max(1, 8192 // rollout.ticks)
    ticks = torch.arange(rollout.ticks, device=rollout.device).unsqueeze(1) * rollout.rows
    found = []
    for rows in torch.split(torch.arange(rollout.rows, device=rollout.device), rows_at_once):
        index = ticks + rows
        active, acted = rollout.active[:, rows], rollout.acted[:, rows]
        mask = None if rollout.action_mask is None else rollout.action_mask[:, rows]
        state = None if rollout.policy_state is None else rollout.state_at(index[0])
        obs = rollout.obs_at(index, active)
        distribution, value, _ = policy.unroll(obs, state, rollout.is_first[:, rows], active, mask)
        action = zero_outside(acted, rollout.action[:, rows])
        found.append((distribution.log_prob(action), value))
    return torch.cat([f[0] for f in found], 1), torch.cat([f[1] for f in found], 1)


def _ticks(tree: Tree, ticks: slice) -> Tree:
    return tree_map(lambda leaf: leaf[ticks], tree)
