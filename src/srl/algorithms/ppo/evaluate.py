"""What a policy makes of stored observations now: log probabilities, entropies and values."""

from __future__ import annotations

from typing import NamedTuple

import torch

from srl.algorithms.ppo.rollout import Minibatch
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


def _ticks(tree: Tree, ticks: slice) -> Tree:
    return tree_map(lambda leaf: leaf[ticks], tree)
