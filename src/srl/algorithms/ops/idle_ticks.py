"""The episode rules as arithmetic: the value that follows each tick.

Along a row of [T + 1, B] ticks there are four kinds:

* acted: the policy chose an action here; the tick before bootstraps from its value;
* terminated: nothing follows, the value is 0, and no trace crosses it;
* truncated: it keeps its value, and no trace crosses it;
* inert (none of these): skipped, without discount and without decay of the trace.

The last tick only bootstraps. In a row that is inert to the end, the value there is 0.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from srl.algorithms.ops.masking import check_same_shape


class FollowingValues(NamedTuple):
    """The inputs of a backward recursion over ticks."""

    counts_t: torch.Tensor
    """bool [T, B]: an action was taken; these ticks get a loss."""
    inert_t: torch.Tensor | None
    """bool [T, B]: the tick is skipped; None if there is no such tick."""
    value_tp1: torch.Tensor
    """float [T, B]: the value of the next tick after t that is not inert; 0 if there is none."""


def following_values(
    value: torch.Tensor, acted: torch.Tensor, terminated: torch.Tensor, truncated: torch.Tensor
) -> FollowingValues:
    """Finds the kinds of all [T + 1, B] ticks, and the value that follows each.

    `value` may be anything where the policy was not asked.
    """
    check_ticks(value=value, acted=acted, terminated=terminated, truncated=truncated)
    final = terminated | truncated
    asked = (acted | truncated) & ~terminated
    worth = torch.where(asked, value, 0.0)
    inert = ~(acted | final)
    counts_t = acted[:-1] & ~final[:-1]
    if not bool(inert.any()):
        return FollowingValues(counts_t, None, worth[1:])
    last = value.shape[0] - 1
    tick = torch.arange(last + 1, device=value.device).unsqueeze(1)
    # For each tick: the first tick from it on that is not inert. If there is none, it is the last
    # tick, which is then inert and has value 0.
    following = tick.where(~inert, last).flip(0).cummin(0).values.flip(0)
    return FollowingValues(counts_t, inert[:-1], worth.gather(0, following)[1:])


def backward_sum(delta_t: torch.Tensor, decay_t: torch.Tensor) -> torch.Tensor:
    """x[t] = delta[t] + decay[t] * x[t + 1] for [T, B], with 0 after the end: [T + 1, B]."""
    ticks = delta_t.shape[0]
    out = torch.zeros(ticks + 1, *delta_t.shape[1:], dtype=delta_t.dtype, device=delta_t.device)
    rows, deltas, decays = out.unbind(0), delta_t.unbind(0), decay_t.unbind(0)
    for t in range(ticks - 1, -1, -1):
        torch.addcmul(deltas[t], decays[t], rows[t + 1], out=rows[t])
    return out


def check_ticks(**tensors: torch.Tensor) -> None:
    """Raises unless all tensors are [T + 1, B] with T of at least 1."""
    name, first = next(iter(tensors.items()))
    if first.dim() != 2 or first.shape[0] < 2:
        raise ValueError(f"{name}: expected [T + 1, B] with T >= 1, got {list(first.shape)}.")
    check_same_shape(**tensors)
