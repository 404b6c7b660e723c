"""Settings of VDN, each checked when it is set."""

from __future__ import annotations

from dataclasses import dataclass

from srl.algorithms.dqn.config import DQNConfig
from srl.algorithms.team import TeamReward


@dataclass(frozen=True, kw_only=True)
class VDNConfig(DQNConfig):
    """Settings of VDN, `--set algorithm.*`: those of DQN, and how a team is paid."""

    team_reward: TeamReward = "mean"
    """What a team earns: the `mean` or the `sum` over the agents that act. The mean is for games
    that pay the same to all: it does not fall when an agent is done."""

    huber_delta: float | None = None
    """Errors above this count linearly, below it by their square; unset: all by their square, so
    that values are means of what follows, which add up."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._expect_one_of("team_reward", TeamReward)
