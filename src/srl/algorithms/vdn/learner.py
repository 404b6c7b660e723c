"""Value decomposition (Sunehag et al. 2018): the value of a joint action is the sum of what each
agent's part of it is worth."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from srl.algorithms.dqn.learner import DQN
from srl.algorithms.learning.team import Teams, require_same_ticks
from srl.algorithms.ops.mixing import sum_of_values
from srl.algorithms.vdn.config import VDNConfig
from srl.algorithms.vdn.windows import TeamWindowBatch
from srl.data.records import SampleBatch
from srl.errors import ConfigError
from srl.policies.protocol import ActionValues, Policy


class VDN(DQN):
    """DQN for teams: all agents of one environment learn together from what the team earns.

    For an algorithm of your own, override `mix` in a subclass, too.
    """

    Config = VDNConfig
    config: VDNConfig

    @classmethod
    def check(cls, config: VDNConfig, policy: Policy) -> None:  # type: ignore[override]
        """It needs several agents, whose values are single numbers."""
        if isinstance(policy, ActionValues) and policy.num_quantiles:
            raise ConfigError(
                f"network.num_quantiles: expected 0 for {cls.__name__}, because quantiles of a "
                f"team are not those of its agents together, got {policy.num_quantiles}."
            )
        super().check(config, policy)
        require_same_ticks(policy, cls.__name__)
        if policy.team.num_agents < 2:
            raise ConfigError(
                f"algorithm: {cls.__name__} expects a team (several agents of one environment that "
                "share a policy), got a policy with one agent. Use dqn for a single agent. Agents "
                "whose spaces are unlike cannot share a policy: pad their observations and actions "
                "to equal spaces."
            )

    def make_windows(self, batch: SampleBatch) -> TeamWindowBatch:
        """The windows of a batch, on the device."""
        config = self.config
        return TeamWindowBatch(
            batch,
            self.policy,
            self.device,
            mix=partial(self.mix, self.trained),
            mix_target=partial(self.mix, self.target.module),
            join=config.team_reward,
            gamma=config.gamma,
            n=config.n_steps,
            reward_clip=config.clip_reward,
        )

    def mix(
        self,
        networks: nn.Module,
        value: torch.Tensor,
        present: torch.Tensor,
        teams: Teams,
        where: torch.Tensor,
    ) -> torch.Tensor:
        """The values [T, e] of joint actions, from those of agents [T, e, agents].

        `networks` are those that are trained, or their targets. `where` is the flat index [T, e] of
        the teams.
        """
        return sum_of_values(value, present)
