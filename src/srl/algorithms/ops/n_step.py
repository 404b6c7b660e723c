"""Returns of n steps over fragments that hold several episodes."""

from __future__ import annotations

from typing import NamedTuple

import torch

from srl.algorithms.ops.idle_ticks import check_ticks


class NSteps(NamedTuple):
    """What follows each action: `reward_t + discount_t * value` of the tick `bootstrap_t`."""

    valid_t: torch.Tensor
    """bool [T, B]: an action was taken, and the fragment has the tick to bootstrap from."""
    reward_t: torch.Tensor
    """float [T, B]: the discounted sum of up to n rewards."""
    discount_t: torch.Tensor
    """float [T, B]: the discount of the value; 0 where the episode has terminated."""
    bootstrap_t: torch.Tensor
    """int64 [T, B]: the tick whose value follows."""

    def target(self, value: torch.Tensor) -> torch.Tensor:
        """The targets [T, B, ...], from values [T + 1, B, ...] that are finite."""
        extra = value.dim() - 2
        index = self.bootstrap_t.reshape(self.bootstrap_t.shape + (1,) * extra)
        found = value.gather(0, index.expand(-1, -1, *value.shape[2:]))
        reward, discount = (
            x.reshape(x.shape + (1,) * extra) for x in (self.reward_t, self.discount_t)
        )
        return reward + discount * found


@torch.no_grad()
def n_steps(
    *,
    reward: torch.Tensor,
    acted: torch.Tensor,
    terminated: torch.Tensor,
    truncated: torch.Tensor,
    gamma: float,
    n: int,
) -> NSteps:
    """The rewards of n actions, and where to bootstrap, for [T + 1, B] ticks.

    Fewer than n actions count before the end of an episode, and before the last tick, which only
    bootstraps. Ticks without an action are skipped (see `idle_ticks`). Where none but such ticks
    follow, nothing is known about what the action led to, and it is not `valid`.
    """
    check_ticks(reward=reward, acted=acted, terminated=terminated, truncated=truncated)
    final = terminated | truncated
    last = acted.shape[0] - 1
    tick = torch.arange(last + 1, device=acted.device).unsqueeze(1).expand_as(acted)
    following, known = _following(tick, acted | final)
    valid = (acted & ~final)[:-1]
    at, running = tick[:-1], valid
    total = torch.zeros_like(reward[:-1])
    discount = torch.ones_like(total)
    for _ in range(n):
        total = torch.where(running, total + discount * reward.gather(0, at), total)
        discount = torch.where(running, discount * gamma, discount)
        valid = valid & (known.gather(0, at) | ~running)
        at = torch.where(running, following.gather(0, at), at)
        running = running & (at < last) & ~final.gather(0, at)
    discount = torch.where(valid & ~terminated.gather(0, at), discount, 0.0)
    return NSteps(valid, torch.where(valid, total, 0.0), discount, at)


def _following(tick: torch.Tensor, wanted: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """For each tick the next one that is wanted, and whether there is one; else the last tick."""
    last = tick.shape[0] - 1
    first = tick.where(wanted, last + 1).flip(0).cummin(0).values.flip(0)
    following = torch.cat([first[1:], torch.full_like(first[:1], last + 1)])
    return following.clamp(max=last), following <= last
