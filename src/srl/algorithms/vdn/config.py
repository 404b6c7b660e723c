"""Settings of VDN, each checked when it is set."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from srl.algorithms.dqn.config import DQNConfig
from srl.algorithms.suggestion import Suggestion
from srl.algorithms.team_config import TeamReward
from srl.data.spec import EnvSpec


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

    @classmethod
    def suggest(cls, spec: EnvSpec) -> Suggestion:
        """Few gradient steps on many windows, and targets that move slowly: values of teams are
        noisy, and a mixture exaggerates their errors."""
        found = super().suggest(spec)
        slow = {"batch_size": 256, "updates_per_step": 0.1, "target_steps": 1, "tau": 0.01}
        return dataclasses.replace(found, algorithm={**slow, **found.algorithm})
