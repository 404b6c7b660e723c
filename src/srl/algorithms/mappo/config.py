"""Settings of MAPPO, each checked when it is set."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

from srl.algorithms.ppo.config import PPOConfig
from srl.algorithms.suggestion import Suggestion
from srl.algorithms.team_config import TeamReward, TeamView
from srl.data.spec import EnvSpec

ValueFrom = Literal["learner", "reply"]


@dataclass(frozen=True, kw_only=True)
class MAPPOConfig(PPOConfig):
    """Settings of MAPPO, `--set algorithm.*`: those of PPO, and of the central critic."""

    value_from: ValueFrom = "learner"
    """Who has the critic: the `learner` has one that sees what the whole team sees; `reply` takes
    the policy's own critic, whose values come with the actions."""
    critic_input: TeamView = "auto"
    """What the learner's critic sees beside an agent's own observation: the environment's global
    `state`, or the `observations` of all agents; `auto` is the state where there is one."""
    team_reward: TeamReward | Literal["own"] = "mean"
    """What an agent is paid: the `mean` or the `sum` of what the team's agents earn, to the end of
    the team's episode; or its `own` reward, to its own end, for agents that compete."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._expect_one_of("value_from", ValueFrom)
        self._expect_one_of("critic_input", TeamView)
        known = ("mean", "sum", "own")
        self._expect("team_reward", self.team_reward in known, "mean, sum or own")

    @classmethod
    def suggest(cls, spec: EnvSpec) -> Suggestion:
        """The settings of PPO, and a policy without layers for a critic that nobody trains."""
        found = super().suggest(spec)
        return dataclasses.replace(found, network={**found.network, "shared": True})
