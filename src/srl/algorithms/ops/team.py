"""The ticks of a team: one row for each environment, from the rows of its agents."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch

from srl.algorithms.ops.masking import check_same_shape


class TeamTicks(NamedTuple):
    """What a team did and earned, in the form that all functions here take for a row."""

    acted: torch.Tensor
    """bool [T, envs]: some agent acted."""
    terminated: torch.Tensor
    """bool [T, envs]: the last agents are done, and nothing follows."""
    truncated: torch.Tensor
    """bool [T, envs]: the last agents are done, but some only because of a time limit."""
    reward: torch.Tensor
    """float [T, envs]: what the agents that acted earned by that."""


def team_ticks(
    *,
    acted: torch.Tensor,
    terminated: torch.Tensor,
    truncated: torch.Tensor,
    reward: torch.Tensor,
    join: Literal["mean", "sum"] = "mean",
) -> TeamTicks:
    """The ticks of teams from those of their agents, [T, envs, agents].

    The team goes on while any agent acts, and is done in the tick of its last final observations.
    Its reward is the mean or the sum over the agents that act. The mean is for games that pay the
    same to all: it does not fall when an agent is done.
    """
    check_same_shape(acted=acted, terminated=terminated, truncated=truncated, reward=reward)
    final = terminated | truncated
    acting = acted & ~final
    team_acted = acting.any(-1)
    over = final.any(-1) & ~team_acted
    team_truncated = over & truncated.any(-1)
    earned = torch.where(acting, reward, 0.0).sum(-1)
    if join == "mean":
        earned = earned / acting.sum(-1).clamp(min=1)
    return TeamTicks(team_acted, over & ~team_truncated, team_truncated, earned)
