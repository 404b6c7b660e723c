"""PPO's objective and its gradients by kernels, in place of autograd through `surrogate`."""

from __future__ import annotations

from collections.abc import Callable

import torch

from srl.algorithms.ppo.rollout import Minibatch
from srl.algorithms.ppo.surrogate import LossTerms, LossWeights, SurrogateSamples
from srl.data.tree import tree_map
from srl.kernels.surrogate import surrogate_node, surrogate_with_gradients
from srl.policies.protocol import ManualGradients


def fast_surrogate(
    log_prob: torch.Tensor,
    entropy: torch.Tensor,
    value: torch.Tensor,
    samples: SurrogateSamples,
    weights: LossWeights,
) -> tuple[torch.Tensor, LossTerms]:
    """As `surrogate`, as one node of the graph."""
    given = {**samples._asdict(), **weights._asdict()}
    loss, terms = surrogate_node(log_prob, entropy, value, **given)
    return loss, LossTerms(*terms.unbind())


@torch.no_grad()
def gradients_by_hand(
    policy: ManualGradients,
    minibatch: Minibatch,
    objective: Callable[[Minibatch], tuple[SurrogateSamples, LossWeights]],
) -> tuple[torch.Tensor, LossTerms]:
    """The loss and its terms; writes the gradients of all parameters without a graph.

    So many small nodes would take longer than their arithmetic.
    """
    obs = tree_map(lambda leaf: leaf[0], minibatch.obs)
    mask = None if minibatch.action_mask is None else minibatch.action_mask[0]
    action = minibatch.all_action[0]
    now = policy.forward_pass(obs, mask)
    log_prob = now.distribution.log_prob(action)
    minibatch.set_proximal(log_prob, now.value)
    samples, weights = objective(minibatch)
    given = {**samples._asdict(), **weights._asdict()}
    entropy = now.distribution.entropy()
    result = surrogate_with_gradients(log_prob, entropy, now.value, **given)
    policy.backward_pass(now, action, result.of_log_prob, result.of_entropy, result.of_value)
    return result.loss, LossTerms(*result.terms.unbind())
