"""What a policy makes of stored observations now: log probabilities, entropies and values."""

from __future__ import annotations

from typing import NamedTuple

import torch

from srl.algorithms.learning.outputs import unroll_after
from srl.algorithms.ppo.rollout import Minibatch
from srl.policies.protocol import Unrolls


class PolicyOutputs(NamedTuple):
    """The current outputs of the policy for the N samples of a minibatch, with gradients."""

    log_prob: torch.Tensor
    entropy: torch.Tensor
    value: torch.Tensor


def evaluate(policy: Unrolls, minibatch: Minibatch) -> PolicyOutputs:
    """Runs the policy over a minibatch with gradients; the burn-in runs without."""
    distribution, value, _ = unroll_after(
        policy,
        minibatch.burn_in,
        minibatch.obs,
        minibatch.policy_state,
        minibatch.is_first,
        minibatch.active,
        minibatch.action_mask,
    )
    return PolicyOutputs(
        minibatch.select(distribution.log_prob(minibatch.all_action)),
        minibatch.select(distribution.entropy()),
        minibatch.select(value),
    )
