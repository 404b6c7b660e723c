"""Multi-agent PPO (Yu et al. 2022): each agent acts by what it sees, and a critic that sees what
the whole team sees judges it."""

from __future__ import annotations

import torch
from torch import nn

from srl.algorithms.learning.sequences import Sequences
from srl.algorithms.learning.team import CentralInput, Teams, require_same_ticks, require_view
from srl.algorithms.mappo.config import MAPPOConfig
from srl.algorithms.mappo.critic import CentralCritic
from srl.algorithms.ops.gae import gae
from srl.algorithms.ops.team import TeamTicks
from srl.algorithms.ppo.evaluate import PolicyOutputs
from srl.algorithms.ppo.learner import PPO
from srl.algorithms.ppo.rollout import Minibatch, Rollout
from srl.data.tree import Tree, leaves
from srl.policies.nets.config import NetworkConfig
from srl.policies.protocol import Policy, TracksStatistics


class MAPPO(PPO):
    """PPO for teams, with a central critic that only the learner has.

    For an algorithm of your own, override what differs in a subclass, as for PPO, or
    `make_modules`, for another critic.
    """

    Config = MAPPOConfig
    config: MAPPOConfig
    _teams: Teams
    """The teams of the batch that is learned from."""
    _critic_states: Tree = None
    """The critic's memory in that batch, where policy state is stored."""

    @classmethod
    def check(cls, config: MAPPOConfig, policy: Policy) -> None:  # type: ignore[override]
        """It also needs agents that act at the same ticks, and what the critic is to see."""
        super().check(config, policy)
        require_same_ticks(policy, cls.__name__)
        require_view(policy, config.critic_input, "critic_input")

    def make_modules(self) -> dict[str, nn.Module]:
        """The central critic; it normalises what it sees if the policy does."""
        config, policy = self.config, self.policy
        if config.value_from == "reply":
            return {}
        network = policy.config
        normalize = isinstance(network, NetworkConfig) and network.normalize_obs
        central = CentralInput(policy.agent, policy.team, config.critic_input, normalize)
        with_memory = bool(leaves(policy.state_spec))
        return {"critic": CentralCritic(policy, central, with_memory=with_memory)}

    @property
    def critic(self) -> CentralCritic | None:
        """The learner's own critic, if it has one."""
        if "critic" not in self.own_modules:
            return None
        critic = self.own_modules["critic"]
        assert isinstance(critic, CentralCritic)
        return critic

    @property
    def critic_statistics(self) -> TracksStatistics:
        """Whose values are learned."""
        return self._statistics if self.critic is None else self.critic

    def targets(self, rollout: Rollout) -> tuple[torch.Tensor, torch.Tensor]:
        """Advantages and value targets, [T, B] each, by the critic before the update."""
        config, reward = self.config, self.clipped_reward(rollout.reward)
        join = "mean" if config.team_reward == "own" else config.team_reward
        self._teams = Teams(rollout, reward, join)
        if self.critic is not None:
            rollout.value, self._critic_states = self.critic.values_everywhere(self._teams)
        if config.team_reward == "own":
            return super().targets(rollout)
        result = gae(
            value=team_values(self._teams, rollout.value),
            **_of_agents(self._teams)._asdict(),
            gamma=config.gamma,
            lam=config.gae_lambda,
        )
        return result.advantage_t, result.return_t

    def evaluate(self, minibatch: Minibatch) -> PolicyOutputs:
        """The current outputs of policy and critic for the samples of a minibatch."""
        now = super().evaluate(minibatch)
        if self.critic is None:
            return now
        index, burn_in = minibatch.index, minibatch.burn_in
        state = None
        if self._critic_states is not None:
            state = self._teams.sequences.state_at(index[0], self._critic_states)
            if burn_in:
                with torch.no_grad():
                    _, state = self.critic.values(self._teams, index[:burn_in], state)
        value, _ = self.critic.values(self._teams, index[burn_in:], state)
        return now._replace(value=minibatch.select(value))

    def _track_obs(self, sequences: Sequences) -> None:
        """Also updates the statistics of what teams see."""
        super()._track_obs(sequences)
        if self.critic is not None:
            self.critic.central.track(sequences, self.num_updates)


def team_values(teams: Teams, value: torch.Tensor) -> torch.Tensor:
    """Values [T, B] in which agents that are not present have the mean of those that are.

    What the team earns after an agent is done is the work of that agent, too. The others know how
    much that will be, because all are paid the same.
    """
    by_agent, present = teams.by_agent(value), teams.present
    mean = torch.where(present, by_agent, 0.0).sum(-1, True) / present.sum(-1, True).clamp(min=1)
    return torch.where(present, by_agent, mean).flatten(1)


def _of_agents(teams: Teams) -> TeamTicks:
    """The ticks of teams as those of each of their agents, [T, B]."""
    return TeamTicks(*(x.repeat_interleave(teams.num_agents, 1) for x in teams.ticks))
